"""The networks of the paper's experiments, as plain modules. Any other `torch.nn.Module` works as `module:Name`."""

from fedsat.models.lenet import LeNet5
from fedsat.models.mlp import MLP
from fedsat.models.norms import BatchNormRelu, GroupNormRelu
from fedsat.models.registry import FROM_DATA, build_model, count_parameters, models
from fedsat.models.resnet import ResNet8, ResNet18
from fedsat.models.tabular import Tabular

__all__ = [
    "FROM_DATA",
    "MLP",
    "BatchNormRelu",
    "GroupNormRelu",
    "LeNet5",
    "ResNet8",
    "ResNet18",
    "Tabular",
    "build_model",
    "count_parameters",
    "models",
]
