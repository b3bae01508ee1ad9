"""FedAvg (McMahan et al. 2017): local SGD, then the mean of the clients' models, weighted by samples."""

from __future__ import annotations

from dataclasses import dataclass

from fedsat.algorithms.base import Algorithm, algorithms


@algorithms.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Local SGD, then the mean of the clients' models, weighted by samples (McMahan et al. 2017)."""
