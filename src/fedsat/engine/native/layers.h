/* Layers, and the sums of products that they consist of. */

#pragma once

#include "vectors.h"

enum { NONE, TANH, RELU, ELU, SIGMOID };

typedef struct {
    long channels, height, width; /* of the input, without padding */
    long outputs, rows, columns;  /* of the output, before pooling */
    long kernel_h, kernel_w, pad_h, pad_w;
    long activation, pool;
    double alpha;        /* of ELU */
    double rate;         /* 0: store gradients; otherwise, weights -= rate * (gradient + pull) */
    /* Of the first client; those of the next are a step further. */
    const real *weight, *bias;           /* [outputs, channels, kernel_h, kernel_w] and [outputs]; NULL: no bias */
    real *weight_slope, *bias_slope;     /* where to store gradients; NULL: they are not needed */
    const real *weight_pull, *bias_pull; /* terms to add to the gradients, or NULL */
    long weight_step, bias_step, weight_slope_step, bias_slope_step, weight_pull_step, bias_pull_step;
} Layer;

typedef struct {
    const Layer *layers;
    long depth, clients, batch;
    const real *x;      /* [S, B, C, H, W] */
    long x_step, sample_step;
    real *kept;         /* inputs of all layers, for the backward pass; NULL in evaluation */
    long kept_step;
    real *logits;       /* [S, B, m], or their gradient in the backward pass */
    long logits_step;
    real *scratch;      /* of each thread */
    long next;          /* the next task that no thread has taken */
} Job;

static long in_row(const Layer *l) { return l->width + 2 * l->pad_w; }
static long in_plane(const Layer *l) { return (l->height + 2 * l->pad_h) * in_row(l); }
static long in_size(const Layer *l) { return l->channels * in_plane(l); }
static long act_size(const Layer *l) { return l->pool > 1 ? l->outputs * l->rows * l->columns : 0; }
static long end_size(const Layer *l) { return l->outputs * (l->rows / l->pool) * (l->columns / l->pool); }
static long taps(const Layer *l) { return l->channels * l->kernel_h * l->kernel_w; }
static int is_linear(const Layer *l) { return in_plane(l) == 1; } /* one pixel, and no padding */
static long blocks_of(long batch) { return (batch + LANES - 1) / LANES; }

/* Vectors that a block keeps: for each layer its padded input and, if it is pooled, its output; then the logits. */
static long block_size(const Layer *layers, long depth) {
    long size = layers[depth - 1].outputs;
    for (long n = 0; n < depth; n++) size += in_size(&layers[n]) + act_size(&layers[n]);
    return size;
}

INLINE void activate(vec *values, long count, const Layer *l) {
    for (long k = 0; k < count; k++) {
        vec x = values[k];
        switch (l->activation) {
        case TANH: x = tanh_of(x); break;
        case SIGMOID: x = 1 / (1 + exponential(-x)); break;
        case RELU: x = pick(x <= 0, spread(0), x); break;
        case ELU: x = pick(x <= 0, (real)l->alpha * (exponential(x) - 1), x); break;
        }
        values[k] = x;
    }
}

/* The derivative of the activation, from its output. */
INLINE vec derivative(vec out, const Layer *l) {
    switch (l->activation) {
    case TANH: return 1 - out * out;
    case SIGMOID: return out * (1 - out);
    case RELU: return pick(out <= 0, spread(0), spread(1));
    case ELU: return pick(out <= 0, out + (real)l->alpha, spread(1));
    }
    return spread(1);
}


/* Strides of a sum over channels and taps: of the input in vectors, of the weights in values. */
typedef struct {
    long in_channel, in_row, in_column, in_pixel;
    long channel, row, column, output;
} Strides;

/* sums[o][p] += weight[o] * in[p], over all channels and the taps from (top, left) to before (bottom, right) */
INLINE void tile(const int outputs, const int pixels, const vec *in, const real *weight, const Strides s,
                 long channels, long top, long bottom, long left, long right, vec *out, long out_channel,
                 long out_pixel, const real *bias) {
    vec sums[12][4];
#pragma GCC unroll 12
    for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
        for (int p = 0; p < pixels; p++) sums[o][p] = spread(bias ? bias[o] : 0);
    for (long c = 0; c < channels; c++)
        for (long i = top; i < bottom; i++) {
            const vec *at = in + c * s.in_channel + i * s.in_row + left * s.in_column;
            const real *w = weight + c * s.channel + i * s.row + left * s.column;
            for (long j = left; j < right; j++, at += s.in_column, w += s.column) {
                vec values[4];
#pragma GCC unroll 4
                for (int p = 0; p < pixels; p++) values[p] = at[p * s.in_pixel];
#pragma GCC unroll 12
                for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
                    for (int p = 0; p < pixels; p++) sums[o][p] += w[o * s.output] * values[p];
            }
        }
#pragma GCC unroll 12
    for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
        for (int p = 0; p < pixels; p++) out[o * out_channel + p * out_pixel] = sums[o][p];
}

#define TILE(o, p) \
    case 16 * o + p: tile(o, p, in, w, s, channels, top, bottom, left, right, out, out_channel, out_pixel, bias); break;
#define TILES(o) TILE(o, 1) TILE(o, 2) TILE(o, 3) TILE(o, 4)

static void tiled(long outputs, long pixels, const vec *in, const real *w, const Strides s, long channels, long top,
                  long bottom, long left, long right, vec *out, long out_channel, long out_pixel, const real *bias) {
    switch (16 * outputs + pixels) {
        TILES(1) TILES(2) TILES(3)
#if MOST == 24
        TILES(4) TILES(5) TILES(6)
#else
        TILE(4, 1) TILE(4, 2) TILE(4, 3) TILE(5, 1) TILE(5, 2) TILE(6, 1) TILE(6, 2)
#endif
        TILE(7, 1) TILE(8, 1) TILE(9, 1) TILE(10, 1) TILE(11, 1) TILE(12, 1)
    }
}

/* Outputs in a tile: equal parts of at most MOST / pixels. */
static long part(long outputs, long pixels) {
    long most = SMALLER(pixels == 1 ? 12 : 6, MOST / pixels), parts = (outputs + most - 1) / most;
    return (outputs + parts - 1) / parts;
}
