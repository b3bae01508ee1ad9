/* Networks of convolutions and linear layers, for the stacked weights of many clients.
 *
 * A vector holds the same value of LANES samples, so a weight is a scalar and every multiplication fills a register,
 * however few channels a layer has. LANES samples are a block. Activations of a block are [C, H, W, LANES], with a
 * border of zeros where the next convolution pads its input. A linear layer is a convolution of an image of one pixel.
 *
 * Clients are independent, and sums have a fixed order: results depend neither on the number of threads nor on which
 * clients are in the stack. Compiled with -DREAL=float or double.
 */

#include "backward.h"
#include "forward.h"
#include "loss.h"
#include "samples.h"

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
