"""How clinics-synthetic was made: `python -m fedsat.data.builtin.make_clinics`. No row comes from a real patient.

Eight clinics differ in size, in the age of their patients and in how often the outcome occurs. The outcome depends on
the values of a row by the same rule in all clinics, apart from a constant that sets how often it occurs there.
"""

from __future__ import annotations

import csv
import gzip
import io
from datetime import date, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.builtin import FOLDER
from fedsat.seeding import generator

Floats = NDArray[np.float64]

FILE = FOLDER / "clinics-synthetic.csv.gz"
CLINICS = {
    # name: rows, share with the outcome, mean age
    "Ash": (1600, 0.030, 58),
    "Birch": (1100, 0.045, 66),
    "Cedar": (800, 0.020, 49),
    "Elm": (600, 0.060, 72),
    "Fir": (400, 0.035, 61),
    "Hazel": (250, 0.100, 76),
    "Larch": (150, 0.020, 45),
    "Oak": (100, 0.080, 69),
}
TEST_SHARE = 5
"""One row in five of each clinic and outcome is in the test set."""


def rows_of(clinic: str) -> list[dict[str, Any]]:
    """Draw the rows of one clinic."""
    count, prevalence, mean_age = CLINICS[clinic]
    rng = generator(0, "clinics-synthetic", list(CLINICS).index(clinic))
    age = np.clip(rng.normal(mean_age, 15, count), 18, 99).round()
    frail = (age - 60) / 15 + rng.normal(0, 1, count)
    smoker = rng.choice(["never", "former", "current"], count, p=[0.55, 0.3, 0.15])
    ward = rng.choice(["medicine", "surgery", "cardiology", "neurology"], count, p=rng.dirichlet([4, 3, 2, 1]))
    urgent = rng.random(count) < 0.3 + 0.1 * np.tanh(frail)
    columns: dict[str, Any] = {
        "age": age,
        "sex": rng.choice(["female", "male"], count),
        "bmi": rng.normal(26.5, 4.5, count).round(1),
        "systolic": rng.normal(128 + 4 * frail, 16).round(),
        "heart_rate": rng.normal(78 + 3 * urgent, 12).round(),
        "temperature": rng.normal(36.9 + 0.3 * urgent, 0.5).round(1),
        "oxygen": np.minimum(100, rng.normal(97 - frail, 1.8)).round(),
        "creatinine": rng.lognormal(-0.1 + 0.1 * frail, 0.3).round(2),
        "sodium": rng.normal(139, 3.2, count).round(),
        "haemoglobin": rng.normal(13.4 - 0.4 * frail, 1.5).round(1),
        "crp": rng.lognormal(2 + 0.5 * urgent, 0.9).round(),
        "lactate": rng.lognormal(0.2 + 0.1 * frail, 0.4).round(1),
        "albumin": rng.normal(39 - frail, 4).round(),
        "diabetes": rng.random(count) < 0.2 + 0.05 * np.tanh(frail),
        "hypertension": rng.random(count) < 0.4 + 0.2 * np.tanh(frail),
        "smoker": smoker,
        "ward": ward,
        "admission": np.where(urgent, "urgent", "planned"),
        "admissions_before": rng.poisson(np.exp(0.3 * frail)),
        "admitted": [(date(2025, 1, 1) + timedelta(days=int(day))).isoformat() for day in rng.integers(0, 365, count)],
    }
    happened = rng.random(count) < probabilities(score(columns), prevalence)
    drawn = {name: _text(values) for name, values in columns.items()}
    for name, share in {"lactate": 0.4, "crp": 0.15, "albumin": 0.2, "smoker": 0.1}.items():
        drawn[name] = ["" if gone else text for text, gone in zip(drawn[name], rng.random(count) < share, strict=True)]
    split = _split(happened, rng)
    drawn |= {"outcome": ["event" if one else "no event" for one in happened], "split": split}
    return [{"clinic": clinic, **dict(zip(drawn, row, strict=True))} for row in zip(*drawn.values(), strict=True)]


def score(columns: dict[str, Any]) -> Floats:
    """Return the risk of each row on the scale of log-odds, up to a constant."""
    risk: Floats = (
        0.5 * (columns["age"] - 60) / 15
        + 1.2 * np.log(columns["lactate"])
        + 0.9 * np.log(columns["creatinine"])
        - 0.09 * (columns["albumin"] - 39)
        - 0.25 * (columns["oxygen"] - 97)
        + 0.5 * np.log1p(columns["crp"]) * (columns["admission"] == "urgent")
        + 0.8 * (np.abs(columns["sodium"] - 139) > 6)
        + 0.7 * (columns["smoker"] == "current") * (columns["ward"] == "cardiology")
        + 0.6 * columns["diabetes"]
        + 0.2 * columns["admissions_before"]
    )
    return risk


def probabilities(risk: Floats, prevalence: float) -> Floats:
    """Return 1/(1 + exp(−risk − c)) with the c for which the mean is `prevalence`, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((1 / (1 + np.exp(-risk - middle))).mean())
        low, high = (middle, high) if mean < prevalence else (low, middle)
    found: Floats = 1 / (1 + np.exp(-risk - low))
    return found


def _split(happened: NDArray[np.bool_], rng: np.random.Generator) -> list[str]:
    split = np.full(len(happened), "train", dtype="U5")
    for outcome in (False, True):
        rows = rng.permutation(np.flatnonzero(happened == outcome))
        split[rows[: len(rows) // TEST_SHARE]] = "test"
    return split.tolist()


def _text(values: Any) -> list[str]:
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in np.asarray(values).tolist()]


def content() -> bytes:
    """Return the file, the same bytes each time."""
    text = io.StringIO()
    rows = [row for clinic in CLINICS for row in rows_of(clinic)]
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode(), mtime=0)


if __name__ == "__main__":
    FILE.write_bytes(content())
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")
