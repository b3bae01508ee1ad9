"""Data that come with the package: see README.md in this folder for their origin and licence."""

from pathlib import Path

FOLDER = Path(__file__).parent
FILE = FOLDER / "mnist-mini.npz"
"""The built-in dataset mnist-mini."""
