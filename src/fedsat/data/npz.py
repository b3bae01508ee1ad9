"""Reading .npz files with the arrays of a training set and a test set, such as those of MedMNIST and Keras."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.arrays import one_label_each
from fedsat.errors import DataError
from fedsat.files import regular

Pair = tuple[NDArray[Any], NDArray[Any]]
LAYOUTS = (
    {"train": ("train_images", "train_labels"), "val": ("val_images", "val_labels"),
     "test": ("test_images", "test_labels")},
    {"train": ("x_train", "y_train"), "val": ("x_val", "y_val"), "test": ("x_test", "y_test")},
)  # fmt: skip
"""Names of the arrays: MedMNIST's, and those of Keras."""


def is_npz(path: Path) -> bool:
    """Whether `path` names an .npz file, which may not exist."""
    return path.suffix == ".npz" and not path.is_dir()


def read_npz(path: Path) -> tuple[dict[str, Pair], str]:
    """Return inputs and labels of the training set and, if there is one, the test set, and a note for the user.

    Nothing is unpickled. Validation samples are added to the training samples.
    """
    try:
        with regular(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            layout = next((each for each in LAYOUTS if set(each["train"]) <= set(stored.files)), None)
            if layout is None:
                wanted = " or ".join(" and ".join(each["train"]) for each in LAYOUTS)
                raise DataError(f"{path}: contains {', '.join(stored.files) or 'nothing'}; expected {wanted}")
            found = {part: (stored[x], stored[y]) for part, (x, y) in layout.items() if {x, y} <= set(stored.files)}
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}") from error
    except Exception as error:  # numpy and zipfile raise many kinds of errors for damaged files
        raise DataError(f"{path}: not a readable .npz file ({str(error).partition(chr(10))[0]})") from error
    parts = {part: (x, one_label_each(y, f"{path}, {part}")) for part, (x, y) in found.items()}
    return joined(parts, path.name)


def joined(parts: Mapping[str, Pair], name: str) -> tuple[dict[str, Pair], str]:
    """Return the training samples, including those for validation, and the test samples, with a note if there are any.

    Samples for validation are a share of the training samples (`validation`, `holdout`) where they are needed.
    """
    kept = {part: parts[part] for part in ("train", "test") if part in parts}
    if "val" not in parts:
        return kept, ""
    try:
        both = tuple(np.concatenate(arrays) for arrays in zip(parts["train"], parts["val"], strict=True))
    except ValueError as error:
        raise DataError(f"{name}: the validation samples cannot be added to the training samples: {error}") from error
    count = len(parts["val"][1])
    note = f"{name}: {count:,} validation samples are added to the training samples"
    return {**kept, "train": (both[0], both[1])}, note
