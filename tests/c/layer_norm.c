/* SPDX-License-Identifier: MIT */
/* Layer normalisation of rows: smooth, so that every result has a bound. */
#include "layer_norm/layer_norm.h"
#include "core/ints.h"
#include "driver.h"
#include "driver_contract.h"

#include <stdlib.h>

void driver_layer_norm_run(driver *d); /* of layer_norm_run.c */

enum { CHUNKS = 2 };

typedef struct job {
    osw_layer_norm norm;
    osw_layer_norm_id id;
    int64_t rows, chunk;
    double *sums; /* [chunk][of weight, of bias][channel]; NULL: none */
} job;

/* Units are chunks, with sums and room of their own. */
static void do_units(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    osw_layer_norm_fn *kernel = ((osw_layer_norm_fn *const *)table)[j->id];
    const int64_t channels = j->norm.channels;
    for (int64_t unit = begin; unit < end; unit++) {
        osw_layer_norm n = j->norm;
        if (j->sums) {
            n.of_weight = j->sums + 2 * unit * channels;
            n.of_bias = n.of_weight + channels;
            n.sums = (double *)j->norm.sums + 2 * unit * channels;
        }
        kernel(&n, osw_min_int(unit * j->chunk, j->rows),
               osw_min_int((unit + 1) * j->chunk, j->rows));
    }
}

static driver_type of_arithmetic(driver_type type)
{
    return type == DRIVER_F64 ? DRIVER_F64 : DRIVER_F32;
}

/* {mean, rstd} of rows: the mean with more digits than a float holds, rstd at most 2. */
static double *statistics(driver *d, int64_t rows)
{
    double *values = driver_input(d, DRIVER_F64, 2 * rows);
    for (int64_t r = 0; r < rows; r++) {
        values[2 * r] = (double)(driver_below(9) - 4) / 2 + (double)driver_below(9) * 0x1p-30;
        values[2 * r + 1] = 0.25 * (double)(1 + driver_below(8));
    }
    driver_keep(d, values);
    return values;
}

/* Inputs are at most 7 and of one row differ at least by their deviation, which eps of 1 bounds:
 * |h| is at most 14 in a forward, and 2 * 10 where the statistics are any. A result is within the
 * roundings of its terms and, of sums, those of one lane for each term. */
static void check_one(driver *d, const char *name, osw_layer_norm_id id, driver_type type,
                      int64_t channels, int64_t rows)
{
    const bool backward = id >= OSW_LAYER_NORM_backward_f32;
    const double smallest = 0x1p-24, terms = (double)channels, h = 20, weight = 7, dy = 7;
    job j = {.id = id, .rows = rows, .chunk = osw_ceil(rows, CHUNKS)};
    osw_layer_norm *n = &j.norm;
    const int64_t count = rows * channels;
    n->channels = channels;
    n->eps = 1;
    void *scratch = NULL;
    driver_case(d, name, "channels %lld, rows %lld", (long long)channels, (long long)rows);
    n->x = driver_input(d, type, count);
    const driver_values values = d->values;
    d->values = DRIVER_WHOLE;
    n->weight = driver_input(d, of_arithmetic(type), channels);
    if (!backward) {
        n->bias = driver_input(d, of_arithmetic(type), channels);
        n->y = driver_output(d, type, count,
                             DRIVER_BY(2 * smallest, (terms + 16) * smallest * h * weight));
        n->statistics = driver_output(d, DRIVER_F64, 2 * rows,
                                      DRIVER_BY(0, (terms + 16) * smallest * 2 * weight));
    } else {
        n->statistics = statistics(d, rows);
        d->values = values;
        n->dy = driver_input(d, type, count);
        const double largest = 2 * dy * weight * (1 + h * h);
        if (driver_below(4))
            n->dx = driver_output(d, type, count,
                                  DRIVER_BY(2 * smallest, (terms + 16) * smallest * largest));
        d->values = DRIVER_WHOLE; /* what sums begin with */
        if (driver_below(4) || !n->dx) {
            const double all = (double)rows + 8;
            j.sums = driver_inout(d, DRIVER_F64, CHUNKS * 2 * channels,
                                  DRIVER_BY(2 * smallest, all * all * smallest * dy * h));
            n->sums = scratch = malloc((size_t)(CHUNKS * 2 * channels) * sizeof(double));
        }
    }
    d->values = values;
    driver_run(d, do_units, &j, CHUNKS);
    free(scratch);
}

static void check_variant(driver *d, const char *name, osw_layer_norm_id id, driver_type type)
{
    static const driver_values all[] = {DRIVER_WHOLE, DRIVER_REAL, DRIVER_WORST,
                                        DRIVER_WHOLE_WORST};
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, 4, lengths);
    if (d->timed) {
        check_one(d, name, id, type, 96, 3136);
        return;
    }
    for (int i = 0; i < 4 * count; i++) {
        d->values = all[driver_below(4)];
        check_one(d, name, id, type, lengths[i / 4], 1 + driver_below(23));
    }
    check_one(d, name, id, type, 3, 2 * OSW_LAYER_NORM_FLUSH + 5);
}

static void check(driver *d)
{
#define X(operation, dtype)                                                                        \
    check_variant(d, #operation "_" #dtype, OSW_LAYER_NORM_##operation##_##dtype,                  \
                  (driver_type)type_##dtype);
    OSW_LAYER_NORM_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_layer_norm_run(d);
}

extern const driver_contract driver_layer_norm_contract;
const driver_family driver_layer_norm = {
    "layer_norm", osw_layer_norm_select,      osw_layer_norm_table, sizeof osw_layer_norm_table,
    check,        &driver_layer_norm_contract};
