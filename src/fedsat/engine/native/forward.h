/* The forward pass. */

#pragma once

#include "layers.h"


static void convolve(const Layer *l, const real *weight, const real *bias, const vec *in, vec *out, long out_plane,
                     long out_row) {
    Strides s = {in_plane(l), in_row(l), 1, 1, l->kernel_h * l->kernel_w, l->kernel_w, 1, taps(l)};
    long most = SMALLER(l->columns, 4), step = part(l->outputs, most);
    for (long o = 0; o < l->outputs; o += step) {
        long count = SMALLER(step, l->outputs - o);
        for (long y = 0; y < l->rows; y++) {
            for (long x = 0; x < l->columns; x += most)
                tiled(count, SMALLER(most, l->columns - x), in + y * in_row(l) + x, weight + o * s.output, s,
                      l->channels, 0, l->kernel_h, 0, l->kernel_w, out + o * out_plane + y * out_row + x, out_plane, 1,
                      bias ? bias + o : NULL);
            for (long k = o; k < o + count; k++) activate(out + k * out_plane + y * out_row, l->columns, l);
        }
    }
}

/* A linear layer for `blocks` blocks, whose inputs and outputs are `step` vectors apart. */
static void multiply(const Layer *l, const real *weight, const real *bias, const vec *in, vec *out, long blocks,
                     long step) {
    Strides s = {1, 0, 0, step, 1, 0, 0, l->channels};
    long most = SMALLER(blocks, 4), outputs = part(l->outputs, most);
    for (long b = 0; b < blocks; b += most)
        for (long o = 0; o < l->outputs; o += outputs)
            tiled(SMALLER(outputs, l->outputs - o), SMALLER(most, blocks - b), in + b * step, weight + o * s.output, s,
                  l->channels, 0, 1, 0, 1, out + b * step + o, 1, step, bias ? bias + o : NULL);
    for (long b = 0; b < blocks; b++) activate(out + b * step, l->outputs, l);
}

/* Means of windows, from [C, rows, columns] into the next layer's padded input. */
static void pool(const Layer *l, const vec *act, vec *out, long out_plane, long out_row) {
    const real factor = (real)1 / (l->pool * l->pool);
    for (long c = 0; c < l->outputs; c++)
        for (long y = 0; y < l->rows / l->pool; y++)
            for (long x = 0; x < l->columns / l->pool; x++) {
                vec sum = spread(0);
                for (long i = 0; i < l->pool; i++)
                    for (long j = 0; j < l->pool; j++)
                        sum += act[(c * l->rows + y * l->pool + i) * l->columns + x * l->pool + j];
                out[c * out_plane + y * out_row + x] = sum * factor;
            }
}

/* Transpose `width` values of some samples. */
static void load_row(const real *from, long step, long samples, long width, vec *to) {
    if (samples == LANES && width >= LANES) {
        for (long k = 0; k < width; k += LANES) {
            long start = SMALLER(k, width - LANES); /* the last tile overlaps the one before */
            transpose(from + start, step, to + start);
        }
        return;
    }
    for (long k = 0; k < width; k++)
        for (long b = 0; b < samples; b++) ((real *)(to + k))[b] = from[b * step + k];
}

/* Transpose the samples' images into a block with a border of zeros. */
static void load(const Layer *l, const real *x, long sample_step, long samples, vec *in) {
    if (l->pad_h || l->pad_w || samples < LANES) memset(in, 0, in_size(l) * sizeof(vec));
    if (!l->pad_h && !l->pad_w) {
        load_row(x, sample_step, samples, in_size(l), in);
        return;
    }
    for (long c = 0; c < l->channels; c++)
        for (long y = 0; y < l->height; y++)
            load_row(x + (c * l->height + y) * l->width, sample_step, samples, l->width,
                     in + c * in_plane(l) + (y + l->pad_h) * in_row(l) + l->pad_w);
}

/* Run one client's blocks; `at` is the first block's memory, and the blocks are `size` vectors apart. */
static void run_blocks(const Job *job, long client, long first, long blocks, vec *at, long size) {
    const Layer *l = job->layers, *end = l + job->depth;
    for (long b = 0; b < blocks; b++) {
        long start = (first + b) * LANES;
        load(l, job->x + client * job->x_step + start * job->sample_step, job->sample_step,
             SMALLER(LANES, job->batch - start), at + b * size);
    }
    for (; l < end; l++) {
        vec *act = at + in_size(l), *next = act + act_size(l);
        const real *weight = l->weight + client * l->weight_step;
        const real *bias = l->bias ? l->bias + client * l->bias_step : NULL;
        if (is_linear(l) && l->pool == 1)
            multiply(l, weight, bias, at, next, blocks, size);
        else
            for (long b = 0; b < blocks; b++) {
                vec *out = next + b * size;
                long row = l->columns / l->pool, plane = row * (l->rows / l->pool);
                if (l + 1 < end && !is_linear(l + 1)) {
                    if (l[1].pad_h || l[1].pad_w) memset(out, 0, in_size(l + 1) * sizeof(vec));
                    row = in_row(l + 1), plane = in_plane(l + 1);
                    out += l[1].pad_h * row + l[1].pad_w;
                }
                if (l->pool > 1) {
                    convolve(l, weight, bias, at + b * size, act + b * size, l->rows * l->columns, l->columns);
                    pool(l, act + b * size, out, plane, row);
                } else
                    convolve(l, weight, bias, at + b * size, out, plane, row);
            }
        at = next;
    }
    long classes = l[-1].outputs;
    for (long b = 0; b < blocks; b++) {
        long start = (first + b) * LANES, samples = SMALLER(LANES, job->batch - start);
        real *logits = job->logits + client * job->logits_step + start * classes;
        for (long k = 0; k < samples; k++)
            for (long o = 0; o < classes; o++) logits[k * classes + o] = ((real *)(at + b * size + o))[k];
    }
}

#define GROUP 4 /* blocks of a task in evaluation */

static void run_forward(void *given, long thread) {
    Job *job = given;
    long size = block_size(job->layers, job->depth), blocks = blocks_of(job->batch);
    long each = job->kept ? blocks : GROUP, parts = (blocks + each - 1) / each;
    for (;;) {
        long task = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (task >= job->clients * parts) return;
        long client = task / parts, first = task % parts * each;
        vec *at = job->kept ? (vec *)(job->kept + client * job->kept_step) : (vec *)job->scratch + thread * GROUP * size;
        run_blocks(job, client, first, SMALLER(each, blocks - first), at, size);
    }
}
