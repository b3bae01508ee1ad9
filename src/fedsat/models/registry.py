"""The registry of models, and building a model for a dataset."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import nn

from fedsat.errors import UsageError
from fedsat.options import Option, Spec
from fedsat.registry import Registry
from fedsat.seeding import generator

models: Registry[nn.Module] = Registry("model", nn.Module, "models")

FROM_DATA = ("input_shape", "classes", "num_classes")
"""Constructor parameters that are filled in from the dataset; all others are options."""

Projection = Annotated[int, Option("outputs of MOON's projection head before the classifier; 0: no head", at_least=0)]
"""An option of every built-in model, so that all methods can use the same network as MOON in a comparison."""


def build_model(spec: Spec, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return the network that `spec` names, for inputs of `input_shape`, with initial weights drawn from `seed`.

    Any `torch.nn.Module` class can be named as `module:Name`. If its constructor has the parameters `input_shape`,
    `classes` or `num_classes`, they are filled in.
    """
    name, options = _arguments(spec, input_shape, classes)
    # torch's layers draw their weights from the global generator, which is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "model").integers(2**62)))
        module = models.entry(name).make(**options)
    _check_fit(module, name, input_shape, classes)
    return module


def count_parameters(spec: Spec, input_shape: tuple[int, ...], classes: int) -> int:
    """Return the number of parameters of the network that `spec` names, without the memory for them."""
    name, options = _arguments(spec, input_shape, classes)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in models.entry(name).make(**options).parameters())


def _arguments(spec: Spec, input_shape: tuple[int, ...], classes: int) -> tuple[str, dict[str, Any]]:
    """Return a model's name and the arguments of its constructor."""
    name, options = models.arguments(spec)
    data: dict[str, Any] = {"input_shape": input_shape, "classes": classes, "num_classes": classes}
    for key, field in models.options(name).items():
        if key in data:
            options[key] = data[key]
        elif field.required and key not in options:
            raise UsageError(f"model {name!r} needs a value for {key}; set it with --set model.{key}=…")
    return name, options


def _check_fit(module: nn.Module, name: str, input_shape: tuple[int, ...], classes: int) -> None:
    """Refuse a network that does not return one logit per class for each sample."""
    was_training = module.training
    try:
        with torch.no_grad():
            found = tuple(module.eval()(torch.zeros(2, *input_shape)).shape)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"model {name!r} does not accept samples of shape {list(input_shape)}: {reason}") from error
    finally:
        module.train(was_training)
    if found != (2, classes):
        raise UsageError(
            f"model {name!r} returned shape {list(found)} for 2 samples; it must be [2, {classes}], one logit per class"
        )


def image_shape(input_shape: tuple[int, ...], model: str) -> tuple[int, int, int]:
    """Return the shape as channels, height and width; raise an error if the samples are not images."""
    if len(input_shape) != 3:
        raise UsageError(f"model {model!r} needs images, but the data have the shape {input_shape}; try --model mlp")
    channels, height, width = input_shape
    return channels, height, width


def classifier(features: int, classes: int, projection: int) -> nn.Module:
    """Return the last layer, with MOON's projection head before it if requested (the authors use 256 outputs)."""
    if projection == 0:
        return nn.Linear(features, classes)
    return nn.Sequential(
        nn.Linear(features, features), nn.ReLU(), nn.Linear(features, projection), nn.Linear(projection, classes)
    )
