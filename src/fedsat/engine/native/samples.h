/* Samples, gathered from a dataset. */

#pragma once

#include "vectors.h"


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
