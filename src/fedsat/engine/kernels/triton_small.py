"""Convolutions with few channels, of many clients at once, as Triton kernels without tensor cores.

Tensor cores process 16 channels at a time and need a tile of patches in shared memory. With one, six or sixteen
channels, most of that work is copying pixels. Here each thread reads its pixels directly from memory, plane by plane,
and keeps the sums of all outputs in registers, in plain float32. A program stays within one image, so the compiler
knows that pixels are contiguous and assigns neighbouring pixels to neighbouring threads.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from fedsat.engine.kernels import launch, multiprocessors, without_second_derivative


# If strides were known to be even, tiles would be loaded in different layouts and converted in between.
@triton.jit(do_not_specialize=["image_sample", "image_channel", "out_sample", "out_channel"])
def _slide(
    image,
    weights,
    bias,
    out,
    in_height,
    in_width,
    out_height,
    out_width,
    inputs,
    outputs,
    image_sample,
    image_channel,
    out_sample,
    out_channel,
    weight_client,
    weight_input,
    bias_client,
    WEIGHT_OUTPUT: tl.constexpr,
    WEIGHT_TAP: tl.constexpr,
    KERNEL: tl.constexpr,
    PAD: tl.constexpr,
    FLIPPED: tl.constexpr,
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """out[p, o] = bias[o] + Σ_{kh, kw, c} image[pixel of p under (kh, kw), c] · weights[o, c, kh, kw] for every client.

    FLIPPED rotates the weights by 180°, which computes the gradient of the input from that of the output.
    """
    sample, client = tl.program_id(0), tl.program_id(1)
    place = (tl.program_id(2) * PIXELS + tl.arange(0, PIXELS))[None, :]
    output = tl.arange(0, OUTPUTS)[:, None]
    there, wanted = place < out_height * out_width, output < outputs
    row, column = place // out_width, place % out_width
    seen = image + sample * image_sample + client * inputs * image_channel
    seen = seen + ((row - PAD) * in_width + column - PAD)
    own = weights + client * weight_client + output * WEIGHT_OUTPUT
    total = tl.zeros((OUTPUTS, PIXELS), dtype=tl.float32)
    if BIAS:
        total += tl.load(bias + client * bias_client + output, mask=wanted, other=0.0)
    for _ in range(inputs):
        for down in range(KERNEL):
            # As an unsigned number, a negative row exceeds any height: one comparison instead of two.
            valid = there & ((row + (down - PAD)).to(tl.uint32) < in_height)
            for right in tl.static_range(KERNEL):
                here = valid
                if PAD > 0:
                    here = valid & ((column + (right - PAD)).to(tl.uint32) < in_width)
                x = tl.load(seen + down * in_width + right, mask=here, other=0.0)
                tap = down * KERNEL + right
                behind = (KERNEL * KERNEL - 1 - tap if FLIPPED else tap) * WEIGHT_TAP
                total += x * tl.load(own + behind, mask=wanted, other=0.0)
        seen += image_channel
        own += weight_input
    target = out + sample * out_sample + (client * outputs + output) * out_channel + place
    tl.store(target, total, mask=there & wanted)


@triton.jit(do_not_specialize=["image_sample", "image_channel", "slope_sample", "slope_channel"])
def _correlate(
    image,
    slope,
    weight_slope,
    bias_slope,
    samples,
    height,
    in_height,
    width,
    inputs,
    outputs,
    image_sample,
    image_channel,
    slope_sample,
    slope_channel,
    KERNEL: tl.constexpr,
    PAD: tl.constexpr,
    BIAS: tl.constexpr,
    TAPS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """weight_slope[part, s, kh, kw, c, o] = Σ_p image[pixel of p under (kh, kw), c] · slope[p, o], and bias_slope.

    A program handles all taps of one input channel and some outputs, for every `parts`-th sample. The bias is an
    additional tap with all pixels equal to 1. Rows of the slope are as long as those of the image.
    """
    client, part, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    channel, block = tl.program_id(0) % inputs, tl.program_id(0) // inputs
    tap = tl.arange(0, TAPS)[:, None, None]
    output = (block * OUTPUTS + tl.arange(0, OUTPUTS))[None, :, None]
    down, right = tap // KERNEL - PAD, tap % KERNEL - PAD
    seen = image + (client * inputs + channel) * image_channel + (down * width + right)
    behind = slope + (client * outputs + output) * slope_channel
    total = tl.zeros((TAPS, OUTPUTS, PIXELS), dtype=tl.float32)
    for sample in range(part, samples, parts):
        for first in range(0, height * width, PIXELS):
            place = (first + tl.arange(0, PIXELS))[None, None, :]
            row, column = place // width, place % width
            there = place < height * width
            inside = ((row + down).to(tl.uint32) < in_height) & ((column + right).to(tl.uint32) < width)
            valid = there & inside & (tap < KERNEL * KERNEL)
            x = tl.load(seen + sample * image_sample + place, mask=valid, other=0.0)
            g = tl.load(behind + sample * slope_sample + place, mask=there & (output < outputs), other=0.0)
            total += tl.where(tap == KERNEL * KERNEL, 1.0, x) * g
    summed = tl.sum(total, axis=2)
    tap = tl.arange(0, TAPS)[:, None]
    output = (block * OUTPUTS + tl.arange(0, OUTPUTS))[None, :]
    owner = part * tl.num_programs(1) + client
    slot = ((owner * KERNEL * KERNEL + tap) * inputs + channel) * outputs + output
    tl.store(weight_slope + slot, summed, mask=(tap < KERNEL * KERNEL) & (output < outputs))
    if BIAS:  # the programs of all channels compute the same sum
        slot = owner * outputs + output + 0 * tap
        tl.store(bias_slope + slot, summed, mask=(tap == KERNEL * KERNEL) & (output < outputs))


class SmallConvolution(torch.autograd.Function):
    """A square float32 convolution with stride 1: folded activations [B, S·in, H, W], weights [S, out, in, k, k].

    The result is not larger than the image.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        """Return [B, S·out, H′, W′], contiguous."""
        clients, outputs, _, kernel, _ = weight.shape
        height, width = (side + 2 * padding - kernel + 1 for side in x.shape[2:])
        x = _planes(x)
        if weight.stride(3) != kernel * weight.stride(4):
            weight = weight.contiguous()  # taps must have the same distance in memory, also across rows
        bias = bias if bias is None or bias.stride(1) == 1 else bias.contiguous()
        out = x.new_empty(len(x), clients * outputs, height, width)
        slide(x, weight, bias, out, padding, flipped=False)
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.biased = padding, bias is not None
        return out

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input, the weights and the bias."""
        x, weight = ctx.saved_tensors
        grad, dx = _planes(grad), None
        if ctx.needs_input_grad[0]:
            dx = x.new_empty(x.shape)
            slide(grad, weight.transpose(1, 2), None, dx, weight.shape[-1] - 1 - ctx.padding, flipped=True)
        dw = db = None
        if any(ctx.needs_input_grad[1:3]):
            dw, db = correlate(x, grad, weight.shape, ctx.padding, biased=ctx.biased)
        return dx, dw, db, None


def slide(image: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, padding: int, *, flipped: bool) -> None:
    """Compute `out` from `image` and weights [S, O, C, k, k]; see the kernel."""
    clients, outputs, inputs, kernel, _ = weight.shape
    plane = out.shape[2] * out.shape[3]
    # Each thread has up to four pixels, for which it loads the weights once.
    block = min(256, max(64, triton.next_power_of_2(plane)))
    launch(
        _slide, (len(out), clients, triton.cdiv(plane, block)),
        image, weight, bias, out, *image.shape[2:], *out.shape[2:], inputs, outputs, *image.stride()[:2],
        *out.stride()[:2], weight.stride(0), weight.stride(2), 0 if bias is None else bias.stride(0),
        WEIGHT_OUTPUT=weight.stride(1), WEIGHT_TAP=weight.stride(4), KERNEL=kernel, PAD=padding, FLIPPED=flipped,
        BIAS=bias is not None, OUTPUTS=triton.next_power_of_2(outputs), PIXELS=block, num_warps=2,
    )  # fmt: skip


def correlate(
    image: Tensor, slope: Tensor, shape: torch.Size, padding: int, *, biased: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of weights [S, O, C, k, k], with memory layout [S, k, k, C, O], and of the bias."""
    clients, outputs, inputs, kernel, _ = shape
    height, width = slope.shape[2], image.shape[3]
    if slope.shape[3] < width:
        slope = functional.pad(slope, (0, width - slope.shape[3]))
    block = 2 if outputs < 8 else 4  # outputs per load of the image
    programs = clients * inputs * triton.cdiv(outputs, block)
    parts = max(1, min(len(slope), 8 * multiprocessors(image.device) // programs))
    dw = image.new_empty(parts, clients, kernel, kernel, inputs, outputs)
    db = image.new_empty(parts, clients, outputs) if biased else None
    launch(
        _correlate, (triton.cdiv(outputs, block) * inputs, clients, parts),
        image, slope, dw, db, len(slope), height, image.shape[2], width, inputs, outputs, *image.stride()[:2],
        *slope.stride()[:2], KERNEL=kernel, PAD=padding, BIAS=biased, TAPS=triton.next_power_of_2(kernel * kernel + 1),
        OUTPUTS=block, PIXELS=32, num_warps=1,
    )  # fmt: skip
    return _added(dw).permute(0, 4, 3, 1, 2), None if db is None else _added(db)


def _added(parts: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else parts.sum(0)


def _planes(images: Tensor) -> Tensor:
    """Return the images with contiguous channels."""
    height, width = images.shape[2:]
    return images if images.stride()[2:] == (width, 1) or height * width == 1 else images.contiguous()
