"""Models by name, and how one is built for a dataset."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import nn

from fedsat.errors import UsageError
from fedsat.options import Option, Registry, Spec
from fedsat.seeding import generator

models: Registry[nn.Module] = Registry("model", nn.Module, "models")

FROM_DATA = ("input_shape", "classes", "num_classes")
"""Constructor parameters that the dataset fills in; all others are the user's options."""

Projection = Annotated[int, Option("outputs of MOON's projection head before the classifier; 0 for none", at_least=0)]
"""An option of every model here, so that all methods compared with MOON can have the same network as it."""


def build_model(spec: Spec, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The network that `spec` names, for inputs of `input_shape`, with initial weights drawn from `seed`.

    Any `torch.nn.Module` class can be named as `module:Name`. Its parameters `input_shape`, `classes` and
    `num_classes` are filled in where it has them.
    """
    name, options = models.arguments(spec)
    data: dict[str, Any] = {"input_shape": input_shape, "classes": classes, "num_classes": classes}
    for key, field in models.options(name).items():
        if key in data:
            options[key] = data[key]
        elif field.required and key not in options:
            raise UsageError(f"model {name!r} needs a value for {key}: give it with --set model.{key}=…")
    # torch's layers draw their weights from the global generator: it is borrowed and put back as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "model").integers(2**62)))
        module = models.entry(name).part(**options)
    _check_fit(module, name, input_shape, classes)
    return module


def _check_fit(module: nn.Module, name: str, input_shape: tuple[int, ...], classes: int) -> None:
    """Refuse a network that does not turn samples into one number for each class."""
    was_training = module.training
    try:
        with torch.no_grad():
            found = tuple(module.eval()(torch.zeros(2, *input_shape)).shape)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"model {name!r} cannot take samples of shape {list(input_shape)}: {reason}") from error
    finally:
        module.train(was_training)
    if found != (2, classes):
        raise UsageError(f"model {name!r} gives {list(found)} for 2 samples; it must be [2, {classes}], one per class")


def image_shape(input_shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    """The shape as channels, height, width, or an error that names the model that needs images."""
    if len(input_shape) != 3:
        raise UsageError(f"model {model!r} needs images, but the data have the shape {input_shape}; try --model mlp")
    channels, height, width = input_shape
    return channels, height, width


def classifier(features: int, classes: int, projection: int) -> nn.Module:
    """The last layer, after MOON's projection head where one is asked for (its authors take 256 outputs)."""
    if projection == 0:
        return nn.Linear(features, classes)
    return nn.Sequential(
        nn.Linear(features, features), nn.ReLU(), nn.Linear(features, projection), nn.Linear(projection, classes)
    )
