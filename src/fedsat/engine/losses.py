"""Faster forms of objectives. The one in C is in `native.loss`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields

import torch

from fedsat.algorithms import Algorithm, Batch, Outputs, PredictionSensitiveLoss
from fedsat.engine.kernels import triton_module
from fedsat.tree import Tree


@dataclass(frozen=True)
class QuickSensitiveLoss(PredictionSensitiveLoss):
    """The prediction-sensitive loss, computed by one kernel where it is defined."""

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, Tree]:
        """Return the losses and the carry as `PredictionSensitiveLoss` does."""
        kernels = triton_module("triton_psl")
        mistakes = carry["mistakes"]
        plain = self.label_smoothing > 0 or mistakes.dtype != torch.float32
        if kernels is None or plain or not kernels.suits(outputs.logits):
            return super().loss(carry, outputs, batch)
        settings = (self.epsilon1, self.epsilon2), self.over == "errors", self.source == "training"
        given = outputs.logits, batch.y, batch.real, mistakes, carry.get("shift")
        losses, mistakes = kernels.StackedSensitiveLoss.apply(*given, *settings)
        return losses, {**carry, "mistakes": mistakes}


def quick(algorithm: Algorithm, form: type[PredictionSensitiveLoss]) -> Algorithm:
    """Return the method with a faster form of its objective, if that is the prediction-sensitive loss."""
    objective = algorithm.objective
    if type(objective) is not PredictionSensitiveLoss:
        return algorithm
    algorithm = copy.copy(algorithm)
    values = {field.name: getattr(objective, field.name) for field in fields(objective)}
    object.__setattr__(algorithm, "objective", form(**values))
    return algorithm
