/* SPDX-License-Identifier: MIT */
/* Whole layer normalisations: the same bits on one thread and on several. */
#include "driver.h"
#include "driver_rooms.h"
#include "layer_norm/run.h"

#include <stdlib.h>
#include <string.h>

typedef struct whole {
    osw_layer_norm_job job;
    bool backward;
    int *runs; /* so far: the first one is on one thread */
} whole;

static void do_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    static uint64_t calls[OSW_LAYER_NORM_COUNT];
    const whole *w = context;
    const int threads = driver_threads;
    osw_layer_norm_job job = w->job;
    (void)begin, (void)end;
    memcpy(osw_layer_norm_table, table, sizeof osw_layer_norm_table);
    char *room = malloc(osw_layer_norm_plan(&job, w->backward, calls));
    if (!room)
        abort();
    driver_threads = (*w->runs)++ == 0 ? 1 : 3;
    (w->backward ? osw_layer_norm_backward : osw_layer_norm_forward)(&job, room);
    driver_threads = threads;
    free(room);
}

static void check_one(driver *d, bool backward, osw_dtype dtype, int64_t channels)
{
    const driver_type type = (driver_type)dtype;
    int runs = 0;
    whole w = {.job = {.dtype = dtype}, .backward = backward, .runs = &runs};
    osw_layer_norm_job *j = &w.job;
    osw_layer_norm *n = &j->norm;
    n->channels = channels;
    n->eps = 1e-5;
    j->rows = 70000 / channels + driver_below(9);
    const int64_t count = channels * j->rows;
    driver_case(d, backward ? "whole backward" : "whole forward", "channels %lld, rows %lld",
                (long long)channels, (long long)j->rows);
    n->x = driver_input(d, type, count);
    j->weight = driver_below(3) ? driver_positive(d, channels) : NULL;
    j->bias = driver_below(3) ? driver_positive(d, channels) : NULL;
    if (!backward) {
        n->y = driver_output(d, type, count, DRIVER_EXACT);
        n->statistics = driver_output(d, DRIVER_F64, 2 * j->rows, DRIVER_EXACT);
    } else {
        n->statistics = driver_positive(d, 2 * j->rows);
        n->dy = driver_input(d, type, count);
        n->dx = driver_output(d, type, count, DRIVER_EXACT);
        j->grad_weight = driver_output(d, DRIVER_F64, channels, DRIVER_EXACT);
        j->grad_bias = driver_output(d, DRIVER_F64, channels, DRIVER_EXACT);
    }
    driver_run(d, do_whole, &w, 1);
}

/* Both runs have the kernels of the tier. */
void driver_layer_norm_run(driver *d)
{
    void *scalar = driver_scalar_table;
    driver_scalar_table =
        memcpy(malloc(sizeof osw_layer_norm_table), d->table, sizeof osw_layer_norm_table);
    d->values = DRIVER_REAL;
    for (int i = 0; i < 8; i++)
        check_one(d, i & 1, (osw_dtype)(i / 2), 1 + driver_below(d->quick ? 40 : 400));
    free(driver_scalar_table);
    driver_scalar_table = scalar;
}
