"""The networks of many clients in C, for modules of convolutions, average pooling, activations and linear layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsat.algorithms import Outputs
from fedsat.engine.layers import Layer, layers_of
from fedsat.engine.native.library import LAYER, CJob, Library, library
from fedsat.engine.network import Descent
from fedsat.tree import Tree

ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: 1, nn.ReLU: 2, nn.ELU: 3, nn.Sigmoid: 4}
"""As in layers.h; 0 is none."""

Records = np.ndarray[Any, np.dtype[np.void]]
"""Structures of C."""

Weights = Sequence[Tensor | None]
"""The weight [S, …] and the bias [S, out] of every layer; None if it has no bias."""


class NativeNetwork:
    """The networks of many clients, if C can compute their module."""

    def __init__(self, module: nn.Module, layers: Sequence[Layer], shape: tuple[int, ...], found: Library) -> None:
        self._names = [name for layer in layers for name in (layer.weight, layer.bias)]
        self._inputs = math.prod(shape)
        self._layers, self.compiler = _geometry(module, layers, shape), found.compiler

    @classmethod
    def of(cls, module: nn.Module, shape: tuple[int, ...]) -> NativeNetwork | None:
        """Return the network of a module for samples of this shape; None if C cannot compute it, or not here."""
        found = layers_of(module)
        if found is None or len(shape) != (3 if found.convolutions else len(shape) if found.flat_from == 0 else 1):
            return None
        compiled = library(torch.float32)
        network = None if compiled is None else cls(module, found.layers, shape, compiled)
        return network if network is not None and network._computes(copy.deepcopy(module).eval(), shape) else None

    def _computes(self, module: nn.Module, shape: tuple[int, ...]) -> bool:
        """Whether the network returns what the module does; tracing misses autocast and a replaced `forward`."""
        weights = {name: tensor.detach().float().unsqueeze(0) for name, tensor in module.named_parameters()}
        x = torch.linspace(-1, 1, 2 * math.prod(shape)).view(1, 2, *shape)
        with torch.no_grad():
            return torch.allclose(self(weights, {}, x, None).logits[0], module.float()(x[0]), rtol=1e-4, atol=1e-5)

    def suits(self, x: Tensor) -> bool:
        """Whether the network is defined for samples x [S, B, …]."""
        return (
            x.device.type == "cpu"
            and not x.requires_grad
            and x.shape[2:].numel() == self._inputs
            and library(x.dtype) is not None
        )

    def __call__(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        reference: Callable[[], Tensor] | None,
        factors: list[Descent] | None = None,
    ) -> Outputs:
        """Return the logits of samples x [S, B, …]; frozen weights are in `buffers`.

        The backward pass appends a step in place to `factors`, if given, instead of computing gradients of weights.
        Second derivatives are those of `reference`, which returns the same logits.
        """
        weights = [None if name is None else params.get(name, buffers.get(name)) for name in self._names]
        logits: Tensor = _Native.apply(x, self, reference, factors, *weights)  # type: ignore[no-untyped-call]
        return Outputs(logits)

    def c_layers(self, weights: Weights, slopes: Weights = (), pulls: Weights = (), rate: float = 0.0) -> Records:
        """Return the layers for C, with gradients to be stored in `slopes`, or a step of this rate in place."""
        layers = self._layers.copy()
        for suffix, tensors in (("", weights), ("_slope", slopes), ("_pull", pulls)):
            if tensors:
                for start, name in enumerate(("weight", "bias")):
                    own = tensors[start::2]
                    layers[f"{name}{suffix}"] = [0 if tensor is None else tensor.data_ptr() for tensor in own]
                    layers[f"{name}{suffix}_step"] = [0 if tensor is None else tensor.stride(0) for tensor in own]
        layers["rate"] = rate
        return layers

    def pulls(self, pull: Tree | None, weights: Weights) -> Weights:
        """Return the terms of a pull in the order of the weights."""
        if pull is None:
            return ()
        terms = [None if name is None else pull.get(name) for name in self._names]
        return [
            None if term is None or weight is None else _packed(term.to(weight.dtype).expand_as(weight), 1)
            for term, weight in zip(terms, weights, strict=True)
        ]


@dataclass(frozen=True)
class Pass:
    """A forward pass: what the backward pass needs."""

    network: NativeNetwork
    x: Tensor
    weights: Weights
    kept: Tensor | None

    @classmethod
    def of(cls, network: NativeNetwork, x: Tensor, weights: Weights, *, keep: bool) -> tuple[Pass, Tensor]:
        """Run the forward pass, and return it with the logits [S, B, m]."""
        (clients, batch), found = x.shape[:2], _library(x.dtype)
        x, weights = _packed(x, 2), [None if tensor is None else _packed(tensor, 1) for tensor in weights]
        layers = network.c_layers(weights)
        logits = x.new_empty(clients, batch, int(layers[-1]["outputs"]))
        kept = (
            x.new_empty(clients, found.size("kept_size", layers.ctypes.data, len(layers), 1, batch)) if keep else None
        )
        done = cls(network, x, weights, kept)
        done._run(
            "forward", layers, logits, 0 if keep else found.size("evaluation_scratch", layers.ctypes.data, len(layers))
        )
        return done, logits

    def backward(self, slope: Tensor, slopes: Weights, pulls: Weights = (), rate: float = 0.0) -> None:
        """Store the weights' gradients in `slopes`, or take a step of this rate if they are the weights."""
        layers = self.network.c_layers(self.weights, slopes, pulls, rate)
        scratch = _library(self.x.dtype).size("backward_scratch", layers.ctypes.data, len(layers), self.x.shape[1])
        self._run("backward", layers, slope, scratch)

    def part(self, place: slice) -> Pass:
        """Return the pass of some clients; all tensors are views."""
        assert self.kept is not None
        weights = [None if tensor is None else tensor[place] for tensor in self.weights]
        return Pass(self.network, self.x[place], weights, self.kept[place])

    def _run(self, name: str, layers: Records, logits: Tensor, scratch: int) -> None:
        memory = self.x.new_empty(torch.get_num_threads() * scratch)
        kept = (None, 0) if self.kept is None else (self.kept.data_ptr(), self.kept.stride(0))
        sizes = len(layers), *self.x.shape[:2]
        strides = self.x.stride()[:2]
        rest = *kept, logits.data_ptr(), logits.stride(0), memory.data_ptr(), 0
        job = CJob(layers.ctypes.data, *sizes, self.x.data_ptr(), *strides, *rest)
        _library(self.x.dtype).run(name, byref(job))


@dataclass(frozen=True)
class NativeStep:
    """A backward pass that changes the weights in place."""

    passed: Pass
    slope: Tensor
    """∂L/∂logits, [S, B, m]."""
    needed: Sequence[bool]
    """Which weights are trained."""

    def take(self, place: slice, lr: float, pull: Tree | None) -> None:
        """Apply θ ← θ − η (∇L + pull) to the weights of some clients."""
        if not torch.tensor(lr, dtype=self.slope.dtype):  # in C, rate 0 means that gradients are stored
            return
        passed = self.passed.part(place)
        trained = [tensor if needed else None for tensor, needed in zip(passed.weights, self.needed, strict=True)]
        passed.backward(self.slope[place], trained, passed.network.pulls(pull, trained), lr)


class _Native(torch.autograd.Function):
    """Logits [S, B, m] of samples [S, B, …] and the weights and biases of all layers."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        network: NativeNetwork,
        reference: Callable[[], Tensor] | None,
        factors: list[Descent] | None,
        *weights: Tensor | None,
    ) -> Tensor:
        ctx.passed, logits = Pass.of(network, x, weights, keep=any(ctx.needs_input_grad))
        copied = any(one is not other for one, other in zip(ctx.passed.weights, weights, strict=True))
        ctx.factors = None if copied else factors  # a step in place must reach the weights themselves
        ctx.reference, ctx.weights = reference, weights
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed, slope = ctx.needs_input_grad[4:], grad.contiguous()
        if torch.is_grad_enabled():  # second derivatives are requested
            chosen = [weight for weight, wanted in zip(ctx.weights, needed, strict=True) if wanted]
            found = iter(torch.autograd.grad(ctx.reference(), chosen, grad, create_graph=True))
            return None, None, None, None, *(next(found) if wanted else None for wanted in needed)
        if ctx.factors is not None:
            ctx.factors.append(NativeStep(ctx.passed, slope, needed))
            return (None,) * len(ctx.needs_input_grad)
        slopes = [
            torch.empty_like(weight, memory_format=torch.contiguous_format) if wanted else None
            for weight, wanted in zip(ctx.weights, needed, strict=True)
        ]
        ctx.passed.backward(slope, slopes)
        return None, None, None, None, *slopes


def _library(dtype: torch.dtype) -> Library:
    found = library(dtype)
    assert found is not None
    return found


def _packed(tensor: Tensor, leading: int) -> Tensor:
    """Return the tensor with contiguous trailing axes; the strides of the leading ones may be anything."""
    inner = tensor[(0,) * leading]
    return tensor if inner.is_contiguous() else tensor.contiguous()


def _geometry(module: nn.Module, layers: Sequence[Layer], shape: tuple[int, ...]) -> Records:
    """Return the layers for C, without weights."""
    modules, found, unset = dict(module.named_modules()), [], [0] * (len(LAYER.names or ()) - 13)
    for layer in layers:
        own: Any = modules[layer.weight.removesuffix("weight").removesuffix(".")]
        if isinstance(own, nn.Conv2d):
            (channels, height, width), (kernel_h, kernel_w) = shape, own.kernel_size
            down, right = (int(pad) for pad in own.padding)
            sizes = own.out_channels, height + 2 * down - kernel_h + 1, width + 2 * right - kernel_w + 1
            shape = own.out_channels, sizes[1] // layer.pool, sizes[2] // layer.pool
            window = kernel_h, kernel_w, down, right
        else:
            (channels, height, width), sizes, window = (math.prod(shape), 1, 1), (own.out_features, 1, 1), (1, 1, 0, 0)
            shape = (own.out_features,)
        kind = 0 if layer.activation is None else ACTIVATIONS[type(layer.activation)]
        alpha = layer.activation.alpha if isinstance(layer.activation, nn.ELU) else 0.0
        found.append((channels, height, width, *sizes, *window, kind, layer.pool, alpha, *unset))
    return np.array(found, LAYER)
