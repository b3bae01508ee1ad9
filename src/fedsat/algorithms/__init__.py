"""Federated methods. Start with `base`, then `fedsat`. To add a method, subclass `Algorithm`."""

from fedsat.algorithms.aggregator import Aggregator, aggregators
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
from fedsat.algorithms.optimizer import SGD, optimizers
from fedsat.algorithms.psl import PredictionSensitiveLoss
from fedsat.algorithms.pwa import PrioritizedClassWeights
from fedsat.algorithms.scaffold import Scaffold
from fedsat.algorithms.weighting import BySamples, ClientWeights, Uniform, Weighting, weightings

__all__ = [
    "SGD",
    "Aggregator",
    "Algorithm",
    "Batch",
    "BySamples",
    "ClientWeights",
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
    "Weighting",
    "aggregators",
    "algorithms",
    "footprint",
    "objectives",
    "optimizers",
    "weightings",
]
