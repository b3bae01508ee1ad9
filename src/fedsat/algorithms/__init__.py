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
from fedsat.algorithms.combination import Combination, combinations
from fedsat.algorithms.elastic import Elastic
from fedsat.algorithms.fedavg import FedAvg
from fedsat.algorithms.fedavgm import FedAvgM
from fedsat.algorithms.feddyn import FedDyn
from fedsat.algorithms.fedlada import FedLADA
from fedsat.algorithms.fedlc import FedLC, LogitCalibration
from fedsat.algorithms.fedprox import FedProx
from fedsat.algorithms.fedsat import FedSat
from fedsat.algorithms.footprint import Footprint, footprint
from fedsat.algorithms.moon import Moon
from fedsat.algorithms.objective import CrossEntropy, Objective, objectives
from fedsat.algorithms.psl import PredictionSensitiveLoss
from fedsat.algorithms.pwa import PrioritizedClassWeights
from fedsat.algorithms.scaffold import Scaffold
from fedsat.algorithms.weighting import BySamples, Uniform, Weighing, Weighting, weightings

__all__ = [
    "Algorithm",
    "Batch",
    "BySamples",
    "Combination",
    "CrossEntropy",
    "Elastic",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedLADA",
    "FedLC",
    "FedProx",
    "FedSat",
    "Footprint",
    "LocalResult",
    "LogitCalibration",
    "Model",
    "Moon",
    "Network",
    "Objective",
    "Outputs",
    "PredictionSensitiveLoss",
    "PrioritizedClassWeights",
    "Scaffold",
    "Server",
    "Task",
    "Uniform",
    "Updates",
    "Weighing",
    "Weighting",
    "algorithms",
    "combinations",
    "footprint",
    "objectives",
    "weightings",
]
