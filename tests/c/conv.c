/* SPDX-License-Identifier: MIT */
/* Dense convolutions: sums, which are exact of whole numbers in any order. */
#include "conv/conv.h"
#include "conv/holds.h"
#include "core/ints.h"
#include "driver.h"
#include "driver_contract.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct job {
    osw_conv conv;
    osw_conv_id id;
    int64_t output_parts;
    char *weight, *bias;
    int64_t weight_step, bias_step; /* bytes from one of conv.parts to the next */
} job;

static void do_parts(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    for (int64_t i = begin; i < end; i++) {
        osw_conv_part part = osw_conv_part_at(&j->conv, j->output_parts, i);
        const int64_t p = i / j->output_parts;
        part.weight = j->weight + p * j->weight_step;
        part.bias = j->bias ? j->bias + p * j->bias_step : NULL;
        assert(osw_conv_part_holds(&j->conv, &part));
        ((osw_conv_fn *const *)table)[j->id](&j->conv, &part);
    }
}

/* Padding of more than the window among them. */
static osw_conv_axis draw_axis(const driver *d)
{
    osw_conv_axis axis = {.size = d->timed ? 28 : 1 + driver_below(12),
                          .taps = d->timed ? 3 : 1 + driver_below(driver_below(4) ? 4 : 13),
                          .stride = d->timed ? 1 : 1 + driver_below(3),
                          .dilation = d->timed ? 1 : 1 + driver_below(2)};
    axis.padding = d->timed || driver_below(2) ? axis.taps / 2 : driver_below(axis.taps + 2);
    const int64_t window = (axis.taps - 1) * axis.dilation + 1;
    axis.size = osw_max_int(axis.size, window - 2 * axis.padding);
    axis.out_size = (axis.size + 2 * axis.padding - window) / axis.stride + 1;
    return axis;
}

/* Dense, or a slice of an image with more channels, rows and columns. */
static osw_conv_image draw_image(driver *d, driver_type type, int64_t batch, int64_t height,
                                 int64_t width, int64_t channels)
{
    const int64_t more = driver_below(3) ? 0 : 1 + driver_below(3);
    const int64_t pixel = channels + more, row = (width + more) * pixel;
    const int64_t image = (height + more) * row;
    const int64_t count = (batch - 1) * image + (height - 1) * row + (width - 1) * pixel + channels;
    return (osw_conv_image){driver_input(d, type, count), image, row, pixel};
}

static void check_one(driver *d, const char *name, osw_conv_id id, driver_type type,
                      int64_t channels, int64_t outputs)
{
    job j = {.id = id, .conv = {.batch = d->timed ? 8 : 1 + driver_below(20)}};
    osw_conv *c = &j.conv;
    const bool map = driver_below(4) == 0;
    c->channels = channels;
    c->outputs = outputs;
    c->rows = draw_axis(d);
    c->columns = draw_axis(d);
    if (map)
        c->rows = c->columns = (osw_conv_axis){5, 5, 1, 1, 0, 1};
    driver_case(d, name,
                "batch %lld, %lld > %lld channels, %lld x %lld, window %lld x %lld, "
                "stride %lld x %lld, padding %lld x %lld, dilation %lld x %lld",
                (long long)c->batch, (long long)channels, (long long)outputs,
                (long long)c->rows.size, (long long)c->columns.size, (long long)c->rows.taps,
                (long long)c->columns.taps, (long long)c->rows.stride, (long long)c->columns.stride,
                (long long)c->rows.padding, (long long)c->columns.padding,
                (long long)c->rows.dilation, (long long)c->columns.dilation);
    c->input = draw_image(d, type, c->batch, c->rows.size, c->columns.size, channels);
    c->grad_output = draw_image(d, type, c->batch, c->rows.out_size, c->columns.out_size, outputs);
    const double terms = (double)(c->batch * c->rows.out_size * c->columns.out_size);
    osw_conv_prepare(c, driver_bytes(type));
    j.output_parts = osw_conv_output_parts(c, driver_bytes(type), 1 + (int)driver_below(40));
    j.weight_step = osw_conv_weights(c) * driver_bytes(type);
    j.bias_step = outputs * driver_bytes(type);
    j.weight = driver_output(d, type, c->parts * osw_conv_weights(c), DRIVER_SUM(terms));
    if (driver_below(2))
        j.bias = driver_output(d, type, c->parts * outputs, DRIVER_SUM(terms));
    assert(osw_conv_holds(c));
    driver_run(d, do_parts, &j, c->parts * j.output_parts);
}

typedef struct forward_job {
    osw_conv conv;
    int is_double;
} forward_job;

/* Blocks [begin, end), by a weight that the table's own tier packs. */
static void run_blocks(osw_conv *conv, osw_conv_fn *const *kernels, int is_double, int64_t begin,
                       int64_t end)
{
    const osw_conv_part all = {.block_end = osw_conv_pieces(&conv->terms)};
    const osw_conv_part part = {.block_begin = begin, .block_end = end};
    conv->packed = aligned_alloc(64, (size_t)osw_round_up(osw_conv_packed(conv) * 8, 64));
    assert(osw_conv_forward_holds(conv) && osw_conv_range_holds(&part, osw_conv_blocks(conv)));
    kernels[is_double ? OSW_CONV_pack_f64 : OSW_CONV_pack_f32](conv, &all);
    kernels[is_double ? OSW_CONV_forward_f64 : OSW_CONV_forward_f32](conv, &part);
    free(conv->packed);
}

static void do_blocks(const void *context, const void *table, int64_t begin, int64_t end)
{
    const forward_job *j = context;
    osw_conv conv = j->conv;
    run_blocks(&conv, table, j->is_double, begin, end);
}

/* The whole gradient of an input. */
static void do_phases(const void *context, const void *table, int64_t begin, int64_t end)
{
    const forward_job *j = context;
    for (int64_t i = 0; begin < end && i < j->conv.rows.stride * j->conv.columns.stride; i++) {
        const int64_t row = i / j->conv.columns.stride, column = i % j->conv.columns.stride;
        osw_conv phase;
        if (osw_conv_phase(&j->conv, &j->conv.output, j->is_double ? 8 : 4, row, column, &phase))
            run_blocks(&phase, table, j->is_double, 0, osw_conv_blocks(&phase));
    }
}

/* An output, or the gradient of an input. */
static void check_forward(driver *d, const char *name, driver_type type, int64_t channels,
                          int64_t outputs)
{
    forward_job j = {.is_double = type == DRIVER_F64};
    osw_conv c = {.batch = d->timed ? 8 : 1 + driver_below(4)};
    c.channels = channels;
    c.outputs = outputs;
    c.rows = draw_axis(d);
    c.columns = draw_axis(d);
    const bool turned = !d->timed && driver_below(2);
    const bool last = driver_below(2);
    driver_case(d, name,
                "%s batch %lld, %lld > %lld channels, %lld x %lld, window %lld x %lld, "
                "stride %lld x %lld, padding %lld x %lld, dilation %lld x %lld",
                turned ? "gradient" : "output", (long long)c.batch, (long long)channels,
                (long long)outputs, (long long)c.rows.size, (long long)c.columns.size,
                (long long)c.rows.taps, (long long)c.columns.taps, (long long)c.rows.stride,
                (long long)c.columns.stride, (long long)c.rows.padding,
                (long long)c.columns.padding, (long long)c.rows.dilation,
                (long long)c.columns.dilation);
    const int64_t taps = c.rows.taps * c.columns.taps;
    const double terms = (double)(taps * osw_max_int(channels, outputs));
    const int64_t rows = turned ? c.rows.size : c.rows.out_size;
    const int64_t columns = turned ? c.columns.size : c.columns.out_size;
    const int64_t pixel = turned ? channels : outputs;
    osw_conv_output *y = &c.output;
    c.input = draw_image(d, type, c.batch, c.rows.size, c.columns.size, channels);
    c.grad_output = draw_image(d, type, c.batch, c.rows.out_size, c.columns.out_size, outputs);
    c.weight = (osw_conv_weight){.data = driver_input(d, type, outputs * taps * channels),
                                 .output = taps * channels,
                                 .row = c.columns.taps * (last ? channels : 1),
                                 .column = last ? channels : 1,
                                 .channel = last ? 1 : taps};
    c.bias = driver_below(2) ? driver_input(d, type, outputs) : NULL;
    *y = (osw_conv_output){
        driver_output(d, type, c.batch * rows * columns * pixel, DRIVER_SUM(terms + 1)),
        rows * columns * pixel, columns * pixel, pixel};
    if (!turned)
        osw_conv_prepare_forward(&c, driver_bytes(type));
    j.conv = c;
    driver_run(d, turned ? do_phases : do_blocks, &j, turned ? 1 : osw_conv_blocks(&c));
}

static void check_variant(driver *d, const char *name, osw_conv_id id, driver_type type)
{
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, driver_bytes(type), lengths);
    for (int i = 0; i < (d->timed ? 1 : 4 * count); i++) {
        const int64_t length = d->timed ? 64 : lengths[i / 4];
        const int64_t other = d->timed ? 64 : 1 + driver_below(driver_below(2) ? 9 : 70);
        d->values = (driver_values)driver_below(3);
        const int64_t from = i % 2 ? length : other, to = i % 2 ? other : length;
        if (id == OSW_CONV_grad_weight_f32 || id == OSW_CONV_grad_weight_f64)
            check_one(d, name, id, type, from, to);
        else
            check_forward(d, name, type, from, to);
    }
}

static void check(driver *d)
{
#define X(operation, dtype)                                                                        \
    check_variant(d, #operation "_" #dtype, OSW_CONV_##operation##_##dtype,                        \
                  OSW_CONV_##operation##_##dtype % 2 ? DRIVER_F64 : DRIVER_F32);
    OSW_CONV_VARIANTS(X)
#undef X
}

extern const driver_contract driver_conv_contract;
const driver_family driver_conv = {
    "conv", osw_conv_select, osw_conv_table, sizeof osw_conv_table, check, &driver_conv_contract};
