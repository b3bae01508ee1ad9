"""Federated methods. Read `base`, then `fedsat`; a method of your own is a subclass of `Algorithm`."""

from fedsat.algorithms.base import (
    Algorithm,
    Batch,
    LocalResult,
    Model,
    Network,
    Outputs,
    Server,
    Task,
    Updates,
    algorithms,
)
from fedsat.algorithms.fedavg import FedAvg
from fedsat.algorithms.fedsat import FedSat
from fedsat.algorithms.objective import CrossEntropy, Objective, objectives
from fedsat.algorithms.psl import PredictionSensitiveLoss
from fedsat.algorithms.pwa import PrioritizedClassWeights
from fedsat.algorithms.weighting import BySamples, Uniform, Weighing, Weighting, weightings

__all__ = [
    "Algorithm",
    "Batch",
    "BySamples",
    "CrossEntropy",
    "FedAvg",
    "FedSat",
    "LocalResult",
    "Model",
    "Network",
    "Objective",
    "Outputs",
    "PredictionSensitiveLoss",
    "PrioritizedClassWeights",
    "Server",
    "Task",
    "Uniform",
    "Updates",
    "Weighing",
    "Weighting",
    "algorithms",
    "objectives",
    "weightings",
]
