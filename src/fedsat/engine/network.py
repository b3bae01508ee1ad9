"""A torch module as a pure function of its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.func import functional_call
from torch.nn import functional

from fedsat.algorithms import Model, Outputs
from fedsat.errors import UsageError
from fedsat.models.norms import BatchNormRelu
from fedsat.tree import Tree


@dataclass(frozen=True)
class Factors:
    """The gradient of a linear layer's weights, not yet multiplied out: ∂L/∂W = ∂L/∂out · columnsᵀ for each client."""

    weight: Tensor
    """[S, out, in]."""
    columns: Tensor
    """[S, in, B]."""
    out: GradientEdge
    """Where ∂L/∂out, [S, out, B], is found in the graph."""


@dataclass
class Aside:
    """What a step tells the layers of a module beside their input, and what they leave for it."""

    real: Tensor | None = None
    """Which samples of the batch at hand are real, [S, B]; None where all are."""
    factors: list[Factors] | None = None
    """Where linear layers leave the gradients of their weights as factors; None where gradients are formed."""


class ModuleNetwork:
    """One client's network as a function of stacked weights with a client axis of length one.

    Copies of the module are kept in training and in evaluation mode, so that a method may run frozen
    models within a training step. The modules' own weights are never read.
    """

    def __init__(self, module: nn.Module, features: bool, half: bool = False) -> None:
        self._training = _careful(copy.deepcopy(module).train())
        self._evaluating = copy.deepcopy(module).eval()
        self._features, self._half = features, half

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Evaluation mode; `buffers` stay as they are."""
        return self._run(self._evaluating, _first(params), _first(buffers), x[0])

    def train(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Training mode with the weights of one client (no client axis); running statistics in `buffers` move on."""
        return self._run(self._training, params, buffers, x)

    def _run(self, module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            if not self._features:
                return Outputs(functional_call(module, (params, buffers), (x,)).unsqueeze(0).to(x.dtype))
            with last_layer_input(module) as seen:
                logits = functional_call(module, (params, buffers), (x,))
        return Outputs(logits.unsqueeze(0).to(x.dtype), seen[0].unsqueeze(0).to(x.dtype))


class CarefulBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm that takes a batch with a single value per channel, which has no statistics.

    It then uses its running statistics and leaves them as they are, where torch's own would refuse.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        del input  # checked by the class that the layer had before

    def forward(self, input: Tensor) -> Tensor:
        """As torch's, but for a single value per channel."""
        if self.training and self.running_mean is not None and input.numel() == input.shape[1]:
            statistics = self.running_mean, self.running_var
            return functional.batch_norm(input, *statistics, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(input)


class CarefulBatchNormRelu(BatchNormRelu, CarefulBatchNorm):
    """The same with what follows on it."""


CAREFUL: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: CarefulBatchNorm,
    nn.BatchNorm2d: CarefulBatchNorm,
    nn.BatchNorm3d: CarefulBatchNorm,
    BatchNormRelu: CarefulBatchNormRelu,
}


def _careful(module: nn.Module) -> nn.Module:
    """The module with careful norms; a user's own kinds of BatchNorm stay what they are."""
    for layer in module.modules():
        layer.__class__ = CAREFUL.get(type(layer), type(layer))
    return module


def _first(tree: Tree) -> Tree:
    return {name: tensor[0] for name, tensor in tree.items()}


@contextmanager
def last_layer_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Note what goes into the module's last linear layer: the representation that the classifier reads."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UsageError("this method reads the input of the model's last linear layer, and the model has none")
    seen: list[Tensor] = []
    hook = layers[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()


def initial_weights(module: nn.Module, device: torch.device, dtype: torch.dtype) -> Model:
    """The module's weights as a `Model`, on the device; parameters that the user froze count as buffers."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    params = {name: moved(tensor) for name, tensor in module.named_parameters() if tensor.requires_grad}
    frozen = {name: moved(tensor) for name, tensor in module.named_parameters() if not tensor.requires_grad}
    buffers = frozen | {name: moved(tensor) for name, tensor in module.named_buffers()}
    if not params:
        raise UsageError("the model has no parameters to train")
    return Model(params, buffers)
