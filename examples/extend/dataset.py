"""A dataset: vibrations of machines at twelve sites, which have different faults; one fault is rare.

fedsat run --dataset dataset:machines --partition natural --clients 12 --per-round 6
"""

import numpy as np

from fedsat import Dataset

FAULTS = ("none", "loose", "worn", "cracked")


def machines() -> Dataset:
    """Return 1,800 recordings of 64 values, with the fault and the site of each."""
    rng = np.random.default_rng(0)
    sites, samples, length = 12, 1800, 64
    site = np.arange(samples) % sites
    mixes = rng.dirichlet([4, 2, 2, 0.3], size=sites)
    fault = np.array([rng.choice(len(FAULTS), p=mixes[at]) for at in site])
    turns = (3 + 2 * fault[:, None]) * np.arange(length) / length  # every fault has its own frequency
    phase = rng.uniform(size=(samples, 1))
    waves = np.sin(2 * np.pi * (turns + phase)) + rng.normal(scale=0.5, size=(samples, length))
    return Dataset.from_arrays(waves.astype(np.float32), fault, clients=site, class_names=FAULTS, name="machines")
