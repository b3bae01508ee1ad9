"""The prediction-sensitive loss in C: on a CPU, its many small operations take longer than their arithmetic."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsat.algorithms import Batch, Outputs, PredictionSensitiveLoss
from fedsat.engine.native.library import CSensitive, library
from fedsat.errors import UsageError
from fedsat.tree import Tree


@dataclass(frozen=True)
class CompiledSensitiveLoss(PredictionSensitiveLoss):
    """The prediction-sensitive loss, computed in C where it is defined."""

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the losses and the carry as `PredictionSensitiveLoss` does."""
        mistakes, logits = carry["mistakes"], outputs.logits
        if self.label_smoothing > 0 or mistakes.dtype != torch.float32 or library(logits.dtype) is None:
            return super().loss(carry, outputs, batch)
        losses, mistakes = _Sensitive.apply(logits, batch, mistakes, carry.get("shift"), self)  # type: ignore[no-untyped-call]
        return losses, {**carry, "mistakes": mistakes}


class _Sensitive(torch.autograd.Function):
    """The losses [S, B] of logits [S, B, m], and M [S, m, m] with the counts of the batch if it is counted."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, batch: Batch, mistakes: Tensor, shift: Tensor | None, objective: CompiledSensitiveLoss
    ) -> tuple[Tensor, Tensor]:
        compiled, logits = library(logits.dtype), logits.contiguous()
        assert compiled is not None
        shift = None if shift is None else shift.to(logits.dtype).contiguous()
        labels, real, mistakes = batch.y, batch.real, mistakes.clone(memory_format=torch.contiguous_format)
        losses, slopes = logits.new_empty(logits.shape[:2]), torch.empty_like(logits)
        tensors = (logits, labels, real, shift, mistakes, losses, slopes)
        pointers = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
        compares = objective.over == "errors", objective.source == "training"
        costs = objective.epsilon1, objective.epsilon2
        given = CSensitive(*pointers, *logits.shape, *labels.stride(), *real.stride(), *costs, *compares, 0)
        compiled.run("sensitive", byref(given))
        ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(mistakes)
        return losses, mistakes

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UsageError("the compiled loss has no second derivatives; use --compile off")
        (slopes,) = ctx.saved_tensors
        return slopes * grad.unsqueeze(2), None, None, None, None
