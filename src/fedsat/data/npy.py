"""Reading .npy files that may be damaged or malicious."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.files import regular


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array in a .npy file; raise a `ValueError` for anything else, an `OSError` if there is no file.

    Nothing is unpickled. The file is mapped first, because a damaged header may claim any shape, and memory must not be
    allocated for more than the file holds. numpy parses headers as Python, so damaged ones raise many kinds of errors.
    """
    with regular(path).open("rb"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers written by Python 2
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:
            raise ValueError(f"not a readable .npy file ({str(error).partition(chr(10))[0]})") from error
        if mapped.offset + mapped.nbytes != path.stat().st_size:
            raise ValueError("the .npy file is longer than its header says")
        return np.array(mapped)
