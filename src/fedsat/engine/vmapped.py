"""The networks of many clients with `torch.func.vmap`, for modules that cannot be folded."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedsat.algorithms import Outputs
from fedsat.engine.fold import CannotFoldError
from fedsat.engine.network import Descent, last_layer_input
from fedsat.tree import Tree


class VmapNetwork:
    """Any module without BatchNorm, mapped over the client axis of its weights and inputs.

    BatchNorm is not supported because its statistics would include the padding of partial batches.
    """

    compiler = None

    def __init__(self, module: nn.Module, features: bool, half: bool = False) -> None:
        if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
            raise CannotFoldError("it has BatchNorm, which vmap does not support")
        self._training = copy.deepcopy(module).train()
        self._evaluating = copy.deepcopy(module).eval()
        self._features, self._half = features, half

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Run in evaluation mode."""
        return self._run(self._evaluating, params, buffers, x)

    def train(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        real: Tensor | None = None,
        factors: list[Descent] | None = None,
    ) -> Outputs:
        """Run in training mode; all gradients are computed directly."""
        del real, factors
        return self._run(self._training, params, buffers, x)

    def _run(self, module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        def single(own: Tree, kept: Tree, inputs: Tensor) -> tuple[Tensor, ...]:
            if not self._features:
                return (torch.func.functional_call(module, (own, kept), (inputs,)),)
            with last_layer_input(module) as seen:
                logits = torch.func.functional_call(module, (own, kept), (inputs,))
            return logits, seen[0]

        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            outputs = torch.func.vmap(single, randomness="different")(params, buffers, x)
        return Outputs(*(output.to(x.dtype) for output in outputs))
