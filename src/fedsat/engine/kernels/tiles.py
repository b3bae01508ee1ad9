"""How the kernels of convolutions divide their work among programs (see `triton_conv`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """The block sizes of a program and its launch options, chosen with `benchmarks/tiles.py` on an H200."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """The keyword arguments of a kernel."""
        sizes = {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth}
        return {**sizes, "num_warps": self.warps, "num_stages": self.stages}


def gather_tile(pixels: int, depth: int, outputs: int, clients: int, processors: int) -> Tile:
    """Return the tile of `gather_product`: large if that leaves work for three quarters of the multiprocessors."""
    for columns, warps in ((256, 8), (128, 4)):
        if outputs >= columns and 4 * pixels * outputs * clients >= 3 * 128 * columns * processors:
            return Tile(128, columns, _block(depth), warps, 3)
    return Tile(128 if pixels * clients >= 128 * processors else 64, _block(outputs), _block(depth), 4, 3)


def weight_tile(pairs: int, outputs: int) -> Tile:
    """Return the tile of `weight_product` for this many pairs of tap and channel."""
    return Tile(128 if pairs >= 512 else _block(pairs), _block(outputs, 128), 64, 4, 3)


def _block(channels: int, most: int = 64) -> int:
    """Return the number of channels per program; tensor cores need at least 16."""
    return max(16, min(most, 1 << (channels - 1).bit_length()))
