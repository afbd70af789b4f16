/* SPDX-License-Identifier: MIT */
/* Dropout: masks and what they keep, bit for bit. */
#include "dropout/dropout.h"
#include "driver.h"
#include "driver_contract.h"

#include <stdio.h>

static void draw_part(const void *context, const void *table, int64_t begin, int64_t end)
{
    const struct {
        osw_twister *twister;
        uint8_t *mask;
        uint64_t threshold;
        int64_t count;
    } *job = context;
    (void)end;
    if (begin == 0) /* draws are serial */
        ((const osw_dropout_table *)table)
            ->draw(job->twister, job->threshold, job->mask, job->count);
}

static void check_draw(driver *d, int64_t count, int next)
{
    static const uint64_t thresholds[] = {0, 1, (uint64_t)1 << 51, (uint64_t)1 << 53};
    struct {
        osw_twister *twister;
        uint8_t *mask;
        uint64_t threshold;
        int64_t count;
    } job = {.threshold = thresholds[driver_below(4)], .count = count};
    if (driver_below(2))
        job.threshold = ((uint64_t)driver_draw() << 32 | driver_draw()) >> 11;
    driver_case(d, "draw", "count %lld, next %d", (long long)count, next);
    job.twister = driver_inout(d, DRIVER_U32, sizeof(osw_twister) / 4, DRIVER_EXACT);
    job.twister->next = next;
    driver_keep(d, job.twister);
    job.mask = driver_output(d, DRIVER_U8, (count + 7) / 8, DRIVER_EXACT);
    driver_run(d, draw_part, &job, 1);
}

typedef struct apply_job {
    osw_dtype dtype;
    const void *input;
    const uint8_t *mask;
    void *output;
    double scale;
    int64_t count;
} apply_job;

static void apply_part(const void *context, const void *table, int64_t begin, int64_t end)
{
    const apply_job *job = context;
    const int64_t last = 8 * end < job->count ? 8 * end : job->count;
    ((const osw_dropout_table *)table)
        ->apply[job->dtype](job->input, job->mask, job->scale, job->output, 8 * begin, last);
}

static void check_apply(driver *d, osw_dtype dtype, int64_t count, bool in_place)
{
    static const char *const names[] = {"apply f32", "apply f64", "apply bf16", "apply f16"};
    static const double scales[] = {1, 2, 10.0 / 7, 0, 1e30};
    const double scale = scales[driver_below(5)];
    driver_case(d, names[dtype], "count %lld, scale %g%s", (long long)count, scale,
                in_place ? ", in place" : "");
    apply_job job = {.dtype = dtype, .scale = scale, .count = count};
    job.mask = driver_input(d, DRIVER_U8, (count + 7) / 8);
    if (in_place)
        job.input = job.output = driver_inout(d, (driver_type)dtype, count, DRIVER_EXACT);
    else {
        job.input = driver_input(d, (driver_type)dtype, count);
        job.output = driver_output(d, (driver_type)dtype, count, DRIVER_EXACT);
    }
    driver_run(d, apply_part, &job, (count + 7) / 8);
}

static void check(driver *d)
{
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, 2, lengths);
    for (int i = 0; i < count; i++) {
        check_draw(d, lengths[i], (int)driver_below(OSW_TWISTER_WORDS + 1));
        for (int dtype = 0; dtype < OSW_DTYPE_COUNT; dtype++)
            for (int values = DRIVER_REAL; values <= DRIVER_BITS; values++) {
                d->values = (driver_values)values;
                check_apply(d, (osw_dtype)dtype, lengths[i], driver_below(2));
            }
    }
    check_draw(d, 1000, OSW_TWISTER_WORDS - 1); /* several rounds of the twister */
}

extern const driver_contract driver_dropout_contract;
const driver_family driver_dropout = {"dropout",    osw_dropout_select,
                                      &osw_dropout, sizeof osw_dropout,
                                      check,        &driver_dropout_contract};
