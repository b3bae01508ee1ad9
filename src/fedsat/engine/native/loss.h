/* The prediction-sensitive loss. */

#pragma once

#include "vectors.h"


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
