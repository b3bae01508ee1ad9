"""The script that made mnist-mini: `python -m fedsat.data.builtin.make DIR`, with MNIST's official files in DIR."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsat.data.builtin import FILE
from fedsat.data.catalog import DATASETS, Arrays, digest
from fedsat.data.sources import ORIGINS, from_folder
from fedsat.seeding import Indices, generator


def subset(mnist: Arrays) -> Arrays:
    """Return 6,000 training and 1,000 test images, each class with its share of MNIST, in MNIST's order."""
    train = stratified(mnist.train_labels, 6000, generator(0, "mnist-mini", 0))
    test = stratified(mnist.test_labels, 1000, generator(0, "mnist-mini", 1))
    return Arrays(
        mnist.train_images[train], mnist.train_labels[train], mnist.test_images[test], mnist.test_labels[test]
    )


def stratified(labels: NDArray[np.uint8], size: int, rng: np.random.Generator) -> Indices:
    """Return `size` sorted indices; class counts are proportional, rounded by largest remainder."""
    counts = np.bincount(labels)
    shares = counts * (size / len(labels))
    quota = np.floor(shares).astype(np.int64)
    short = size - int(quota.sum())
    quota[np.argsort(quota - shares, kind="stable")[:short]] += 1
    chosen = [rng.choice(np.flatnonzero(labels == c), q, replace=False) for c, q in enumerate(quota)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def main(folder: Path) -> None:
    """Write the file and print the checksums that belong in the catalog."""
    arrays = subset(from_folder(folder, ORIGINS["mnist"], DATASETS["mnist"]))
    np.savez_compressed(FILE, **arrays._asdict())
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")
    for name, array in arrays._asdict().items():
        print(f"{name} {digest(array)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
