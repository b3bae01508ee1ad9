"""A torch module as a pure function of its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedsat.algorithms import Model, Outputs
from fedsat.errors import UsageError
from fedsat.models.norms import BatchNormRelu
from fedsat.tree import Tree


@dataclass(frozen=True)
class Factors:
    """The factors of the gradient of a linear layer's weights: ∂L/∂W = ∂L/∂out · columnsᵀ for each client."""

    weight: Tensor
    """[S, out, in]."""
    columns: Tensor
    """[S, in, B]."""
    slope: Tensor
    """∂L/∂out, [S, out, B]."""


@dataclass(frozen=True)
class Parts:
    """The gradient of a convolution's weights as the sum of its parts."""

    weight: Tensor
    """[S, out, in, k, k]."""
    parts: Tensor
    """[P, S, k, k, in, out]."""


class Step(Protocol):
    """A step of all weights that computes the gradient and applies it at once."""

    def take(self, place: slice, lr: float, pull: Tree | None) -> None:
        """Apply θ ← θ − η (∇L + pull) to the weights of some clients."""


Descent = Factors | Parts | Step
"""What a backward pass leaves to the step instead of computing gradients of weights."""


def bias_slope(slope: Tensor) -> Tensor:
    """Return ∂L/∂b [S, out] from ∂L/∂out [S, out, B], added in an order that does not depend on the number of clients.

    On a CPU, the order of `sum` does.
    """
    return torch.bmm(slope, slope.new_ones(len(slope), slope.shape[2], 1)).squeeze(2)


@dataclass
class Aside:
    """Side inputs and outputs of the layers in one training step."""

    real: Tensor | None = None
    """Mask of the real samples of the batch, [S, B]; None if there is no padding."""
    factors: list[Descent] | None = None
    """List to which linear layers append the factors of their gradients in the backward pass, if not None."""
    parts: list[Descent] | None = None
    """The same for convolutions on a GPU, and the parts of their gradients."""


class ModuleNetwork:
    """One client's network as a function of stacked weights with a client axis of length one.

    It keeps copies of the module in training and in evaluation mode, so that methods can evaluate frozen models within
    a training step. The modules' own weights are not used.
    """

    def __init__(self, module: nn.Module, features: bool, half: bool = False) -> None:
        self._training = _careful(copy.deepcopy(module).train())
        self._evaluating = copy.deepcopy(module).eval()
        self._features, self._half = features, half

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Run in evaluation mode; `buffers` do not change."""
        return self._run(self._evaluating, _first(params), _first(buffers), x[0])

    def train(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Run in training mode with one client's weights (no client axis) and update the statistics in `buffers`."""
        return self._run(self._training, params, buffers, x)

    def _run(self, module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            if not self._features:
                return Outputs(functional_call(module, (params, buffers), (x,)).unsqueeze(0).to(x.dtype))
            with last_layer_input(module) as seen:
                logits = functional_call(module, (params, buffers), (x,))
        return Outputs(logits.unsqueeze(0).to(x.dtype), seen[0].unsqueeze(0).to(x.dtype))


class CarefulBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm that accepts a batch with a single value per channel.

    It then normalises by the running statistics and does not update them. torch's BatchNorm raises an error.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        del input  # already checked by the layer's original class

    def forward(self, input: Tensor) -> Tensor:
        """Normalise as torch does, except for a single value per channel."""
        if self.training and self.running_mean is not None and input.numel() == input.shape[1]:
            statistics = self.running_mean, self.running_var
            return functional.batch_norm(input, *statistics, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(input)


class CarefulBatchNormRelu(BatchNormRelu, CarefulBatchNorm):
    """`CarefulBatchNorm` followed by the optional shortcut and ReLU."""


CAREFUL: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: CarefulBatchNorm,
    nn.BatchNorm2d: CarefulBatchNorm,
    nn.BatchNorm3d: CarefulBatchNorm,
    BatchNormRelu: CarefulBatchNormRelu,
}


def _careful(module: nn.Module) -> nn.Module:
    """Replace standard BatchNorm layers by careful ones; user-defined subclasses are not changed."""
    for layer in module.modules():
        layer.__class__ = CAREFUL.get(type(layer), type(layer))
    return module


def _first(tree: Tree) -> Tree:
    return {name: tensor[0] for name, tensor in tree.items()}


@contextmanager
def last_layer_input(module: nn.Module) -> Iterator[list[Tensor]]:
    """Capture the input of the module's last linear layer: the representation that the classifier uses."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UsageError(
            "this method needs the input of the model's last linear layer, but the model has no linear layer"
        )
    seen: list[Tensor] = []
    hook = layers[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()


def initial_weights(module: nn.Module, device: torch.device, dtype: torch.dtype) -> Model:
    """Return the module's weights on the device as a `Model`; frozen parameters count as buffers."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    params = {name: moved(tensor) for name, tensor in module.named_parameters() if tensor.requires_grad}
    frozen = {name: moved(tensor) for name, tensor in module.named_parameters() if not tensor.requires_grad}
    buffers = frozen | {name: moved(tensor) for name, tensor in module.named_buffers()}
    if not params:
        raise UsageError("the model has no parameters to train")
    return Model(params, buffers)


def draws_random_numbers(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the module draws random numbers during training, as dropout does."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copy.deepcopy(module).train()(torch.zeros(2, *shape))
        return not torch.equal(before, torch.get_rng_state())
