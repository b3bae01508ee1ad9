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
from fedsat.algorithms.distilled import DistilledSensitiveLoss
from fedsat.algorithms.elastic import Elastic
from fedsat.algorithms.fedacg import FedACG
from fedsat.algorithms.fedavg import FedAvg
from fedsat.algorithms.fedavgm import FedAvgM
from fedsat.algorithms.fedcm import FedCM
from fedsat.algorithms.feddisco import DiscrepancyAware, FedDisco
from fedsat.algorithms.feddyn import FedDyn
from fedsat.algorithms.fedlada import FedLADA
from fedsat.algorithms.fedlc import FedLC, LogitCalibration
from fedsat.algorithms.fedlesam import FedLESAM
from fedsat.algorithms.fedntd import FedNTD, NotTrueDistillation
from fedsat.algorithms.fedprox import FedProx
from fedsat.algorithms.fedrs import FedRS, RestrictedSoftmax
from fedsat.algorithms.fedsam import FedSAM
from fedsat.algorithms.fedsat import FedSat
from fedsat.algorithms.fedvls import FedVLS, VacantClassDistillation
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
    "DiscrepancyAware",
    "DistilledSensitiveLoss",
    "Elastic",
    "FedACG",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDisco",
    "FedDyn",
    "FedLADA",
    "FedLC",
    "FedLESAM",
    "FedNTD",
    "FedProx",
    "FedRS",
    "FedSAM",
    "FedSat",
    "FedVLS",
    "Footprint",
    "LocalResult",
    "LogitCalibration",
    "Model",
    "Moon",
    "Network",
    "NotTrueDistillation",
    "Objective",
    "Outputs",
    "PredictionSensitiveLoss",
    "PrioritizedClassWeights",
    "RestrictedSoftmax",
    "Scaffold",
    "Server",
    "Task",
    "Uniform",
    "Updates",
    "VacantClassDistillation",
    "Weighting",
    "aggregators",
    "algorithms",
    "footprint",
    "objectives",
    "optimizers",
    "weightings",
]
