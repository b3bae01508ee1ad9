"""Pillow images as arrays: one channel if all of them are greyscale, otherwise three."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import DataError
from fedsat.files import regular

Pixels = NDArray[np.uint8]


def read_picture(path: Path, image_size: int | None) -> Pixels:
    """Return the pixels of an image file."""
    from PIL import Image  # noqa: PLC0415 (only for image files)

    try:
        with quiet_pillow(), Image.open(regular(path)) as picture:
            return pixels_of(picture, image_size, str(path))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from error


def is_picture(sample: Any) -> bool:
    """Whether a sample is a Pillow image."""
    return hasattr(sample, "convert") and hasattr(sample, "mode")


def pixels_of(picture: Any, image_size: int | None, where: str) -> Pixels:
    """Return the pixels of a Pillow image, [H, W] or [H, W, 3], resized to a square of `image_size`."""
    from PIL import Image  # noqa: PLC0415

    if picture.mode.startswith(("I", "F")):
        raise DataError(f"{where}: more than 8 bits per channel; save it as 8-bit, or use arrays")
    converted = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
    if image_size is not None and converted.size != (image_size, image_size):
        converted = converted.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(converted)


def stack_pictures(pictures: Sequence[Pixels], name_of: Callable[[int], str]) -> Pixels:
    """Return all images as one array [N, C, H, W]; `name_of` names an image in errors."""
    sizes = [picture.shape[:2] for picture in pictures]
    other = next((place for place, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise DataError(
            f"{name_of(0)} is {_size(sizes[0])} but {name_of(other)} is {_size(sizes[other])}; the images have "
            f"{len(set(sizes))} sizes, so set image_size, such as {_usual_side(sizes)}, to resize them to squares"
        )
    if any(picture.ndim == 3 for picture in pictures):
        pictures = [p if p.ndim == 3 else np.repeat(p[:, :, None], 3, axis=2) for p in pictures]
        return np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))
    return np.stack(pictures)[:, None]


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}×{shape[0]}"


def _usual_side(sizes: Sequence[tuple[int, ...]]) -> int:
    """Return the power of two nearest below the median of the shorter sides, from 8 to 256."""
    median = float(np.median([min(size) for size in sizes]))
    return int(np.clip(2 ** np.floor(np.log2(max(median, 1))), 8, 256))


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Hide Pillow's warnings: they are about odd tags in valid images; invalid images raise an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
