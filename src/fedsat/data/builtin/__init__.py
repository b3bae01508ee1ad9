"""Data that comes with the package: see README.md in this folder for its origin and licence."""

from pathlib import Path

FILE = Path(__file__).parent / "mnist-mini.npz"
"""The built-in dataset mnist-mini."""
