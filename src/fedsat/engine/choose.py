"""Choice of the engine: the stacked one wherever the model allows it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from fedsat.algorithms import Algorithm
from fedsat.data import Federation
from fedsat.engine.fold import CannotFoldError, FoldedNetwork
from fedsat.engine.network import ModuleNetwork
from fedsat.engine.plan import StackedNetwork
from fedsat.engine.sequential import SequentialEngine
from fedsat.engine.stacked import StackedEngine
from fedsat.engine.vmapped import VmapNetwork
from fedsat.errors import UsageError
from fedsat.rounds.local import LocalTraining
from fedsat.tree import Tree

EngineName = Literal["auto", "stacked", "sequential"]
Compile = Literal["auto", "off"]
Precision = Literal["float32", "bf16", "float64"]
"""bf16: products in bf16 where torch's autocast considers it safe; weights, sums and updates in float32."""


def make_engine(
    name: EngineName,
    module: nn.Module,
    federation: Federation,
    algorithm: Algorithm,
    training: LocalTraining,
    device: torch.device,
    precision: Precision,
    compile: Compile = "auto",
) -> tuple[SequentialEngine | StackedEngine, str]:
    """Return the requested engine and a note for the user about the choice (may be empty)."""
    half = precision == "bf16"
    compiles = compile == "auto" and device.type == "cpu"
    parts = (federation, algorithm, training, device, torch.float64 if precision == "float64" else torch.float32)
    if name == "sequential":
        return SequentialEngine(module, *parts, half=half), ""
    network, why = stacked_network(module, federation.dataset.input_shape, algorithm.uses_features, half, compiles)
    if network is not None:
        return StackedEngine(network, module, *parts), why
    if name == "stacked":
        raise UsageError(f"the stacked engine cannot train this model ({why}); use --engine sequential")
    return SequentialEngine(module, *parts, half=half), f"clients train one after another: {why}"


def stacked_network(
    module: nn.Module, shape: tuple[int, ...], features: bool, half: bool, compiles: bool = False
) -> tuple[StackedNetwork | None, str]:
    """Return the network for many clients at once (folded, else vmap, else None), and why it is not folded."""
    for channels_last in (True, False):
        try:
            if agrees(FoldedNetwork(module, features, False, channels_last), module, shape):
                return FoldedNetwork(module, features, half, channels_last, shape if compiles else None), ""
            why = "folding changes its results, probably because it mixes channels"
        except (CannotFoldError, RuntimeError, ValueError, IndexError) as error:
            why = str(error).partition("\n")[0]
    try:
        if agrees(VmapNetwork(module, features), module, shape):
            return VmapNetwork(module, features, half), f"the model runs with vmap, slower than folded ({why})"
    except (CannotFoldError, RuntimeError, ValueError, IndexError) as error:
        why = f"{why}; vmap: {str(error).partition(chr(10))[0]}"
    return None, why


def agrees(network: StackedNetwork, module: nn.Module, shape: tuple[int, ...], clients: int = 3) -> bool:
    """Check the stacked network's outputs and gradients against the module for a few clients.

    The check runs in evaluation mode, without dropout, and in float64, where rounding cannot hide a difference.
    """
    reference = ModuleNetwork(module, features=False)
    draw = torch.Generator().manual_seed(0)
    params: Tree = {
        name: torch.randn(clients, *tensor.shape, generator=draw, dtype=torch.float64) * 0.1 + tensor.detach().double()
        for name, tensor in module.named_parameters()
    }
    buffers: Tree = {
        name: torch.stack([tensor.double() if tensor.is_floating_point() else tensor] * clients)
        for name, tensor in module.named_buffers()
    }
    x = torch.randn(2, clients, *shape, generator=draw, dtype=torch.float64).transpose(0, 1)
    leaves = {name: tensor.requires_grad_() for name, tensor in params.items()}
    got = network(leaves, buffers, x).logits
    wanted = torch.cat([reference(_of(leaves, k), _of(buffers, k), x[k : k + 1]).logits for k in range(clients)])
    if got.shape != wanted.shape or not torch.allclose(got, wanted, rtol=1e-8, atol=1e-10):
        return False
    pull = torch.randn(wanted.shape, generator=draw, dtype=torch.float64)
    pairs = zip(
        torch.autograd.grad((got * pull).sum(), list(leaves.values()), allow_unused=True),
        torch.autograd.grad((wanted * pull).sum(), list(leaves.values()), allow_unused=True),
        strict=True,
    )
    return all(
        left is right is None or (left is not None and right is not None and torch.allclose(left, right, atol=1e-9))
        for left, right in pairs
    )


def _of(tree: Tree, client: int) -> Tree:
    return {name: tensor[client : client + 1] for name, tensor in tree.items()}
