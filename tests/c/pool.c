/* SPDX-License-Identifier: MIT */
/* Pools, bit for bit: each adds in one order. */
#include "pool/pool.h"
#include "driver.h"
#include "driver_contract.h"
#include "pool/holds.h"
#include "pool/run.h"
#include "pool/window.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void driver_pool_indices(driver *d); /* of pool_indices.c */

typedef enum operation {
    max,
    max_backward,
    avg,
    avg_backward,
    adaptive_max,
    adaptive_max_backward,
    amax,
    amax_backward
} operation;

enum form { planes, pixels };

/* A variant of the table. */
typedef struct variant {
    const char *name;
    osw_pool_id id, forward; /* forward: of a backward one, whose offsets it reads */
    operation operation;
    enum form form;
    driver_type type;
} variant;

typedef struct job {
    osw_pool pool;
    osw_pool_id id;
} job;

static void do_units(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    ((osw_pool_fn *const *)table)[j->id](&j->pool, begin, end);
}

static bool is_backward(const variant *v)
{
    return v->operation % 2 == 1;
}

static bool has_window(const variant *v)
{
    return v->operation <= avg_backward;
}

/* Half of the windows are those that kernels are made for. */
static osw_pool_dim draw_dim(const variant *v, int64_t input)
{
    static const osw_pool_dim common[] = {
        {0, 0, 2, 2, 0, 1}, {0, 0, 3, 2, 1, 1}, {0, 0, 3, 1, 1, 1}, {0, 0, 3, 2, 0, 1}};
    osw_pool_dim dim = common[driver_below(4)];
    if (driver_below(2)) {
        dim.kernel = 1 + driver_below(driver_below(4) ? 5 : 13);
        dim.stride = 1 + driver_below(4);
        dim.padding = driver_below(dim.kernel / 2 + 1);
        dim.dilation = v->operation <= max_backward && driver_below(3) == 0 ? 2 : 1;
    }
    const int64_t reach = dim.dilation * (dim.kernel - 1) + 1;
    dim.input = input + 2 * dim.padding < reach ? reach : input;
    dim.output = (dim.input + 2 * dim.padding - reach) / dim.stride + 1;
    if (driver_below(2) && dim.output * dim.stride - dim.padding < dim.input)
        dim.output++; /* as ceil_mode adds one */
    return dim;
}

static void draw_dims(const variant *v, osw_pool_dim *dims, const int64_t *sizes)
{
    const bool alike = driver_below(2);
    for (int i = 0; i < OSW_POOL_DIMS; i++) {
        dims[i] = (osw_pool_dim){1, 1, 1, 1, 0, 1};
        if (has_window(v) && (i > 0 || sizes[0] > 1)) {
            dims[i] = draw_dim(v, sizes[i]);
            if (i == WIDTH && alike) { /* a square window */
                const osw_pool_dim *h = &dims[HEIGHT];
                const int64_t least = h->dilation * (h->kernel - 1) + 1;
                dims[i] = *h;
                dims[i].input = sizes[i] > least ? sizes[i] : least;
                dims[i].output = (dims[i].input + 2 * h->padding - least) / h->stride + 1;
            }
        } else {
            dims[i].input = sizes[i];
            if (v->operation <= adaptive_max_backward && !has_window(v))
                dims[i].output = 1 + driver_below(sizes[i] < 4 ? sizes[i] : 4);
        }
    }
}

static osw_pool_tensor place(const variant *v, void *base, int64_t channels, int64_t plane)
{
    if (v->form == planes)
        return (osw_pool_tensor){base, channels * plane, plane, 1};
    return (osw_pool_tensor){base, channels * plane, 1, channels};
}

/* Sums of whole numbers of 64 bits are not to overflow. */
static void *draw_values(driver *d, const variant *v, int64_t count)
{
    void *values = driver_input(d, v->type, count);
    if (v->type == DRIVER_U64) {
        int64_t *whole = values;
        for (int64_t i = 0; i < count; i++)
            whole[i] >>= 16;
        driver_keep(d, values);
    }
    return values;
}

/* What a forward has left for its backward: offsets and output by the scalar kernel of a random
 * input. */
static void leave(driver *d, const variant *v, osw_pool *p, int64_t inputs, int64_t outputs)
{
    const int64_t in_plane = osw_input_plane(p), out_plane = osw_output_plane(p);
    p->input = place(v, draw_values(d, v, inputs), p->input_channels, in_plane);
    p->output = place(v, driver_input(d, v->type, outputs), p->channels, out_plane);
    void *offsets = driver_input(d, p->wide ? DRIVER_U32 : DRIVER_U8, outputs);
    p->offsets = place(v, offsets, p->channels, out_plane);
    driver_scalar(do_units, &(job){*p, v->forward},
                  osw_pool_units(p, has_window(v), false, v->form == pixels));
    driver_keep(d, p->output.base);
    driver_keep(d, offsets);
    if (v->operation == amax_backward && driver_below(3) == 0)
        p->offsets.base = NULL;
}

static void make_tensors(driver *d, const variant *v, osw_pool *p)
{
    const int64_t in_plane = osw_input_plane(p), out_plane = osw_output_plane(p);
    const int64_t inputs = p->images * p->input_channels * in_plane;
    const int64_t outputs = p->images * p->channels * out_plane;
    const driver_error notes = {.kind =
                                    v->operation == amax ? DRIVER_OR_MINUS_1 : DRIVER_SAME_BITS};
    if (!is_backward(v)) {
        p->input = place(v, draw_values(d, v, inputs), p->input_channels, in_plane);
        p->output =
            place(v, driver_output(d, v->type, outputs, DRIVER_EXACT), p->channels, out_plane);
        if (v->operation != avg && (v->operation == amax || driver_below(3)))
            p->offsets =
                place(v, driver_output(d, p->wide ? DRIVER_U32 : DRIVER_U8, outputs, notes),
                      p->channels, out_plane);
        return;
    }
    if (v->operation != avg_backward)
        leave(d, v, p, inputs, outputs);
    p->grad_output = place(v, draw_values(d, v, outputs), p->channels, out_plane);
    p->grad_input =
        place(v, driver_output(d, v->type, inputs, DRIVER_EXACT), p->input_channels, in_plane);
}

static void check_size(driver *d, const variant *v, int64_t channels, const int64_t *sizes)
{
    job j = {
        .id = v->id,
        .pool = {.images = 1 + driver_below(2),
                 .input_channels = channels,
                 .channel_step = has_window(v) && driver_below(3) == 0 ? 2 + driver_below(3) : 1,
                 .block = driver_below(2) ? OSW_POOL_MIN_BLOCK : OSW_POOL_MAX_BLOCK,
                 .stream = driver_below(4) == 0,
                 .count_include_pad = driver_below(2)}};
    osw_pool *p = &j.pool;
    if (p->channel_step > channels)
        p->channel_step = channels;
    p->channels = osw_ceil_div(channels, p->channel_step);
    draw_dims(v, p->dims, sizes);
    p->wide = !has_window(v) || count_taps(p) > UINT8_MAX + 1 || driver_below(4) == 0;
    if (v->operation == avg || v->operation == avg_backward)
        p->divisor = driver_below(3) ? 0 : driver_below(2) ? -3 : 1 + driver_below(9);
    driver_case(d, v->name,
                "images %lld, channels %lld step %lld, %lld x %lld x %lld, window %lld x "
                "%lld x %lld, stride %lld x %lld, padding %lld x %lld, divisor %lld%s%s",
                (long long)p->images, (long long)channels, (long long)p->channel_step,
                (long long)p->dims[0].input, (long long)p->dims[1].input,
                (long long)p->dims[2].input, (long long)p->dims[0].kernel,
                (long long)p->dims[1].kernel, (long long)p->dims[2].kernel,
                (long long)p->dims[1].stride, (long long)p->dims[2].stride,
                (long long)p->dims[1].padding, (long long)p->dims[2].padding, (long long)p->divisor,
                p->wide ? ", wide" : "", p->stream ? ", stream" : "");
    make_tensors(d, v, p);
    const int64_t units = osw_pool_units(p, has_window(v), is_backward(v), v->form == pixels);
    assert(osw_pool_holds(p, has_window(v), units));
    driver_run(d, do_units, &j, units);
}

static void check_variant(driver *d, const variant *v)
{
    static const int64_t few[] = {1, 2, 3, 5, 8};
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, driver_bytes(v->type), lengths);
    if (d->timed) {
        check_size(d, v, 64, (const int64_t[]){1, 56, 56});
        return;
    }
    for (int i = 0; i < count; i++) {
        const int64_t depth = driver_below(4) ? 1 : 2, height = 1 + driver_below(9);
        const int64_t channels = v->form == pixels ? lengths[i] : few[driver_below(5)];
        const int64_t width = v->form == pixels ? few[driver_below(5)] : lengths[i];
        d->values = (driver_values)driver_below(4);
        check_size(d, v, channels, (const int64_t[]){depth, height, width});
        d->values = DRIVER_WORST;
        check_size(d, v, channels, (const int64_t[]){1, height, 2 * width + driver_below(2)});
    }
    d->values = DRIVER_REAL; /* more channels than a block has, planes longer than a chunk */
    check_size(d, v, v->form == pixels ? 67 : 2,
               (const int64_t[]){1, 9, v->form == pixels ? 5 : 23});
}

/* Dtypes follow each other in the list, as in driver_type. */
static osw_pool_id forward_of(operation operation, enum form form, int type)
{
    static const osw_pool_id first[][2] = {
        {OSW_POOL_max_planes_f32, OSW_POOL_max_pixels_f32},
        {OSW_POOL_avg_planes_f32, OSW_POOL_avg_pixels_f32},
        {OSW_POOL_adaptive_max_planes_f32, OSW_POOL_adaptive_max_pixels_f32},
        {OSW_POOL_amax_planes_f32, OSW_POOL_amax_pixels_f32}};
    return (osw_pool_id)((int)first[operation / 2][form] + type);
}

static void check(driver *d)
{
#define X(operation, form, dtype)                                                                  \
    check_variant(d, &(variant){#operation "_" #form "_" #dtype,                                   \
                                OSW_POOL_##operation##_##form##_##dtype,                           \
                                forward_of(operation, form, type_##dtype), operation, form,        \
                                (driver_type)type_##dtype});
    OSW_POOL_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_pool_indices(d);
}

extern const driver_contract driver_pool_contract;
const driver_family driver_pool = {
    "pool", osw_pool_select, osw_pool_table, sizeof osw_pool_table, check, &driver_pool_contract};
