/* Vectors: the same value of LANES samples. Compiled with -DREAL=float or double. */

#pragma once

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
