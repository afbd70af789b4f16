/* SPDX-License-Identifier: MIT */
/* Whole normalisations: the same bits on one thread and on several. */
#include "driver.h"
#include "driver_rooms.h"
#include "norm/group_run.h"
#include "norm/run.h"

#include <stdlib.h>
#include <string.h>

typedef struct whole {
    osw_norm_job job;
    bool backward;
    int *runs; /* so far: the first one is on one thread */
} whole;

static void do_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    static uint64_t calls[OSW_NORM_COUNT];
    const whole *w = context;
    const int threads = driver_threads;
    osw_norm_job job = w->job;
    (void)begin, (void)end;
    memcpy(osw_norm_table, table, sizeof osw_norm_table);
    double *scratch = calloc((size_t)osw_norm_prepare(&job), sizeof *scratch);
    if (!scratch)
        abort();
    driver_threads = (*w->runs)++ == 0 ? 1 : 3;
    osw_norm_choose(&job, w->backward, calls);
    (w->backward ? osw_norm_backward : osw_norm_forward)(&job, scratch);
    driver_threads = threads;
    free(scratch);
}

static void check_one(driver *d, osw_norm_form form, bool backward, bool training, int64_t channels)
{
    int runs = 0;
    whole w = {.backward = backward, .runs = &runs};
    osw_norm_job *j = &w.job;
    osw_norm *n = &j->norm;
    *j = (osw_norm_job){.form = form, .dtype = OSW_F32, .training = training, .eps = 1e-5};
    n->images = 5;
    n->positions = 17 * 1024 / channels + driver_below(9);
    n->channels = channels;
    n->activation.kind = driver_below(2) ? OSW_RELU : OSW_IDENTITY;
    const int64_t image = channels * n->positions, count = n->images * image;
    driver_case(d, backward ? "backward" : "forward", "%s, channels %lld, positions %lld%s",
                form == OSW_NORM_PLANES ? "planes" : "pixels", (long long)channels,
                (long long)n->positions, training ? ", training" : "");
    n->x = (osw_norm_tensor){driver_input(d, DRIVER_F32, count), image};
    j->weight = driver_positive(d, channels);
    j->bias = driver_positive(d, channels);
    if (backward || !training) {
        j->mean = driver_positive(d, channels);
        j->var = driver_positive(d, channels);
    } else {
        j->mean = driver_output(d, DRIVER_F64, channels, DRIVER_EXACT);
        j->var = driver_output(d, DRIVER_F64, channels, DRIVER_EXACT);
    }
    if (backward) {
        n->dy = (osw_norm_tensor){driver_input(d, DRIVER_F32, count), image};
        n->dx = (osw_norm_tensor){driver_output(d, DRIVER_F32, count, DRIVER_EXACT), image};
        j->grad_weight = driver_output(d, DRIVER_F64, channels, DRIVER_EXACT);
        j->grad_bias = driver_output(d, DRIVER_F64, channels, DRIVER_EXACT);
    } else {
        n->y = (osw_norm_tensor){driver_output(d, DRIVER_F32, count, DRIVER_EXACT), image};
    }
    driver_run(d, do_whole, &w, 1);
}

typedef struct whole_group {
    osw_group_job job;
    bool backward;
    int *runs; /* so far: the first one is on one thread */
} whole_group;

static void do_group(const void *context, const void *table, int64_t begin, int64_t end)
{
    static uint64_t calls[OSW_NORM_COUNT];
    const whole_group *w = context;
    const int threads = driver_threads;
    osw_group_job job = w->job;
    (void)begin, (void)end;
    memcpy(osw_norm_table, table, sizeof osw_norm_table);
    double *scratch = calloc((size_t)osw_group_prepare(&job), sizeof *scratch);
    if (!scratch)
        abort();
    driver_threads = (*w->runs)++ == 0 ? 1 : 3;
    osw_norm_choose(&job.all, w->backward, calls);
    (w->backward ? osw_group_backward : osw_group_forward)(&job, scratch);
    driver_threads = threads;
    free(scratch);
}

/* Two images of many rows, which threads share, or many small ones. */
static void check_group(driver *d, bool backward, bool large)
{
    int runs = 0;
    whole_group w = {.backward = backward, .runs = &runs};
    osw_norm_job *j = &w.job.all;
    osw_norm *n = &j->norm;
    *j = (osw_norm_job){.form = OSW_NORM_PIXELS, .dtype = OSW_F32, .training = true, .eps = 1e-5};
    n->channels = 12;
    w.job.groups = 3;
    n->images = large ? 2 : 67;
    n->positions = large ? 11000 + driver_below(99) : 1 + driver_below(70);
    const int64_t image = n->channels * n->positions, count = n->images * image;
    const int64_t statistics = n->images * w.job.groups * 2;
    driver_case(d, backward ? "group backward" : "group forward", "images %lld, positions %lld",
                (long long)n->images, (long long)n->positions);
    n->x = (osw_norm_tensor){driver_input(d, DRIVER_F32, count), image};
    j->weight = driver_positive(d, n->channels);
    j->bias = driver_positive(d, n->channels);
    if (backward) {
        w.job.statistics = driver_positive(d, statistics);
        n->dy = (osw_norm_tensor){driver_input(d, DRIVER_F32, count), image};
        n->dx = (osw_norm_tensor){driver_output(d, DRIVER_F32, count, DRIVER_EXACT), image};
        j->grad_weight = driver_output(d, DRIVER_F64, n->channels, DRIVER_EXACT);
        j->grad_bias = driver_output(d, DRIVER_F64, n->channels, DRIVER_EXACT);
    } else {
        w.job.statistics = driver_output(d, DRIVER_F64, statistics, DRIVER_EXACT);
        n->y = (osw_norm_tensor){driver_output(d, DRIVER_F32, count, DRIVER_EXACT), image};
    }
    driver_run(d, do_group, &w, 1);
}

/* Both runs have the kernels of the tier. Few channels have several chunks, many are cut by
 * channels. */
void driver_norm_run(driver *d)
{
    void *scalar = driver_scalar_table;
    driver_scalar_table = memcpy(malloc(sizeof osw_norm_table), d->table, sizeof osw_norm_table);
    d->values = DRIVER_REAL;
    for (int i = 0; i < 8; i++)
        check_one(d, (osw_norm_form)(i % 2), i & 2, i & 4, d->quick || driver_below(2) ? 1 : 7);
    for (int i = 0; i < 4; i++)
        check_group(d, i & 1, i & 2);
    free(driver_scalar_table);
    driver_scalar_table = scalar;
}
