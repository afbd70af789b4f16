/* SPDX-License-Identifier: MIT */
/* Depthwise convolutions: sums, which are exact of whole numbers in any order. */
#include "depthwise/depthwise.h"
#include "depthwise/holds.h"
#include "driver.h"
#include "driver_contract.h"

#include <assert.h>
#include <stdio.h>

/* Of depthwise_run.c. */
void driver_depthwise_run(driver *d, osw_depthwise (*draw)(const driver *d, int64_t channels));

typedef struct job {
    osw_depthwise depthwise;
    osw_depthwise_id id;
    bool sums; /* grad_weight: units are chunks, else rows */
    osw_depthwise_chunks chunks;
    char *to;
    int64_t to_bytes; /* of the sums of one chunk */
} job;

static void do_units(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    osw_depthwise_fn *kernel = ((osw_depthwise_fn *const *)table)[j->id];
    const osw_depthwise *d = &j->depthwise;
    if (!j->sums) {
        kernel(d, begin, end, NULL);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        kernel(d, osw_depthwise_first_row(d, &j->chunks, i, d->out_height),
               osw_depthwise_first_row(d, &j->chunks, i + 1, d->out_height),
               j->to + i * j->to_bytes);
}

/* A window over images of random sizes, padding of more than half a window among them. */
static osw_depthwise draw_window(const driver *d, int64_t channels)
{
    osw_depthwise w = {.batch = 1 + driver_below(3), .channels = channels};
    w.tall = 1 + 2 * driver_below(5);
    w.wide = w.tall == 1 || driver_below(2) ? 3 + 2 * driver_below(4) : 1;
    w.stride = 1 + driver_below(2);
    w.dilation = w.stride == 1 && driver_below(3) == 0 ? 2 + driver_below(3) : 1;
    const int64_t above = w.tall / 2 * w.dilation, before = w.wide / 2 * w.dilation;
    w.top = driver_below(2) ? above : driver_below(2 * above + 2);
    w.left = driver_below(2) ? before : driver_below(2 * before + 2);
    w.height = d->timed ? 56 : 1 + driver_below(9);
    w.width = d->timed ? 56 : 1 + driver_below(23);
    while (w.height + 2 * w.top < 2 * above + 1)
        w.height++;
    while (w.width + 2 * w.left < 2 * before + 1)
        w.width++;
    w.out_height = osw_depthwise_outputs(&w, w.tall, w.height, w.top);
    w.out_width = osw_depthwise_outputs(&w, w.wide, w.width, w.left);
    return w;
}

static void check_one(driver *d, const char *name, osw_depthwise_id id, driver_type type,
                      int64_t channels)
{
    job j = {.id = id, .depthwise = draw_window(d, channels)};
    osw_depthwise *w = &j.depthwise;
    const driver_type value = type == DRIVER_F64 ? DRIVER_F64 : DRIVER_F32; /* of sums */
    const int64_t taps = w->tall * w->wide, rows = w->batch * w->out_height;
    const int64_t inputs = w->batch * w->height * w->width * channels;
    const int64_t outputs = rows * w->out_width * channels;
    driver_case(d, name,
                "batch %lld, channels %lld, %lld x %lld, window %lld x %lld, stride %lld, "
                "dilation %lld, padding %lld x %lld",
                (long long)w->batch, (long long)channels, (long long)w->height, (long long)w->width,
                (long long)w->tall, (long long)w->wide, (long long)w->stride,
                (long long)w->dilation, (long long)w->top, (long long)w->left);
    int64_t units = rows;
    if (id < OSW_DEPTHWISE_grad_input_f32) {
        w->taps = driver_input(d, value, taps * channels);
        w->bias = driver_below(2) ? driver_input(d, value, channels) : NULL;
        w->input = driver_input(d, type, inputs);
        w->output = driver_output(d, type, outputs, DRIVER_SUM(taps + 1));
    } else if (id < OSW_DEPTHWISE_grad_weight_f32) {
        w->taps = driver_input(d, value, taps * channels);
        w->grad_output = driver_input(d, type, outputs);
        w->grad_input = driver_output(d, type, inputs, DRIVER_SUM(taps));
        units = w->batch * w->height;
    } else {
        w->input = driver_input(d, type, inputs);
        w->grad_output = driver_input(d, type, outputs);
        w->sums_output = driver_below(2);
        j.sums = true;
        j.chunks = osw_depthwise_cut(w);
        units = j.chunks.count;
        j.to_bytes = (taps + 1) * channels * driver_bytes(value);
        j.to = driver_output(d, value, units * (taps + 1) * channels,
                             DRIVER_SUM(w->batch * w->out_height * w->out_width));
    }
    assert(osw_depthwise_holds(w));
    driver_run(d, do_units, &j, units);
}

static void check_variant(driver *d, const char *name, osw_depthwise_id id, driver_type type)
{
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, type == DRIVER_F64 ? 8 : 4, lengths);
    for (int i = 0; i < (d->timed ? 1 : 4 * count); i++) {
        d->values = (driver_values)driver_below(3);
        check_one(d, name, id, type, d->timed ? 128 : lengths[i / 4]);
    }
}

static void check(driver *d)
{
#define X(operation, dtype)                                                                        \
    check_variant(d, #operation "_" #dtype, OSW_DEPTHWISE_##operation##_##dtype, type_##dtype);
    OSW_DEPTHWISE_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_depthwise_run(d, draw_window);
}

extern const driver_contract driver_depthwise_contract;
const driver_family driver_depthwise = {
    "depthwise", osw_depthwise_select,      osw_depthwise_table, sizeof osw_depthwise_table,
    check,       &driver_depthwise_contract};
