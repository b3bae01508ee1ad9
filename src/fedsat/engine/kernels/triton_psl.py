"""The prediction-sensitive loss of all clients, with its counts and its gradient, as one Triton kernel.

A batch of logits is tiny. torch takes some thirty kernels for this loss, and each takes longer to start than to run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsat.engine.kernels import launch, without_second_derivative

MOST = 1 << 15
"""Most pairs of a sample and a cell of M that a program handles."""


@triton.jit(do_not_specialize=["batch"])
def _losses(
    logits,
    labels,
    real,
    mistakes,
    shift,
    losses,
    slopes,
    counted,
    batch,
    classes,
    logits_client,
    logits_sample,
    labels_client,
    labels_sample,
    real_client,
    real_sample,
    lowest_cost,
    highest_cost,
    COUNTING: tl.constexpr,
    SHIFTED: tl.constexpr,
    ERRORS: tl.constexpr,
    SAMPLES: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """losses[s, b] = cs(l, l̂) · CE(f + a′, l) of client s, and slopes = its derivative with respect to f."""
    client = tl.program_id(0)
    sample, one = tl.arange(0, SAMPLES), tl.arange(0, CLASSES)
    here, valid = sample < batch, one < classes
    there = here[:, None] & valid[None, :]
    place = client * logits_client + sample[:, None] * logits_sample + one[None, :]
    f = tl.load(logits + place, mask=there, other=float("-inf"))
    label = tl.load(labels + client * labels_client + sample * labels_sample, mask=here, other=0)
    f = tl.where(here[:, None], f, 0.0)  # no NaN in samples that do not exist
    predicted = tl.argmax(f, 1)

    # M, with the counts of this batch: true class · m + predicted class.
    cells = client * classes * classes + one[:, None] * classes + one[None, :]
    inside = valid[:, None] & valid[None, :]
    table = tl.load(mistakes + cells, mask=inside, other=0.0)
    own = (label[:, None, None] == one[None, :, None]) & (predicted[:, None, None] == one[None, None, :])
    if COUNTING:
        seen = tl.load(real + client * real_client + sample * real_sample, mask=here, other=0) != 0
        table += tl.sum((own & seen[:, None, None]).to(tl.float32), 0)
    tl.store(counted + cells, table, mask=inside)

    if ERRORS:
        inside = inside & (one[:, None] != one[None, :])
    low = tl.min(tl.min(tl.where(inside, table, float("inf")), 1), 0)
    high = tl.max(tl.max(tl.where(inside, table, float("-inf")), 1), 0)
    often = tl.sum(tl.sum(tl.where(own, table[None, :, :], 0.0), 2), 1)
    share = tl.where(high > low, (often - low) / (high - low), 0.0)
    cost = tl.where(predicted == label, 1.0, lowest_cost + share * (highest_cost - lowest_cost))

    if SHIFTED:
        a = tl.load(shift + client * classes + one, mask=valid, other=0.0).to(tl.float32)
        wrong = (one[None, :] == predicted[:, None]) & (predicted != label)[:, None]
        f += tl.where(wrong, 0.0, a[None, :])
    top = tl.max(f, 1)
    powers = tl.exp(f - top[:, None])
    total = tl.sum(powers, 1)
    right = one[None, :] == label[:, None]
    at_label = tl.sum(tl.where(right, f, 0.0), 1)
    tl.store(losses + client * batch + sample, cost * (tl.log(total) + top - at_label), mask=here)
    slope = cost[:, None] * (powers / total[:, None] - right.to(tl.float32))
    tl.store(slopes + (client * batch + sample[:, None]) * classes + one[None, :], slope, mask=there)


def suits(logits: Tensor) -> bool:
    """Whether the kernel is defined for logits [C, B, m]: float32, with few classes and samples."""
    _, batch, classes = logits.shape
    cells = triton.next_power_of_2(batch) * triton.next_power_of_2(classes) ** 2
    return logits.dtype == torch.float32 and batch > 0 and classes > 1 and cells <= MOST


class StackedSensitiveLoss(torch.autograd.Function):
    """The losses [C, B] of logits [C, B, m], and M [C, m, m] with the counts of the batch if `counting`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        real: Tensor,
        mistakes: Tensor,
        shift: Tensor | None,
        costs: tuple[float, float],
        errors: bool,
        counting: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the losses and M; the costs are ε₁ and ε₂, compared over the errors or over all cells."""
        clients, batch, classes = logits.shape
        logits = logits if logits.stride(2) == 1 else logits.contiguous()
        mistakes, shift = mistakes.contiguous(), None if shift is None else shift.contiguous()
        losses, slopes = logits.new_empty(clients, batch), logits.new_empty(clients, batch, classes)
        counted = torch.empty_like(mistakes)
        samples, across = triton.next_power_of_2(batch), triton.next_power_of_2(classes)
        launch(
            _losses, (clients,),
            logits, labels, real, mistakes, shift, losses, slopes, counted, batch, classes, *logits.stride()[:2],
            *labels.stride(), *real.stride(), *costs, COUNTING=counting, SHIFTED=shift is not None, ERRORS=errors,
            SAMPLES=samples, CLASSES=across, num_warps=4 if samples * across**2 <= MOST // 8 else 8,
        )  # fmt: skip
        ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(counted)
        return losses, counted

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits."""
        (slopes,) = ctx.saved_tensors
        return slopes * grad.unsqueeze(2), *[None] * 7
