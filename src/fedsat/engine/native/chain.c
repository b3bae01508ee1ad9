/* Networks of convolutions and linear layers, for the stacked weights of many clients.
 *
 * A vector holds the same value of LANES samples, so a weight is a scalar and every multiplication fills a register,
 * however few channels a layer has. LANES samples are a block. Activations of a block are [C, H, W, LANES], with a
 * border of zeros where the next convolution pads its input. A linear layer is a convolution of an image of one pixel.
 *
 * Clients are independent, and sums have a fixed order: results depend neither on the number of threads nor on which
 * clients are in the stack. Compiled with -DREAL=float or double.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define BYTES 64
#define MOST 24 /* sums that fit into registers */
#elif defined(__AVX__)
#define BYTES 32
#define MOST 12
#else
#define BYTES 16
#define MOST 12
#endif

typedef REAL real;
#define LANES ((long)(BYTES / sizeof(real)))
typedef real vec __attribute__((vector_size(BYTES)));
typedef real loose __attribute__((vector_size(BYTES), aligned(sizeof(real)))); /* not aligned in memory */
typedef __typeof__(__builtin_choose_expr(sizeof(real) == 4, (int32_t)0, (int64_t)0)) integer;
typedef integer ints __attribute__((vector_size(BYTES)));

#define INLINE static inline __attribute__((always_inline))
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

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
static int is_linear(const Layer *l) { return l->height * l->width == 1; }
static long blocks_of(long batch) { return (batch + LANES - 1) / LANES; }

/* Vectors that a block keeps: for each layer its padded input and, if it is pooled, its output; then the logits. */
static long block_size(const Layer *layers, long depth) {
    long size = layers[depth - 1].outputs;
    for (long n = 0; n < depth; n++) size += in_size(&layers[n]) + act_size(&layers[n]);
    return size;
}

/* --- elementwise ---------------------------------------------------------------------------------------------- */

INLINE vec spread(real value) { return value - (vec){0}; }

INLINE vec pick(ints mask, vec yes, vec no) { return (vec)(((ints)yes & mask) | ((ints)no & ~mask)); }

/* exp(x) = 2^n exp(r) with |r| <= log(2)/2, and the Taylor series of exp(r). */
INLINE vec exponential(vec x) {
    const int single = sizeof(real) == 4;
    const real low = single ? -87 : -708, high = single ? 88 : 709;
    x = pick(x < spread(low), spread(low), x);
    x = pick(x > spread(high), spread(high), x);
    const real magic = single ? 12582912.f : 6755399441055744.0; /* adding it rounds to an integer */
    vec n = (x * (real)1.4426950408889634 + magic) - magic;
    vec r = x - n * (real)(single ? 0.693359375 : 0.6931471803691238);
    r -= n * (real)(single ? -2.12194440e-4 : 1.9082149292705877e-10);
    vec sum = spread(1);
    for (int k = single ? 8 : 14; k > 0; k--) sum = sum * r * (real)(1.0 / k) + 1;
    ints power = __builtin_convertvector(n, ints) + (single ? 127 : 1023);
    return sum * (vec)(power << (single ? 23 : 52));
}

INLINE vec tanh_of(vec x) {
    if (sizeof(real) == 8) return 1 - 2 / (exponential(2 * x) + 1);
    /* The quotient of polynomials that Eigen and XLA use; its error is a few units in the last place. */
    const real most = 7.90531110763549805f;
    x = pick(x < spread(-most), spread(-most), x);
    x = pick(x > spread(most), spread(most), x);
    vec y = x * x;
    vec p = y * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = p * y - 8.60467152213735e-11f;
    p = p * y + 5.12229709037114e-08f;
    p = p * y + 1.48572235717979e-05f;
    p = p * y + 6.37261928875436e-04f;
    p = p * y + 4.89352455891786e-03f;
    vec q = y * 1.19825839466702e-06f + 1.18534705686654e-04f;
    q = q * y + 2.26843463243900e-03f;
    q = q * y + 4.89352518554385e-03f;
    return x * p / q;
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

/* --- products ------------------------------------------------------------------------------------------------- */

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

/* --- forward -------------------------------------------------------------------------------------------------- */

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

/* Transpose LANES values of LANES samples: halves of growing blocks change places. */
INLINE void transpose(const real *from, long step, vec *to) {
    vec rows[16];
#pragma GCC unroll 16
    for (long b = 0; b < LANES; b++) rows[b] = *(const loose *)(from + b * step);
#pragma GCC unroll 4
    for (long half = 1; half < LANES; half *= 2) {
        ints low, high;
#pragma GCC unroll 16
        for (long k = 0; k < LANES; k++) {
            low[k] = k & half ? LANES + k - half : k;
            high[k] = k & half ? LANES + k : k + half;
        }
#pragma GCC unroll 16
        for (long b = 0; b < LANES; b++)
            if (!(b & half)) {
                vec one = rows[b], other = rows[b + half];
                rows[b] = __builtin_shuffle(one, other, low);
                rows[b + half] = __builtin_shuffle(one, other, high);
            }
    }
#pragma GCC unroll 16
    for (long k = 0; k < LANES; k++) to[k] = rows[k];
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

/* --- backward ------------------------------------------------------------------------------------------------- */

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

static void run_client_back(const Job *job, long client, vec *scratch) {
    long blocks = blocks_of(job->batch), size = block_size(job->layers, job->depth), ends, slopes, sums_size, rows_size;
    scratch_sizes(job->layers, job->depth, blocks, &ends, &slopes, &sums_size, &rows_size);
    vec *end = scratch, *other = end + ends, *slope = other + ends, *sums = slope + slopes;
    real *rows = (real *)(sums + sums_size), *tail = rows + (rows_size - blocks * LANES) * LANES;
    const vec *at = (const vec *)(job->kept + client * job->kept_step); /* the layer's input */
    const Layer *l = job->layers, *last = l + job->depth - 1;
    for (; l < last; l++) at += in_size(l) + act_size(l);
    memset(end, 0, blocks * l->outputs * sizeof(vec));
    for (long k = 0; k < job->batch; k++)
        for (long o = 0; o < l->outputs; o++)
            ((real *)end)[(k / LANES * l->outputs + o) * LANES + k % LANES] =
                job->logits[client * job->logits_step + k * l->outputs + o];
    for (;; l--, at -= in_size(l) + act_size(l)) {
        const real *weight = l->weight + client * l->weight_step;
        Target weights = {(real)l->rate, weight, l->weight_pull ? l->weight_pull + client * l->weight_pull_step : NULL,
                          l->weight_slope + client * l->weight_slope_step};
        Target biases = {(real)l->rate, l->bias + client * l->bias_step,
                         l->bias_pull ? l->bias_pull + client * l->bias_pull_step : NULL,
                         l->bias_slope + client * l->bias_slope_step};
        int needs_input = l > job->layers, linear = is_linear(l);
        long border = needs_input && !linear ? l->kernel_w - 1 : 0, row = l->columns + 2 * border;
        long plane = l->rows * row, each = l->outputs * plane, inputs = l->channels * l->height * l->width;
        for (long b = 0; b < blocks; b++) {
            const vec *act = at + in_size(l) + b * size;
            long act_row = l->columns, act_plane = l->rows * l->columns;
            if (l->pool == 1 && l < last && !is_linear(l + 1)) {
                act_row = in_row(l + 1), act_plane = in_plane(l + 1);
                act += l[1].pad_h * act_row + l[1].pad_w;
            }
            slope_before(l, end + b * end_size(l), act, act_plane, act_row, slope + b * each, border);
        }
        for (long b = 0; b < blocks && needs_input; b++)
            if (!linear) slope_of_input(l, weight, slope + b * each, border, other + b * inputs);
        if (needs_input && linear) {
            Strides s = {1, 0, 0, each, l->channels, 0, 0, 1};
            long most = SMALLER(blocks, 4), step = part(l->channels, most);
            for (long b = 0; b < blocks; b += most)
                for (long i = 0; i < l->channels; i += step)
                    tiled(SMALLER(step, l->channels - i), SMALLER(most, blocks - b), slope + b * each, weight + i, s,
                          l->outputs, 0, 1, 0, 1, other + b * inputs + i, 1, inputs, NULL);
        }
        if (l->weight_slope && linear) {
            const real *x = job->x + client * job->x_step;
            long step = job->sample_step;
            if (needs_input) {
                for (long b = 0; b < job->batch; b++)
                    for (long i = 0; i < l->channels; i++)
                        rows[b * l->channels + i] = ((const real *)(at + b / LANES * size + i))[b % LANES];
                x = rows, step = l->channels;
            }
            slopes_of_linear(l, (real *)slope, each * LANES, x, step, job->batch, weights, tail);
        } else if (l->weight_slope) {
            memset(sums, 0, l->outputs * taps(l) * sizeof(vec));
            for (long b = 0; b < blocks; b++)
                add_slopes(l, at + b * size, slope + b * each + border, row, sums);
            for (long k = 0; k < l->outputs * taps(l); k++)
                put(weights, k, total(sums[k]));
        }
        for (long o = 0; o < l->outputs && l->bias_slope; o++) {
            vec sum = spread(0);
            for (long b = 0; b < blocks; b++)
                for (long k = 0; k < plane; k++) sum += slope[b * each + o * plane + k];
            put(biases, o, total(sum));
        }
        if (!needs_input) return;
        vec *swap = end;
        end = other, other = swap;
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

/* --- samples -------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *images; /* [N, channels, area] */
    const int64_t *indices;
    const real *factors, *shifts;
    real *out;
    long count, channels, area, next;
} Gathering;

static void run_gather(void *given, long thread) {
    Gathering *g = given;
    (void)thread;
    for (;;) {
        long first = __atomic_fetch_add(&g->next, LANES, __ATOMIC_RELAXED);
        if (first >= g->count) return;
        for (long n = first; n < SMALLER(first + LANES, g->count); n++)
            for (long c = 0; c < g->channels; c++) {
                const uint8_t *restrict from = g->images + (g->indices[n] * g->channels + c) * g->area;
                real *restrict to = g->out + (n * g->channels + c) * g->area;
                const real factor = g->factors[c], shift = g->shifts[c];
                for (long k = 0; k < g->area; k++) to[k] = from[k] * factor + shift;
            }
    }
}

/* --- the prediction-sensitive loss ------------------------------------------------------------------------------ */

typedef struct {
    const real *logits;      /* [S, B, m] */
    const int64_t *labels;   /* [S, B] */
    const uint8_t *counted;  /* [S, B] */
    const real *shift;       /* [S, m], or NULL */
    float *mistakes;         /* M, [S, m, m] */
    real *losses, *slopes;   /* [S, B] and [S, B, m] */
    long clients, batch, classes, label_step, label_sample, counted_step, counted_sample;
    double least, most;      /* costs of the rarest and of the most frequent mistake */
    long errors, counting;   /* whether only mistakes are compared, and whether the batch is added to M */
    long next;
} Sensitive;

static long predicted(const real *logits, long classes) {
    long best = 0;
    for (long i = 1; i < classes; i++) best = logits[i] > logits[best] ? i : best;
    return best;
}

static void sensitive_client(const Sensitive *s, long client) {
    const long m = s->classes;
    const real *logits = s->logits + client * s->batch * m, *shift = s->shift ? s->shift + client * m : NULL;
    const int64_t *labels = s->labels + client * s->label_step;
    float *mistakes = s->mistakes + client * m * m, low = INFINITY, high = -INFINITY;
    for (long b = 0; b < s->batch && s->counting; b++)
        if (s->counted[client * s->counted_step + b * s->counted_sample])
            mistakes[labels[b * s->label_sample] * m + predicted(logits + b * m, m)] += 1;
    for (long i = 0; i < m; i++)
        for (long j = 0; j < m; j++)
            if (i != j || !s->errors) {
                low = SMALLER(low, mistakes[i * m + j]);
                high = LARGER(high, mistakes[i * m + j]);
            }
    for (long b = 0; b < s->batch; b++, logits += m) {
        const long label = labels[b * s->label_sample], found = predicted(logits, m);
        real *slope = s->slopes + (client * s->batch + b) * m, top = -INFINITY, sum = 0, cost = 1;
        if (found != label) {
            real share = high > low ? ((real)mistakes[label * m + found] - low) / ((real)high - low) : 0;
            cost = (real)s->least + share * (real)(s->most - s->least);
        }
        for (long i = 0; i < m; i++) {
            slope[i] = logits[i] + (shift && (i != found || found == label) ? shift[i] : 0);
            top = LARGER(top, slope[i]);
        }
        real right = slope[label] - top;
        for (long i = 0; i < m; i++) sum += slope[i] = sizeof(real) == 4 ? expf(slope[i] - top) : exp(slope[i] - top);
        s->losses[client * s->batch + b] = cost * ((real)log(sum) - right);
        for (long i = 0; i < m; i++) slope[i] = cost * (slope[i] / sum - (i == label));
    }
}

static void run_sensitive(void *given, long thread) {
    Sensitive *s = given;
    (void)thread;
    for (;;) {
        long client = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
        if (client >= s->clients) return;
        sensitive_client(s, client);
    }
}

/* --- interface ------------------------------------------------------------------------------------------------ */

typedef int (*Number)(void);
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    void *job;
    void (*run)(void *, long);
    Number number;
} Team;

static void member(void *given) {
    Team *team = given;
    team->run(team->job, team->number());
}

static void share(void *job, void (*run)(void *, long), long threads, Parallel parallel, Number number) {
    Team team = {job, run, number};
    if (threads > 1) parallel(member, &team, (unsigned)threads, 0);
    else run(job, 0);
}

/* Numbers of values to keep in training, and of scratch memory for a thread in evaluation and in the backward pass. */
long kept_size(const Layer *layers, long depth, long clients, long batch) {
    return clients * blocks_of(batch) * block_size(layers, depth) * LANES;
}
long evaluation_scratch(const Layer *layers, long depth) { return GROUP * block_size(layers, depth) * LANES; }
long backward_scratch(const Layer *layers, long depth, long batch) { return back_size(layers, depth, batch) * LANES; }

/* Threads come from torch's own OpenMP library: `parallel` is its GOMP_parallel, `number` its omp_get_thread_num. */
void forward(Job *job, long threads, Parallel parallel, Number number) {
    share(job, run_forward, threads, parallel, number);
}
void backward(Job *job, long threads, Parallel parallel, Number number) {
    share(job, run_backward, threads, parallel, number);
}

/* Gather uint8 images by index, as numbers: value * factor + shift, for each channel. */
void gather(const uint8_t *images, const int64_t *indices, const real *factors, const real *shifts, real *out,
            long count, long channels, long area, long threads, Parallel parallel, Number number) {
    Gathering g = {images, indices, factors, shifts, out, count, channels, area, 0};
    share(&g, run_gather, threads, parallel, number);
}

/* Compute the losses, their slopes along the logits, and M with the batch. */
void sensitive(Sensitive *given, long threads, Parallel parallel, Number number) {
    share(given, run_sensitive, threads, parallel, number);
}
