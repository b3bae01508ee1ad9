/* The backward pass: gradients of the weights, or a step along them in place. */

#pragma once

#include "layers.h"


INLINE real total(vec v) {
    real sum = 0;
    for (long k = 0; k < LANES; k++) sum += v[k];
    return sum;
}

/* Where the gradients of a client's weights go, or the step along them. */
typedef struct {
    real rate;
    const real *weight, *pull;
    real *to;
} Target;

INLINE Target further(Target t, long count) {
    return (Target){t.rate, t.weight + count, t.pull ? t.pull + count : NULL, t.to + count};
}

static void put(Target t, long k, real slope) {
    t.to[k] = t.rate ? t.weight[k] - t.rate * (t.pull ? slope + t.pull[k] : slope) : slope;
}

/* sums[o][tap] += slope[o] * in[tap], over the pixels of a band of rows; taps are neighbours in a row */
INLINE void slope_tile(const int outputs, const int count, const vec *in, long row_in, const vec *slope, long plane,
                       long row, long rows, long columns, vec *sums, long step) {
    vec sum[4][5];
#pragma GCC unroll 4
    for (int o = 0; o < outputs; o++)
#pragma GCC unroll 5
        for (int t = 0; t < count; t++) sum[o][t] = sums[o * step + t];
    for (long y = 0; y < rows; y++)
        for (long x = 0; x < columns; x++) {
            const vec *at = in + y * row_in + x;
            vec values[5];
#pragma GCC unroll 5
            for (int t = 0; t < count; t++) values[t] = at[t];
#pragma GCC unroll 4
            for (int o = 0; o < outputs; o++) {
                vec g = slope[o * plane + y * row + x];
#pragma GCC unroll 5
                for (int t = 0; t < count; t++) sum[o][t] += g * values[t];
            }
        }
#pragma GCC unroll 4
    for (int o = 0; o < outputs; o++)
#pragma GCC unroll 5
        for (int t = 0; t < count; t++) sums[o * step + t] = sum[o][t];
}

#if MOST == 24
#define SLOPE_OUTPUTS 4
#else
#define SLOPE_OUTPUTS 2
#endif
#define SLOPE_TAPS 5
#define SLOPE_TILE(o, t) \
    case 8 * o + t: slope_tile(o, t, in, row_in, slope, plane, row, rows, columns, sums, step); break;
#define SLOPE_TILES(o) SLOPE_TILE(o, 1) SLOPE_TILE(o, 2) SLOPE_TILE(o, 3) SLOPE_TILE(o, 4) SLOPE_TILE(o, 5)

static void slope_tiled(long outputs, long count, const vec *in, long row_in, const vec *slope, long plane, long row,
                        long rows, long columns, vec *sums, long step) {
    switch (8 * outputs + count) {
        SLOPE_TILES(1) SLOPE_TILES(2)
#if MOST == 24
        SLOPE_TILES(3) SLOPE_TILES(4)
#endif
    }
}

/* Add a block's gradient of a convolution's weights to sums [outputs, taps]; slope has rows of `row` vectors. */
static void add_slopes(const Layer *l, const vec *in, const vec *slope, long row, vec *sums) {
    long plane = l->rows * row, band = LARGER(1, (1 << 15) / (SLOPE_OUTPUTS * row * BYTES));
    for (long y = 0; y < l->rows; y += band)
        for (long o = 0; o < l->outputs; o += SLOPE_OUTPUTS)
            for (long c = 0; c < l->channels; c++)
                for (long i = 0; i < l->kernel_h; i++)
                    for (long j = 0; j < l->kernel_w; j += SLOPE_TAPS)
                        slope_tiled(SMALLER(SLOPE_OUTPUTS, l->outputs - o), SMALLER(SLOPE_TAPS, l->kernel_w - j),
                                    in + c * in_plane(l) + (y + i) * in_row(l) + j, in_row(l),
                                    slope + o * plane + y * row, plane, row, SMALLER(band, l->rows - y), l->columns,
                                    sums + o * taps(l) + (c * l->kernel_h + i) * l->kernel_w + j, taps(l));
}

/* slope = gradient of the pooled output, times the activation's derivative; with borders of zeros left and right */
static void slope_before(const Layer *l, const vec *end, const vec *act, long act_plane, long act_row, vec *slope,
                         long border) {
    long row = l->columns + 2 * border, k = l->pool, ends = l->columns / k;
    const real factor = (real)1 / (k * k);
    memset(slope, 0, l->outputs * l->rows * row * sizeof(vec));
    for (long c = 0; c < l->outputs; c++)
        for (long y = 0; y < l->rows / k * k; y++) {
            const vec *out = act + c * act_plane + y * act_row;
            const vec *from = end + (c * (l->rows / k) + y / k) * ends;
            vec *to = slope + (c * l->rows + y) * row + border;
            for (long x = 0; x < ends; x++) {
                vec given = from[x] * factor;
                for (long j = 0; j < k; j++, to++, out++) *to = given * derivative(*out, l);
            }
        }
}

/* Gradient of a convolution's input, without the padding. */
static void slope_of_input(const Layer *l, const real *weight, const vec *slope, long border, vec *out) {
    long row = l->columns + 2 * border, kernel = l->kernel_h * l->kernel_w;
    Strides s = {l->rows * row, -row, -1, 1, taps(l), l->kernel_w, 1, kernel};
    long most = SMALLER(l->width, 4), step = part(l->channels, most);
    for (long c = 0; c < l->channels; c += step)
        for (long y = 0; y < l->height; y++) {
            long row_at = y + l->pad_h;
            long top = LARGER(0, row_at - l->rows + 1), bottom = SMALLER(l->kernel_h, row_at + 1);
            for (long x = 0; x < l->width; x += most) {
                long pixels = SMALLER(most, l->width - x), at = x + l->pad_w;
                long left = LARGER(0, at - l->columns + 1), right = SMALLER(l->kernel_w, at + pixels);
                tiled(SMALLER(step, l->channels - c), pixels, slope + row_at * row + at + border, weight + c * kernel, s,
                      l->outputs, top, bottom, left, right, out + (c * l->height + y) * l->width + x,
                      l->height * l->width, 1, NULL);
            }
        }
}

/* rows x LANES sums of slope[o][b] * x[b][i..], then stored or added to the weights; x has `samples` rows */
#define WIDE 4
INLINE void outer(const int outputs, const int wide, const Layer *l, const real *slope, long block, const real *x,
                  long step, long samples, Target t, long left) {
    vec sum[6][4];
#pragma GCC unroll 6
    for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++) sum[o][v] = spread(0);
    for (long b = 0; b < samples; b++) {
        const real *g = slope + b / LANES * block + b % LANES;
        vec values[4];
#pragma GCC unroll 4
        for (int v = 0; v < wide; v++) values[v] = *(const loose *)(x + b * step + v * LANES);
#pragma GCC unroll 6
        for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
            for (int v = 0; v < wide; v++) sum[o][v] += g[o * LANES] * values[v];
    }
    for (int o = 0; o < outputs; o++, t = further(t, l->channels))
        if (left)
            for (long k = 0; k < left; k++) put(t, k, sum[o][0][k]);
        else
#pragma GCC unroll 4
            for (int v = 0; v < wide; v++) {
                vec slope = sum[o][v];
                if (t.rate && t.pull) slope += *(const loose *)(t.pull + v * LANES);
                if (t.rate) slope = *(const loose *)(t.weight + v * LANES) - t.rate * slope;
                *(loose *)(t.to + v * LANES) = slope;
            }
}

#if MOST == 24
#define OUTER 6
#else
#define OUTER 3
#endif
#define OUTER_CASE(o) \
    case o: \
        if (left) outer(o, 1, l, slope, block, x, step, samples, t, left); \
        else if (wide == WIDE) outer(o, WIDE, l, slope, block, x, step, samples, t, 0); \
        else outer(o, 1, l, slope, block, x, step, samples, t, 0); \
        break;

static void outer_product(long outputs, long wide, const Layer *l, const real *slope, long block, const real *x,
                          long step, long samples, Target t, long left) {
    switch (outputs) {
        OUTER_CASE(1) OUTER_CASE(2) OUTER_CASE(3)
#if MOST == 24
        OUTER_CASE(4) OUTER_CASE(5) OUTER_CASE(6)
#endif
    }
}

/* Gradient of a linear layer's weights from slopes (blocks are `block` values apart) and the rows of its input. */
static void slopes_of_linear(const Layer *l, const real *slope, long block, const real *x, long step, long samples,
                             Target t, real *tail) {
    long width = l->channels, full = width / LANES * LANES, left = width - full;
    for (long b = 0; b < samples && left; b++) memcpy(tail + b * LANES, x + b * step + full, left * sizeof(real));
    for (long o = 0; o < l->outputs; o += OUTER, t = further(t, OUTER * width)) {
        long count = SMALLER(OUTER, l->outputs - o), i = 0;
        const real *own = slope + o * LANES;
        for (; i < full; i += (full - i >= WIDE * LANES ? WIDE : 1) * LANES)
            outer_product(count, full - i >= WIDE * LANES ? WIDE : 1, l, own, block, x + i, step, samples,
                          further(t, i), 0);
        if (left) outer_product(count, 1, l, own, block, tail, LANES, samples, further(t, full), left);
    }
}

/* Vectors of scratch memory for the backward pass of a thread: two gradients, slopes, sums, and rows with a tail. */
static void scratch_sizes(const Layer *layers, long depth, long blocks, long *end, long *slope, long *sums, long *rows) {
    *end = *slope = *sums = *rows = 0;
    for (const Layer *l = layers; l < layers + depth; l++) {
        *end = LARGER(*end, LARGER(end_size(l), l->channels * l->height * l->width) * blocks);
        *slope = LARGER(*slope, l->outputs * l->rows * (l->columns + 2 * (l->kernel_w - 1)) * blocks);
        if (is_linear(l)) *rows = LARGER(*rows, (l->channels + LANES) * blocks);
        else *sums = LARGER(*sums, l->outputs * taps(l));
    }
}

/* A layer in the backward pass of a client. */
typedef struct {
    const Layer *l;
    long blocks, batch;
    const vec *in; /* the layer's input; blocks are `size` vectors apart */
    long size;
    vec *slope;    /* gradient before the activation; [outputs, rows, row], with a border left and right, for each block */
    long border, row, plane, each;
} Place;

/* Fill `slope` from the gradient of the layer's end, [outputs, rows, columns] after pooling. */
static void fill_slopes(const Place *p, const vec *end, int is_last) {
    const Layer *l = p->l;
    for (long b = 0; b < p->blocks; b++) {
        const vec *act = p->in + in_size(l) + b * p->size;
        long act_row = l->columns, act_plane = l->rows * l->columns;
        if (l->pool == 1 && !is_last && !is_linear(l + 1)) { /* the next layer's padded input */
            act_row = in_row(l + 1), act_plane = in_plane(l + 1);
            act += l[1].pad_h * act_row + l[1].pad_w;
        }
        slope_before(l, end + b * end_size(l), act, act_plane, act_row, p->slope + b * p->each, p->border);
    }
}

/* Gradient of the layer's input, [channels, height, width]. */
static void slopes_of_inputs(const Place *p, const real *weight, vec *out) {
    const Layer *l = p->l;
    long inputs = l->channels * l->height * l->width;
    if (!is_linear(l)) {
        for (long b = 0; b < p->blocks; b++)
            slope_of_input(l, weight, p->slope + b * p->each, p->border, out + b * inputs);
        return;
    }
    Strides s = {1, 0, 0, p->each, l->channels, 0, 0, 1};
    long most = SMALLER(p->blocks, 4), step = part(l->channels, most);
    for (long b = 0; b < p->blocks; b += most)
        for (long i = 0; i < l->channels; i += step)
            tiled(SMALLER(step, l->channels - i), SMALLER(most, p->blocks - b), p->slope + b * p->each, weight + i, s,
                  l->outputs, 0, 1, 0, 1, out + b * inputs + i, 1, inputs, NULL);
}

/* Gradient of a linear layer's weights; `x` are the rows of its input, or NULL: then they are copied to `rows`. */
static void linear_slopes(const Place *p, const real *x, long step, real *rows, real *tail, Target to) {
    const Layer *l = p->l;
    if (!x) {
        for (long b = 0; b < p->batch; b++)
            for (long i = 0; i < l->channels; i++)
                rows[b * l->channels + i] = ((const real *)(p->in + b / LANES * p->size + i))[b % LANES];
        x = rows, step = l->channels;
    }
    slopes_of_linear(l, (const real *)p->slope, p->each * LANES, x, step, p->batch, to, tail);
}

/* Gradient of a convolution's weights. */
static void convolution_slopes(const Place *p, vec *sums, Target to) {
    const Layer *l = p->l;
    memset(sums, 0, l->outputs * taps(l) * sizeof(vec));
    for (long b = 0; b < p->blocks; b++)
        add_slopes(l, p->in + b * p->size, p->slope + b * p->each + p->border, p->row, sums);
    for (long k = 0; k < l->outputs * taps(l); k++) put(to, k, total(sums[k]));
}

static void bias_slopes(const Place *p, Target to) {
    for (long o = 0; o < p->l->outputs; o++) {
        vec sum = spread(0);
        for (long b = 0; b < p->blocks; b++)
            for (long k = 0; k < p->plane; k++) sum += p->slope[b * p->each + o * p->plane + k];
        put(to, o, total(sum));
    }
}

/* Transpose the gradient of a client's logits, [B, m], into blocks. */
static void load_slopes(const real *logits, long batch, long classes, vec *end) {
    memset(end, 0, blocks_of(batch) * classes * sizeof(vec));
    for (long k = 0; k < batch; k++)
        for (long o = 0; o < classes; o++)
            ((real *)end)[(k / LANES * classes + o) * LANES + k % LANES] = logits[k * classes + o];
}

static void run_client_back(const Job *job, long client, vec *scratch) {
    long blocks = blocks_of(job->batch), size = block_size(job->layers, job->depth), ends, slopes, sums_size, rows_size;
    scratch_sizes(job->layers, job->depth, blocks, &ends, &slopes, &sums_size, &rows_size);
    vec *end = scratch, *other = end + ends, *slope = other + ends, *sums = slope + slopes;
    real *rows = (real *)(sums + sums_size), *tail = rows + (rows_size - blocks * LANES) * LANES;
    const vec *in = (const vec *)(job->kept + client * job->kept_step);
    const Layer *l = job->layers, *last = l + job->depth - 1;
    for (; l < last; l++) in += in_size(l) + act_size(l);
    load_slopes(job->logits + client * job->logits_step, job->batch, l->outputs, end);
    for (;;) {
        const int is_first = l == job->layers;
        const real *weight = l->weight + client * l->weight_step;
        long border = is_first || is_linear(l) ? 0 : l->kernel_w - 1, row = l->columns + 2 * border;
        Place p = {l, blocks, job->batch, in, size, slope, border, row, l->rows * row, l->outputs * l->rows * row};
        fill_slopes(&p, end, l == last);
        if (!is_first) slopes_of_inputs(&p, weight, other); /* before the weights change */
        if (l->weight_slope) {
            Target to = {(real)l->rate, weight, l->weight_pull ? l->weight_pull + client * l->weight_pull_step : NULL,
                         l->weight_slope + client * l->weight_slope_step};
            const real *x = is_first ? job->x + client * job->x_step : NULL;
            if (is_linear(l)) linear_slopes(&p, x, job->sample_step, rows, tail, to);
            else convolution_slopes(&p, sums, to);
        }
        if (l->bias_slope)
            bias_slopes(&p, (Target){(real)l->rate, l->bias + client * l->bias_step,
                                     l->bias_pull ? l->bias_pull + client * l->bias_pull_step : NULL,
                                     l->bias_slope + client * l->bias_slope_step});
        if (is_first) return;
        vec *swap = end;
        end = other, other = swap;
        l--;
        in -= in_size(l) + act_size(l);
    }
}

static long back_size(const Layer *layers, long depth, long batch) {
    long ends, slopes, sums, rows;
    scratch_sizes(layers, depth, blocks_of(batch), &ends, &slopes, &sums, &rows);
    return 2 * ends + slopes + sums + rows;
}

static void run_backward(void *given, long thread) {
    Job *job = given;
    vec *scratch = (vec *)job->scratch + thread * back_size(job->layers, job->depth, job->batch);
    for (;;) {
        long client = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (client >= job->clients) return;
        run_client_back(job, client, scratch);
    }
}
