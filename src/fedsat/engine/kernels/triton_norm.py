"""BatchNorm of many clients fused with a shortcut and ReLU, as two Triton kernels per direction.

These layers do little arithmetic; their time is spent on reading and writing activations. torch passes over them once
each for normalisation, sum and ReLU, and once more for statistics. Here they are read twice and written once. The first
kernel of a direction computes the sums of each channel in a few parts. The second adds the parts and applies the
result. Activations are channels last, x[pixel, s·C + c]. All sums are float32 and have a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsat.engine.kernels import launch, multiprocessors, without_second_derivative

PROGRAMS = 4
"""Programs per multiprocessor that keep a GPU busy."""

TILE = 4096
"""Values that a program handles at a time."""

WARPS = 4

STAGES = tl.constexpr(3)
"""Tiles that are loaded ahead: the arithmetic is too little to hide the time of loads."""

MOST_PARTS = 64
"""Most parts that a second kernel adds per channel. The bound does not depend on the number of clients, so each kernel
is compiled only once."""


@triton.jit
def _counted(real, client, batch, area, MASKED: tl.constexpr, BATCH: tl.constexpr):
    """Return the number of values in a channel of the client without padding, at least 1."""
    if MASKED:
        sample = tl.arange(0, BATCH)
        samples = tl.sum((tl.load(real + client * batch + sample, mask=sample < batch, other=0) != 0).to(tl.float32))
    else:
        samples = batch * 1.0
    return tl.maximum(samples * area, 1.0)


@triton.jit
def _added(sums, channel, valid, channels, parts, PARTS: tl.constexpr):
    """Return both sums of each channel over all parts."""
    part = tl.arange(0, PARTS)
    place = sums + part[:, None] * 2 * channels + channel[None, :]
    there = (part < parts)[:, None] & valid[None, :]
    first = tl.load(place, mask=there, other=0.0)
    second = tl.load(place + channels, mask=there, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit(do_not_specialize=["pixels", "area", "batch", "share"])
def _moments(
    x,
    real,
    sums,
    pixels,
    area,
    batch,
    features,
    channels,
    share,
    MASKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """sums[part] = Σ (x − k), Σ (x − k)² over the real pixels of a part, for each channel.

    k is the first value of the channel. Without it, the variance would be a small difference of large numbers.
    """
    part, client = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid, channel = column < features, client * features + column
    pivot = tl.load(x + channel, mask=valid, other=0.0).to(tl.float32)
    first = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    second = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in tl.range(0, share, ROWS, num_stages=STAGES):
        pixel = part * share + start + tl.arange(0, ROWS)
        there = pixel < pixels
        if MASKED:
            there = there & (tl.load(real + client * batch + pixel // area, mask=there, other=0) != 0)
        value = tl.load(
            x + pixel[:, None] * channels + channel[None, :], mask=there[:, None] & valid[None, :], other=0.0
        )
        gap = tl.where(there[:, None], value.to(tl.float32) - pivot[None, :], 0.0)
        first += gap
        second += gap * gap
    slot = sums + part * 2 * channels + channel
    tl.store(slot, tl.sum(first, 0), mask=valid)
    tl.store(slot + channels, tl.sum(second, 0), mask=valid)


@triton.jit(do_not_specialize=["pixels", "area", "batch", "parts", "share"])
def _normalise(
    x,
    shortcut,
    weight,
    bias,
    real,
    sums,
    running_mean,
    running_var,
    batches,
    statistics,
    out,
    pixels,
    area,
    batch,
    features,
    channels,
    parts,
    share,
    eps,
    momentum,
    TRAINING: tl.constexpr,
    MASKED: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    BATCH: tl.constexpr,
):
    """out = relu(weight · (x − mean) / √(var + ε) + bias + shortcut).

    In training, mean and variance are those of the batch; the first part stores them and updates the running
    statistics. A channel with a single value uses the running statistics and does not update them.
    """
    part, client = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid, channel = column < features, client * features + column
    mean = tl.load(running_mean + channel, mask=valid, other=0.0).to(tl.float32)
    var = tl.load(running_var + channel, mask=valid, other=1.0).to(tl.float32)
    if TRAINING:
        count = _counted(real, client, batch, area, MASKED, BATCH)
        first, second = _added(sums, channel, valid, channels, parts, PARTS)
        pivot = tl.load(x + channel, mask=valid, other=0.0).to(tl.float32)
        gap = first / count
        old_mean, old_var = mean, var
        mean = tl.where(count > 1, pivot + gap, old_mean)
        var = tl.where(count > 1, tl.maximum(second / count - gap * gap, 0.0), old_var)
        if part == 0:
            tl.store(statistics + channel, mean, mask=valid)
            tl.store(statistics + channels + channel, 1 / tl.sqrt(var + eps), mask=valid)
            moved = tl.where(count > 1, momentum, 0.0)
            unbiased = var * count / tl.maximum(count - 1, 1.0)
            tl.store(running_mean + channel, old_mean + moved * (mean - old_mean), mask=valid)
            tl.store(running_var + channel, old_var + moved * (unbiased - old_var), mask=valid)
            if tl.program_id(1) == 0:
                tl.store(batches + client, tl.load(batches + client) + tl.where(count > 1, 1, 0))
    scale = tl.load(weight + channel, mask=valid, other=0.0) * (1 / tl.sqrt(var + eps))
    offset = tl.load(bias + channel, mask=valid, other=0.0) - mean * scale
    for start in tl.range(0, share, ROWS, num_stages=STAGES):
        pixel = part * share + start + tl.arange(0, ROWS)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel < pixels)[:, None] & valid[None, :]
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32) * scale[None, :] + offset[None, :]
        if SHORTCUT:
            value += tl.load(shortcut + place, mask=there, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)  # keeps NaN
        tl.store(out + place, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _line(statistics, weight, bias, channel, valid, channels):
    """Return mean and 1/σ of each channel, and slope and offset of the normalisation as a function of x.

    Without a shortcut, they say where ReLU is active, which spares the backward pass a tensor to read.
    """
    mean = tl.load(statistics + channel, mask=valid, other=0.0)
    inverse = tl.load(statistics + channels + channel, mask=valid, other=0.0)
    scale = tl.load(weight + channel, mask=valid, other=0.0) * inverse
    return mean, inverse, scale, tl.load(bias + channel, mask=valid, other=0.0) - mean * scale


@triton.jit(do_not_specialize=["pixels", "share"])
def _slope_moments(
    grad,
    out,
    x,
    weight,
    bias,
    statistics,
    sums,
    slope,
    pixels,
    features,
    channels,
    share,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """sums[part] = Σ dz, Σ dz · x̂ over the pixels of a part, for each channel; dz = grad where ReLU is active.

    dz is also the gradient of the shortcut and is stored if there is one.
    """
    part, client = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid, channel = column < features, client * features + column
    mean, inverse, scale, offset = _line(statistics, weight, bias, channel, valid, channels)
    first = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    second = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in tl.range(0, share, ROWS, num_stages=STAGES):
        pixel = part * share + start + tl.arange(0, ROWS)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel < pixels)[:, None] & valid[None, :]
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        dz = tl.load(grad + place, mask=there, other=0.0).to(tl.float32)
        if SHORTCUT:
            if RELU:
                dz = tl.where(tl.load(out + place, mask=there, other=0.0) <= 0, 0.0, dz)
            tl.store(slope + place, dz.to(slope.dtype.element_ty), mask=there)
        elif RELU:
            dz = tl.where(value * scale[None, :] + offset[None, :] <= 0, 0.0, dz)
        first += dz
        second += dz * (value - mean[None, :]) * inverse[None, :]
    slot = sums + part * 2 * channels + channel
    tl.store(slot, tl.sum(first, 0), mask=valid)
    tl.store(slot + channels, tl.sum(second, 0), mask=valid)


@triton.jit(do_not_specialize=["pixels", "area", "batch", "parts", "share"])
def _slopes(
    grad,
    x,
    weight,
    bias,
    real,
    statistics,
    sums,
    dx,
    dweight,
    dbias,
    pixels,
    area,
    batch,
    features,
    channels,
    parts,
    share,
    MASKED: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    BATCH: tl.constexpr,
):
    """dx = weight / σ · (dz − (Σ dz + x̂ Σ dz · x̂) / count); padding has only the term dz.

    `grad` is dz, or with RELU the gradient behind it.
    """
    part, client = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid, channel = column < features, client * features + column
    count = _counted(real, client, batch, area, MASKED, BATCH)
    first, second = _added(sums, channel, valid, channels, parts, PARTS)
    if part == 0:
        tl.store(dbias + channel, first, mask=valid)
        tl.store(dweight + channel, second, mask=valid)
    mean, inverse, scale, offset = _line(statistics, weight, bias, channel, valid, channels)
    share_of_one = tl.where(count > 1, 1 / count, 0.0)
    for start in tl.range(0, share, ROWS, num_stages=STAGES):
        pixel = part * share + start + tl.arange(0, ROWS)
        place = pixel[:, None] * channels + channel[None, :]
        there = (pixel < pixels)[:, None] & valid[None, :]
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        dz = tl.load(grad + place, mask=there, other=0.0).to(tl.float32)
        if RELU:
            dz = tl.where(value * scale[None, :] + offset[None, :] <= 0, 0.0, dz)
        hat = (value - mean[None, :]) * inverse[None, :]
        through = (first[None, :] + hat * second[None, :]) * share_of_one
        if MASKED:
            seen = tl.load(real + client * batch + pixel // area, mask=pixel < pixels, other=0) != 0
            through = tl.where(seen[:, None], through, 0.0)
        tl.store(dx + place, (scale[None, :] * (dz - through)).to(dx.dtype.element_ty), mask=there)


class Shape:
    """How the kernels divide the activations [B, S·C, H, W] of S clients among programs."""

    def __init__(self, x: Tensor, clients: int, parts: int | None) -> None:
        self.batch, self.channels = x.shape[:2]
        self.area = x.shape[2] * x.shape[3]
        self.pixels, self.features = self.batch * self.area, self.channels // clients
        self.columns = min(64, triton.next_power_of_2(self.features))
        self.rows = TILE // self.columns
        across = triton.cdiv(self.features, self.columns) * clients
        blocks = triton.cdiv(self.pixels, self.rows)
        programs = PROGRAMS * multiprocessors(x.device)
        wanted = parts or min(MOST_PARTS, triton.cdiv(programs, across))
        self.share = triton.cdiv(blocks, min(blocks, wanted)) * self.rows
        self.parts = triton.cdiv(self.pixels, self.share)
        self.grid = (self.parts, triton.cdiv(self.features, self.columns), clients)
        self.tile = {"ROWS": self.rows, "COLUMNS": self.columns, "num_warps": WARPS}
        self.adding = {"PARTS": MOST_PARTS, "BATCH": triton.next_power_of_2(self.batch)}

    def sums(self, like: Tensor) -> Tensor:
        """Return memory for the two sums of each channel and part."""
        return torch.empty(self.parts, 2, self.channels, device=like.device)


class StackedNorm(torch.autograd.Function):
    """relu(BatchNorm(x) + shortcut) in training mode; `shortcut` and `relu` are optional.

    It updates the running statistics [S, C] and the numbers of batches [S]. `real`, [S, B], marks padding.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        relu: bool,
        real: Tensor | None,
        running: tuple[Tensor, Tensor, Tensor],
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Return [B, S·C, H, W], channels last."""
        x, shortcut = _channels_last(x), None if shortcut is None else _channels_last(shortcut)
        shape = Shape(x, len(weight), None)
        out, sums = torch.empty_like(x), shape.sums(x)
        statistics = torch.empty(2, shape.channels, device=x.device)
        sizes = shape.pixels, shape.area, shape.batch, shape.features, shape.channels
        launch(_moments, shape.grid, x, real, sums, *sizes, shape.share, MASKED=real is not None, **shape.tile)
        launch(
            _normalise, shape.grid,
            x, shortcut, weight, bias, real, sums, *running, statistics, out, *sizes, shape.parts, shape.share, eps,
            momentum, TRAINING=True, MASKED=real is not None, SHORTCUT=shortcut is not None, RELU=relu, **shape.tile,
            **shape.adding,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, statistics, out if relu and shortcut is not None else None, real)
        ctx.shape, ctx.relu, ctx.shortcut = shape, relu, shortcut is not None
        return out

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input, the weight, the bias and the shortcut."""
        x, weight, bias, statistics, out, real = ctx.saved_tensors
        grad, shape, relu = _channels_last(grad), ctx.shape, ctx.relu
        sums, dx = shape.sums(x), torch.empty_like(x)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
        slope = torch.empty_like(x) if ctx.shortcut else None
        launch(
            _slope_moments, shape.grid,
            grad, out, x, weight, bias, statistics, sums, slope, shape.pixels, shape.features, shape.channels,
            shape.share, SHORTCUT=ctx.shortcut, RELU=relu, **shape.tile,
        )  # fmt: skip
        sizes = shape.pixels, shape.area, shape.batch, shape.features, shape.channels
        launch(
            _slopes, shape.grid,
            grad if slope is None else slope, x, weight, bias, real, statistics, sums, dx, dweight, dbias, *sizes,
            shape.parts, shape.share, MASKED=real is not None, RELU=relu and slope is None, **shape.tile,
            **shape.adding,
        )  # fmt: skip
        return dx, dweight, dbias, slope, None, None, None, None, None


def normalise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None,
    relu: bool,
    running: tuple[Tensor, Tensor],
    eps: float,
) -> Tensor:
    """Return relu(BatchNorm(x) + shortcut) with running statistics, without gradients."""
    x, shortcut = _channels_last(x), None if shortcut is None else _channels_last(shortcut)
    shape = Shape(x, len(weight), triton.cdiv(x.numel(), 2**16))
    out = torch.empty_like(x)
    launch(
        _normalise, shape.grid,
        x, shortcut, weight, bias, None, None, *running, None, None, out, shape.pixels, shape.area, shape.batch,
        shape.features, shape.channels, 1, shape.share, eps, 0.0, TRAINING=False, MASKED=False,
        SHORTCUT=shortcut is not None, RELU=relu, PARTS=1, BATCH=1, **shape.tile,
    )  # fmt: skip
    return out


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)
