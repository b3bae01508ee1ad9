"""What a network's inputs are: their shape and scale, and the columns of the table that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.arrays import channels_first
from fedsat.data.schema import Schema
from fedsat.errors import DataError, UsageError

if TYPE_CHECKING:
    from fedsat.data.datasets import Dataset


@dataclass(frozen=True)
class Inputs:
    """The inputs that a network was trained on, so that new samples are read in the same way."""

    shape: tuple[int, ...]
    """The shape of one sample."""
    mean: tuple[float, ...]
    """The mean of each channel (feature), with uint8 scaled to [0, 1]; inputs are normalised by it."""
    std: tuple[float, ...]
    pixels: bool | None = None
    """Whether samples are uint8 pixels; None if the data are on nodes, which do not say."""
    schema: Schema | None = None
    """The columns of a table, which normalises them itself; None for other data."""

    @classmethod
    def of(cls, dataset: Dataset) -> Inputs:
        """Return the inputs of a dataset."""
        pixels = dataset.train.images.dtype == np.uint8
        return cls(dataset.input_shape, dataset.mean, dataset.std, pixels, dataset.schema)

    def read(self, x: Any) -> NDArray[Any]:
        """Return samples as uint8 or float32 arrays, [n, *shape], before they are normalised.

        `x` is a data frame if the model was trained on a table, and otherwise an array or a tensor.
        """
        frame = is_frame(x)
        if self.schema is not None:
            if not frame:
                names = ", ".join(column.name for column in self.schema.columns)
                raise UsageError(f"the model was trained on a table; pass a data frame with the columns {names}")
            return self.schema.encode(x)
        if frame:
            raise UsageError(f"the model was trained on arrays [n, {self._axes}], not on a table; pass an array")
        return self._array(np.asarray(x))

    @property
    def _axes(self) -> str:
        return ", ".join(map(str, self.shape))

    def _array(self, x: NDArray[Any]) -> NDArray[Any]:
        found = x.shape
        if x.shape[1:] != self.shape:
            x = channels_first(x, "the samples")
        if x.shape[1:] != self.shape or not len(x):
            raise DataError(f"the samples have the shape {list(found)}; the model needs [n, {self._axes}]")
        if x.dtype.kind not in "iufb":
            raise DataError(f"the samples are {x.dtype}; the model needs numbers")
        low, high = float(x.min()), float(x.max())
        if not np.isfinite([low, high]).all():
            raise DataError("a sample holds a value that is not finite")
        if x.dtype == np.uint8 and self.pixels is not False:
            return x
        if self.pixels and (low < 0 or high > 1):
            raise DataError(
                f"the samples are {x.dtype} from {low:g} to {high:g}; the model was trained on pixels: pass uint8, or "
                "floats from 0 to 1"
            )
        return x.astype(np.float32)


def is_frame(source: Any) -> bool:
    """Whether an object is a pandas data frame."""
    return hasattr(source, "iloc") and hasattr(source, "columns")
