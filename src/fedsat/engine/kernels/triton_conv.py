"""Convolutions of many clients at once, with one Triton kernel per direction.

cuDNN runs a grouped convolution with a few large groups group by group, with copies before and after. Here each
direction is one implicit matrix product over all clients. It runs on tensor cores with float32 sums, and reads and
writes folded activations in any memory format. The factors are bf16 or float32. float32 is rounded to TF32 if torch
allows it for cuDNN (torch.backends.cudnn.allow_tf32, on by default).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsat.engine.kernels import launch, multiprocessors, without_second_derivative
from fedsat.engine.kernels.tiles import gather_tile, weight_tile
from fedsat.engine.kernels.triton_descend import suits
from fedsat.engine.network import Descent, Parts

FEW = 16
"""With at most this many channels, products run over pairs of tap and channel to fill the tensor cores."""


@triton.jit
def _positions(first, lane, height, width):
    """Return the image, row and column of pixel number `first + lane`, for lanes below 2²¹.

    Only the scalar `first` is divided as an integer, which is slow; for a lane, a product of floats is exact.
    """
    column = first % width + lane
    down = ((column + 0.5) * (1.0 / width)).to(tl.int32)
    row = first // width % height + down
    over = ((row + 0.5) * (1.0 / height)).to(tl.int32)
    return first // (width * height) + over, row - over * height, column - down * width


@triton.jit
def _followed(
    total,
    bias,
    shortcut,
    place,
    channel,
    valid,
    there,
    BIAS: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
):
    """Return relu(total + bias + shortcut), of which each part is optional."""
    if BIAS:
        total += tl.load(bias + channel, mask=valid, other=0.0).to(tl.float32)[None, :]
    if SHORTCUT:
        total += tl.load(shortcut + place, mask=there, other=0.0).to(tl.float32)
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # keeps NaN
    return total


@triton.jit
def _gather_product(
    image,
    weights,
    bias,
    shortcut,
    out,
    samples,
    in_height,
    in_width,
    out_height,
    out_width,
    depth,
    outputs,
    image_sample,
    image_channel,
    image_row,
    image_column,
    out_sample,
    out_channel,
    out_row,
    out_column,
    tap_stride,
    depth_stride,
    output_stride,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BIAS: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[p, s·O + o] = Σ_{kh, kw, c} image[pixel of p under (kh, kw), s·C + c] · weights[s, kh, kw][c, o].

    With TRANSPOSED, the pixel is the one from which a strided convolution reaches p: the gradient of the input. Then
    only every STRIDE-th tap reaches a pixel, and which ones depends on its phase, (row, column) modulo STRIDE. Each
    program computes pixels of one phase.
    """
    phases: tl.constexpr = STRIDE if TRANSPOSED else 1
    client, phase = tl.program_id(2) // (phases * phases), tl.program_id(2) % (phases * phases)
    low, far = phase // phases, phase % phases
    height, width = tl.cdiv(out_height - low, phases), tl.cdiv(out_width - far, phases)
    height, width = tl.maximum(height, 1), tl.maximum(width, 1)  # a phase may have no pixels
    sample, row, across = _positions(tl.program_id(0) * ROWS, tl.arange(0, ROWS), height, width)
    if TRANSPOSED:
        top, left = (low + PAD) % STRIDE, (far + PAD) % STRIDE
        source_row, source_column = row + (low + PAD) // STRIDE, across + (far + PAD) // STRIDE
    else:
        top, left = 0, 0
        source_row, source_column = row * STRIDE - PAD, across * STRIDE - PAD
    if phases == 1:
        downs: tl.constexpr = KERNEL
        rights: tl.constexpr = KERNEL
    else:
        downs, rights = (KERNEL - top + STRIDE - 1) // STRIDE, (KERNEL - left + STRIDE - 1) // STRIDE
    base = client * depth * image_channel
    base += sample * image_sample + source_row * image_row + source_column * image_column
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    own = weights + client * KERNEL * KERNEL * depth * outputs
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    # One loop over taps and channels, so that loads of the next tap overlap with products. Taps run first, because
    # neighbouring taps share most pixels.
    for step in range(downs * rights * tl.cdiv(depth, DEPTH)):
        tap, channel = step % (downs * rights), step // (downs * rights) * DEPTH + inner
        down, right = tap // rights, tap % rights
        behind = (top + down * phases) * KERNEL + left + right * phases
        if TRANSPOSED:
            down, right = -down, -right
        inside = (source_row + down >= 0) & (source_row + down < in_height) & (sample < samples)
        inside = inside & (source_column + right >= 0) & (source_column + right < in_width)
        place = (base + (down * image_row + right * image_column))[:, None] + channel[None, :] * image_channel
        a = tl.load(image + place, mask=inside[:, None] & (channel < depth)[None, :], other=0.0)
        place = behind * tap_stride + channel[:, None] * depth_stride + column[None, :] * output_stride
        b = tl.load(own + place, mask=(channel < depth)[:, None] & (column < outputs)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    row, across = row * phases + low, across * phases + far
    there = (sample < samples) & (row < out_height) & (across < out_width)
    place = sample * out_sample + row * out_row + across * out_column
    valid, channel = column < outputs, client * outputs + column
    place = place[:, None] + channel[None, :] * out_channel
    there = there[:, None] & valid[None, :]
    total = _followed(total, bias, shortcut, place, channel, valid, there, BIAS, SHORTCUT, RELU)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _pair(number, channels, TAPS: tl.constexpr, PLANES: tl.constexpr):
    """Return the tap and the channel of a pair, in an order in which neighbours are adjacent in memory."""
    if PLANES:
        return number % TAPS, number // TAPS
    return number // channels, number % channels


@triton.jit
def _narrow_product(
    image,
    weights,
    bias,
    shortcut,
    out,
    samples,
    in_height,
    in_width,
    out_height,
    out_width,
    depth,
    outputs,
    image_sample,
    image_channel,
    image_row,
    image_column,
    out_sample,
    out_channel,
    out_row,
    out_column,
    tap_stride,
    depth_stride,
    output_stride,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BIAS: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PLANES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`_gather_product` with few channels: the sum runs over all pairs of tap and channel at once."""
    client = tl.program_id(2)
    sample, row, across = _positions(tl.program_id(0) * ROWS, tl.arange(0, ROWS), out_height, out_width)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, KERNEL * KERNEL * depth, DEPTH):
        pair = first + tl.arange(0, DEPTH)
        tap, channel = _pair(pair, depth, KERNEL * KERNEL, PLANES)
        down, right = tap // KERNEL, tap % KERNEL
        inside = (sample < samples)[:, None] & (pair < KERNEL * KERNEL * depth)[None, :]
        if TRANSPOSED:
            above, beside = row[:, None] + PAD - down[None, :], across[:, None] + PAD - right[None, :]
            source_row, source_column = above // STRIDE, beside // STRIDE
            inside = inside & (above >= 0) & (beside >= 0) & (above % STRIDE == 0) & (beside % STRIDE == 0)
        else:
            source_row = row[:, None] * STRIDE - PAD + down[None, :]
            source_column = across[:, None] * STRIDE - PAD + right[None, :]
            inside = inside & (source_row >= 0) & (source_column >= 0)
        inside = inside & (source_row < in_height) & (source_column < in_width)
        place = sample[:, None] * image_sample + source_row * image_row + source_column * image_column
        place += (client * depth + channel)[None, :] * image_channel
        a = tl.load(image + place, mask=inside, other=0.0)
        place = client * KERNEL * KERNEL * depth * outputs + tap[:, None] * tap_stride + channel[:, None] * depth_stride
        there = (pair < KERNEL * KERNEL * depth)[:, None] & (column < outputs)[None, :]
        b = tl.load(weights + place + column[None, :] * output_stride, mask=there, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = sample * out_sample + row * out_row + across * out_column
    valid, channel = column < outputs, client * outputs + column
    place = place[:, None] + channel[None, :] * out_channel
    there = (sample < samples)[:, None] & valid[None, :]
    total = _followed(total, bias, shortcut, place, channel, valid, there, BIAS, SHORTCUT, RELU)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["split"])  # depends on the number of clients
def _weight_product(
    image,
    slope,
    out,
    samples,
    in_height,
    in_width,
    out_height,
    out_width,
    inputs,
    outputs,
    image_sample,
    image_channel,
    image_row,
    image_column,
    slope_sample,
    slope_channel,
    slope_row,
    slope_column,
    share,
    split,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    PLANES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[part, s, kh, kw, c, o] = Σ_p image[pixel of p under (kh, kw), s·C + c] · slope[p, s·O + o].

    Each part sums over its share of the pixels. The parts are added afterwards in a fixed order. A program handles some
    pairs of tap and channel.
    """
    clients = tl.num_programs(2) // split
    client, part = tl.program_id(2) % clients, tl.program_id(2) // clients
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tap, channel = _pair(pair, inputs, KERNEL * KERNEL, PLANES)
    there = pair < KERNEL * KERNEL * inputs
    down, right = tap // KERNEL - PAD, tap % KERNEL - PAD
    behind = (client * inputs + channel) * image_channel + down * image_row + right * image_column
    beside = (client * outputs + column) * slope_channel
    sample, row, across = _positions(part * share, tl.arange(0, DEPTH), out_height, out_width)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for _ in range(0, share, DEPTH):
        source_row, source_column = (row * STRIDE)[None, :] + down[:, None], (across * STRIDE)[None, :] + right[:, None]
        inside = there[:, None] & (sample < samples)[None, :] & (source_row >= 0) & (source_column >= 0)
        inside = inside & (source_row < in_height) & (source_column < in_width)
        place = sample * image_sample + row * (STRIDE * image_row) + across * (STRIDE * image_column)
        a = tl.load(image + place[None, :] + behind[:, None], mask=inside, other=0.0)
        place = sample * slope_sample + row * slope_row + across * slope_column
        inside = (sample < samples)[:, None] & (column < outputs)[None, :]
        b = tl.load(slope + place[:, None] + beside[None, :], mask=inside, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        # The next DEPTH pixels, without a division.
        across += DEPTH % out_width
        over = (across >= out_width).to(tl.int32)
        across -= over * out_width
        row += DEPTH // out_width % out_height + over
        over = (row >= out_height).to(tl.int32)
        row -= over * out_height
        sample += DEPTH // (out_width * out_height) + over
    slot = (part * clients + client) * KERNEL * KERNEL * inputs + tap * inputs + channel
    target = out + slot[:, None] * outputs + column[None, :]
    tl.store(target, total, mask=there[:, None] & (column < outputs)[None, :])


def precision() -> str:
    """Return the precision of float32 products."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


class StackedConvolution(torch.autograd.Function):
    """A square convolution of folded activations [B, S·in, H, W] with weights [S, out, in, k, k], in `kind`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        stride: int,
        padding: int,
        kind: torch.dtype,
        order: torch.memory_format,
        parts: list[Descent] | None = None,
    ) -> Tensor:
        """Return [B, S·out, H′, W′] in the given memory format; the input may have any.

        If `parts` is given, the backward pass appends the gradient of the weights to it, if its layout allows this.
        """
        clients, outputs, _, kernel, _ = weight.shape
        x = x.to(kind)
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in x.shape[2:])
        # [S, kh, kw, in, out]: the weights of a program are contiguous.
        taps = weight.to(kind).permute(0, 3, 4, 2, 1).contiguous()
        shape = len(x), clients * outputs, height, width
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)
        gather_product(x, taps, out, stride, padding)
        ctx.save_for_backward(x, taps, weight)
        ctx.geometry, ctx.parts = (stride, padding), parts
        return out

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of the weights."""
        x, taps, weight = ctx.saved_tensors
        stride, padding = ctx.geometry
        grad = grad.to(x.dtype)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            gather_product(grad, taps.transpose(3, 4), dx, stride, padding, transposed=True)
        if ctx.needs_input_grad[1]:
            parts = weight_product(x, grad, taps.shape, stride, padding)
            if ctx.parts is not None and suits(weight, parts):
                ctx.parts.append(Parts(weight.detach(), parts))
            else:
                dw = parts[0] if len(parts) == 1 else parts.sum(0)
                dw = dw.permute(0, 4, 3, 1, 2).to(weight.dtype)
        return dx, dw, *[None] * 5


def gather_product(
    image: Tensor,
    taps: Tensor,
    out: Tensor,
    stride: int,
    padding: int,
    *,
    transposed: bool = False,
    bias: Tensor | None = None,
    shortcut: Tensor | None = None,
    relu: bool = False,
) -> None:
    """Compute `out` from `image` and taps [S, kh, kw, C, O]; see the kernels.

    What follows in evaluation mode can be included: a bias [S·O], a shortcut with the memory layout of `out`, and ReLU.
    """
    clients, kernel, _, depth, outputs = taps.shape
    height, width = out.shape[2:]
    narrow, phases = depth < FEW, 1
    if transposed and not narrow:
        phases, height, width = stride**2, triton.cdiv(height, stride), triton.cdiv(width, stride)
    pixels = len(out) * height * width
    depths = kernel * kernel * depth if narrow else depth
    tile = gather_tile(pixels, depths, outputs, clients * phases, multiprocessors(image.device))
    grid = (triton.cdiv(pixels, tile.rows), triton.cdiv(outputs, tile.columns), clients * phases)
    planes = {"PLANES": image.stride(1) != 1} if narrow else {}
    launch(
        _narrow_product if narrow else _gather_product, grid,
        image, taps, bias, shortcut, out, len(out), *image.shape[2:], *out.shape[2:], depth, outputs, *image.stride(),
        *out.stride(), *taps.stride()[2:], KERNEL=kernel, STRIDE=stride, PAD=padding, BIAS=bias is not None,
        SHORTCUT=shortcut is not None, RELU=relu, TRANSPOSED=transposed, **planes, PRECISION=precision(),
        **tile.options,
    )  # fmt: skip


def weight_product(image: Tensor, slope: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
    """Return parts of the gradient of taps, [P, S, kh, kw, C, O]; see the kernel."""
    clients, kernel, _, inputs, outputs = shape
    pixels, pairs = len(slope) * slope.shape[2] * slope.shape[3], kernel * kernel * inputs
    tile = weight_tile(pairs, outputs)
    blocks, across = triton.cdiv(pairs, tile.rows), triton.cdiv(outputs, tile.columns)
    programs = (4 if tile.columns <= 64 else 2) * multiprocessors(image.device)
    wanted = triton.cdiv(programs, blocks * across * clients)
    split = max(1, min(wanted, pixels // (4 * tile.depth)))
    share = triton.cdiv(triton.cdiv(pixels, split), tile.depth) * tile.depth
    parts = torch.empty(split, *shape, device=image.device)
    launch(
        _weight_product, (blocks, across, clients * split),
        image, slope, parts, len(slope), *image.shape[2:], *slope.shape[2:], inputs, outputs, *image.stride(),
        *slope.stride(), share, split, KERNEL=kernel, STRIDE=stride, PAD=padding, PLANES=image.stride(1) != 1,
        PRECISION=precision(), **tile.options,
    )  # fmt: skip
    return parts
