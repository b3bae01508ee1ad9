"""A small table that tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsat.seeding import generator

COLUMNS = ("hospital", "age", "ward", "ill", "outcome")


def write_patients(path: Path, hospitals: tuple[str, ...] = ("north", "east", "west"), rows: int = 90) -> Path:
    """Write a .csv file; the outcome follows from the age and the ward."""
    rng = generator(0, "patients")
    hospital = np.array(["north", "east", "west"])[np.arange(rows) % 3]
    age, ward = rng.normal(60, 12, rows).round(1), np.array(["a", "b"])[rng.integers(0, 2, rows)]
    ill, outcome = rng.random(rows) < 0.3, (age > 60) ^ (ward == "a")
    lines = [
        ",".join(map(str, row)) for row in zip(hospital, age, ward, ill, outcome, strict=True) if row[0] in hospitals
    ]
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return path
