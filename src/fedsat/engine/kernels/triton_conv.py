"""Convolutions of many clients at once, with one Triton kernel per direction.

cuDNN runs a grouped convolution with a few large groups group by group, with copies before and after. Here each
direction is one implicit matrix product over all clients. It runs on tensor cores with float32 sums, and reads and
writes folded activations in any memory format. The factors are bf16 or float32. float32 is rounded to TF32 if torch
allows it for cuDNN (torch.backends.cudnn.allow_tf32, on by default).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsat.engine.kernels import without_second_derivative

PROCESSORS = 132
"""Multiprocessors of a Hopper GPU. With fewer programs, smaller tiles or a split keep all of them busy."""

FEW = 16
"""With at most this many channels, products run over pairs of tap and channel to fill the tensor cores."""


@triton.jit
def _pixels(
    image,
    place,
    channel,
    down,
    right,
    valid,
    in_height,
    in_width,
    out_height,
    out_width,
    image_sample,
    image_channel,
    image_row,
    image_column,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Load image[pixel of output `place` under the tap (down, right), channel], or 0 outside the image.

    With TRANSPOSED, load the pixel from which a strided convolution reaches `place`: the gradient of the input.
    """
    sample = place // (out_height * out_width)
    row = (place // out_width) % out_height
    across = place % out_width
    if TRANSPOSED:
        above, left = row + PAD - down, across + PAD - right
        source_row, source_column = above // STRIDE, left // STRIDE
        inside = (above >= 0) & (left >= 0) & (above % STRIDE == 0) & (left % STRIDE == 0)
    else:
        source_row, source_column = row * STRIDE - PAD + down, across * STRIDE - PAD + right
        inside = (source_row >= 0) & (source_column >= 0)
    inside = inside & (source_row < in_height) & (source_column < in_width)
    base = sample * image_sample + source_row * image_row + source_column * image_column
    return tl.load(image + base + channel * image_channel, mask=inside & valid, other=0.0)


@triton.jit
def _places(place, height, width, sample_stride, row_stride, column_stride, EVEN: tl.constexpr):
    """Return the memory offset of pixel number `place`; EVEN if all pixels have the same distance in memory."""
    if EVEN:
        return place * column_stride
    sample, row, column = place // (height * width), (place // width) % height, place % width
    return sample * sample_stride + row * row_stride + column * column_stride


@triton.jit
def _pair(number, channels, TAPS: tl.constexpr, PLANES: tl.constexpr):
    """Return the tap and the channel of a pair, in an order in which neighbours are adjacent in memory."""
    if PLANES:
        return number % TAPS, number // TAPS
    return number // channels, number % channels


@triton.jit
def _gather_product(
    image,
    weights,
    out,
    pixels,
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
    depth_stride,
    output_stride,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    NARROW: tl.constexpr,
    PLANES: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[p, s·O + o] = Σ_{kh, kw, c} image[pixel of p under (kh, kw), s·C + c] · weights[s, kh, kw][c, o].

    The sum runs tap by tap or, with few channels (NARROW), over all pairs of tap and channel at once.
    """
    client = tl.program_id(2)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    own = weights + client * KERNEL * KERNEL * depth * outputs
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for block in range(1 if NARROW else KERNEL * KERNEL):
        for first in range(0, KERNEL * KERNEL * depth if NARROW else depth, DEPTH):
            if NARROW:
                tap, channel = _pair(first + inner, depth, KERNEL * KERNEL, PLANES)
                there = first + inner < KERNEL * KERNEL * depth
                a = _pixels(
                    image + client * depth * image_channel, place[:, None], channel[None, :], (tap // KERNEL)[None, :],
                    (tap % KERNEL)[None, :], (place < pixels)[:, None] & there[None, :], in_height,
                    in_width, out_height, out_width, image_sample, image_channel, image_row, image_column, STRIDE, PAD,
                    TRANSPOSED,
                )  # fmt: skip
                behind = tap[:, None] * depth * outputs + channel[:, None] * depth_stride
                there = there[:, None]
            else:
                channel = first + inner
                a = _pixels(
                    image + client * depth * image_channel, place[:, None], channel[None, :], block // KERNEL,
                    block % KERNEL, (place < pixels)[:, None] & (channel < depth)[None, :], in_height, in_width,
                    out_height, out_width, image_sample, image_channel, image_row, image_column, STRIDE, PAD,
                    TRANSPOSED,
                )  # fmt: skip
                behind = block * depth * outputs + channel[:, None] * depth_stride
                there = (channel < depth)[:, None]
            b = tl.load(
                own + behind + column[None, :] * output_stride, mask=there & (column < outputs)[None, :], other=0.0
            )
            total = tl.dot(a, b, total, input_precision=PRECISION)
    behind = _places(place, out_height, out_width, out_sample, out_row, out_column, EVEN)
    target = out + behind[:, None] + (client * outputs + column)[None, :] * out_channel
    tl.store(target, total.to(out.dtype.element_ty), mask=(place < pixels)[:, None] & (column < outputs)[None, :])


@triton.jit(do_not_specialize=["split"])  # depends on the number of clients
def _weight_product(
    image,
    slope,
    out,
    pixels,
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
    NARROW: tl.constexpr,
    PLANES: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[part, s, kh, kw, c, o] = Σ_p image[pixel of p under (kh, kw), s·C + c] · slope[p, s·O + o].

    Each part sums over its share of the pixels. The parts are added afterwards in a fixed order. A program handles some
    channels of one tap or, with few channels (NARROW), some pairs of tap and channel.
    """
    clients = tl.num_programs(2) // split
    client = tl.program_id(2) % clients
    part = tl.program_id(2) // clients
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if NARROW:
        pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        tap, channel = _pair(pair, inputs, KERNEL * KERNEL, PLANES)
        there = pair < KERNEL * KERNEL * inputs
        down, right = (tap // KERNEL)[:, None], (tap % KERNEL)[:, None]
    else:
        blocks = tl.cdiv(inputs, ROWS)
        tap = tl.program_id(0) // blocks
        channel = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
        there = channel < inputs
        down, right = tap // KERNEL, tap % KERNEL
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, share, DEPTH):
        place = part * share + first + tl.arange(0, DEPTH)
        a = _pixels(
            image + client * inputs * image_channel, place[None, :], channel[:, None], down, right,
            (place < pixels)[None, :] & there[:, None], in_height, in_width, out_height, out_width, image_sample,
            image_channel, image_row, image_column, STRIDE, PAD, False,
        )  # fmt: skip
        behind = _places(place, out_height, out_width, slope_sample, slope_row, slope_column, EVEN)
        b = tl.load(
            slope + behind[:, None] + (client * outputs + column)[None, :] * slope_channel,
            mask=(place < pixels)[:, None] & (column < outputs)[None, :],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    slot = ((part * clients + client) * KERNEL * KERNEL + tap) * inputs + channel
    target = out + slot[:, None] * outputs + column[None, :]
    tl.store(target, total, mask=there[:, None] & (column < outputs)[None, :])


@dataclass(frozen=True)
class Tile:
    """The block sizes of a program and its launch options, chosen with `benchmarks/tiles.py` on an H200."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """The keyword arguments of a kernel."""
        sizes = {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth}
        return {**sizes, "num_warps": self.warps, "num_stages": self.stages}


def gather_tile(pixels: int, depth: int, outputs: int, clients: int) -> Tile:
    """Return the tile of `gather_product`."""
    if outputs >= 128 and pixels * outputs * clients >= 128 * 128 * PROCESSORS:
        return Tile(128, 128, _block(depth), 4, 3)
    return Tile(128 if pixels * clients >= 128 * PROCESSORS else 64, _block(outputs), _block(depth, 32), 4, 4)


def weight_tile(inputs: int, outputs: int) -> Tile:
    """Return the tile of `weight_product`."""
    return Tile(_block(inputs), _block(outputs, 128), 64, 4, 3)


def _block(channels: int, most: int = 64) -> int:
    """Return the number of channels per program; tensor cores need at least 16."""
    return max(16, min(most, 1 << (channels - 1).bit_length()))


def _even(tensor: Tensor) -> bool:
    """Whether all pixels have the same distance in memory, also across rows and images."""
    (samples, _, rows, columns), (_, _, height, width) = tensor.stride(), tensor.shape
    return rows == width * columns and samples == height * rows


def precision() -> str:
    """Return the precision of float32 products."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


class StackedConvolution(torch.autograd.Function):
    """A square convolution of folded activations [B, S·in, H, W] with weights [S, out, in, k, k], in `kind`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int, kind: torch.dtype, order: torch.memory_format
    ) -> Tensor:
        """Return [B, S·out, H′, W′] in the given memory format; the input may have any."""
        clients, outputs, _, kernel, _ = weight.shape
        x = x.to(kind)
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in x.shape[2:])
        # [S, kh, kw, in, out]: the weights of a program are contiguous.
        taps = weight.to(kind).permute(0, 3, 4, 2, 1).contiguous()
        shape = len(x), clients * outputs, height, width
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)
        gather_product(x, taps, out, stride, padding, transposed=False)
        ctx.save_for_backward(x, taps)
        ctx.geometry = stride, padding, weight.dtype
        return out

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of the weights."""
        x, taps = ctx.saved_tensors
        stride, padding, dtype = ctx.geometry
        grad = grad.to(x.dtype)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            gather_product(grad, taps.transpose(3, 4), dx, stride, padding, transposed=True)
        if ctx.needs_input_grad[1]:
            dw = weight_product(x, grad, taps.shape, stride, padding).permute(0, 4, 3, 1, 2).to(dtype)
        return dx, dw, None, None, None, None


def gather_product(image: Tensor, taps: Tensor, out: Tensor, stride: int, padding: int, *, transposed: bool) -> None:
    """Compute `out` from `image` and taps [S, kh, kw, C, O]; see the kernel."""
    clients, kernel, _, depth, outputs = taps.shape
    pixels = len(out) * out.shape[2] * out.shape[3]
    narrow = depth < FEW
    tile = gather_tile(pixels, kernel * kernel * depth if narrow else depth, outputs, clients)
    grid = (triton.cdiv(pixels, tile.rows), triton.cdiv(outputs, tile.columns), clients)
    _gather_product[grid](
        image, taps, out, pixels, *image.shape[2:], *out.shape[2:], depth, outputs, *image.stride(), *out.stride(),
        taps.stride(3), taps.stride(4), KERNEL=kernel, STRIDE=stride, PAD=padding, TRANSPOSED=transposed,
        NARROW=narrow, PLANES=image.stride(1) != 1, EVEN=_even(out), PRECISION=precision(), **tile.options,
    )  # fmt: skip


def weight_product(image: Tensor, slope: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
    """Return the gradient of taps [S, kh, kw, C, O]; see the kernel."""
    clients, kernel, _, inputs, outputs = shape
    pixels = len(slope) * slope.shape[2] * slope.shape[3]
    narrow, taps = inputs < FEW, kernel * kernel
    tile = weight_tile(taps * inputs if narrow else inputs, outputs)
    blocks = triton.cdiv(taps * inputs, tile.rows) if narrow else taps * triton.cdiv(inputs, tile.rows)
    programs = blocks * triton.cdiv(outputs, tile.columns) * clients
    wanted = (4 if tile.columns <= 64 else 2) * PROCESSORS
    split = max(1, min(triton.cdiv(wanted, programs), pixels // (4 * tile.depth)))
    share = triton.cdiv(triton.cdiv(pixels, split), tile.depth) * tile.depth
    parts = torch.empty(split, *shape, device=image.device)
    grid = (blocks, triton.cdiv(outputs, tile.columns), clients * split)
    _weight_product[grid](
        image, slope, parts, pixels, *image.shape[2:], *slope.shape[2:], inputs, outputs, *image.stride(),
        *slope.stride(), share, split, KERNEL=kernel, STRIDE=stride, PAD=padding, NARROW=narrow,
        PLANES=image.stride(1) != 1, EVEN=_even(slope), PRECISION=precision(), **tile.options,
    )  # fmt: skip
    return parts[0] if split == 1 else parts.sum(0)
