/* SPDX-License-Identifier: MIT */
#include "binding/pool_call.h"

#include "core/prefetch.h"
#include "pool/window.h"

#include <string.h>

enum { MAX_BYTE_TAPS = 256, CODE_INT = 0, CODE_UINT = 1, CODE_FLOAT = 2, CODE_BFLOAT = 4 };

typedef enum osw_type {
    TYPE_f32,
    TYPE_f64,
    TYPE_bf16,
    TYPE_f16,
    TYPE_u8,
    TYPE_i8,
    TYPE_i16,
    TYPE_i32,
    TYPE_i64,
    TYPE_COUNT
} osw_type;

static const osw_dl_dtype dtypes[TYPE_COUNT] = {
    [TYPE_f32] = {CODE_FLOAT, 32, 1},   [TYPE_f64] = {CODE_FLOAT, 64, 1},
    [TYPE_bf16] = {CODE_BFLOAT, 16, 1}, [TYPE_f16] = {CODE_FLOAT, 16, 1},
    [TYPE_u8] = {CODE_UINT, 8, 1},      [TYPE_i8] = {CODE_INT, 8, 1},
    [TYPE_i16] = {CODE_INT, 16, 1},     [TYPE_i32] = {CODE_INT, 32, 1},
    [TYPE_i64] = {CODE_INT, 64, 1},
};

/* osw_pool_id + 1; 0 if there is no kernel. */
#define KERNEL_ENTRY(operation, form, type)                                                        \
    [OP_##operation][FORM_##form][TYPE_##type] = OSW_POOL_##operation##_##form##_##type + 1,
static const uint8_t kernels[OP_COUNT][FORM_COUNT][TYPE_COUNT] = {OSW_POOL_VARIANTS(KERNEL_ENTRY)};

uint64_t osw_pool_calls[OSW_POOL_COUNT];

const char *const osw_pool_roles[] = {"input", "output", "offsets", "grad_output", "grad_input"};

int osw_pool_fail(const osw_call *call, const char *problem, long long got)
{
    return osw_fail(call->name, "%s, got %lld", problem, got);
}

static const osw_pool_dim unit_dim = {1, 1, 1, 1, 0, 1};

int64_t osw_pool_bounded_step(int64_t step, int64_t channels)
{
    return osw_min(step, osw_max(channels, 1));
}

/* One spatial dimension, whose sizes become those of the pool. */
static int check_dim(const osw_call *call, osw_pool_dim *dim, int64_t input, int64_t output)
{
    const osw_pool_call *pool_call = call->job;
    dim->input = input;
    dim->output = output;
    if ((input == 0 && output > 0) || output > INT32_MAX)
        return osw_pool_fail(call, "output size does not fit the input", output);
    if (pool_call->has_window && output > 0 && (output - 1) * dim->stride - dim->padding >= input)
        return osw_pool_fail(call, "last window must start before the end of the input", output);
    return 0;
}

static int check_sizes(const osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    osw_pool *pool = &pool_call->pool;
    const osw_tensor *large = &call->tensors[pool_call->large],
                     *small = &call->tensors[pool_call->small];
    if (!pool_call->has_window) {
        pool_call->spatial = large->ndim - 2;
        for (int i = 0; i < OSW_POOL_DIMS; i++)
            pool->dims[i] = unit_dim;
    }
    const int spatial = pool_call->spatial;
    if (large->ndim != spatial + 2 || small->ndim != large->ndim || spatial < 1 ||
        spatial > OSW_POOL_DIMS)
        return osw_pool_fail(call, "expected (N, C, *) with the spatial dimensions of the kernel",
                             large->ndim);
    pool->channel_step = osw_pool_bounded_step(pool->channel_step, large->size[1]);
    if (small->size[0] != large->size[0])
        return osw_pool_fail(call, "output and input must have the same batch", small->size[0]);
    if (small->size[1] != osw_ceil_div(large->size[1], pool->channel_step))
        return osw_pool_fail(call, "output must have ceil(C / channel_step) channels",
                             small->size[1]);
    for (int i = 0; i < spatial; i++)
        if (check_dim(call, &pool->dims[OSW_POOL_DIMS - spatial + i], large->size[2 + i],
                      small->size[2 + i]) != 0)
            return -1;
    if (!pool_call->has_window && osw_input_plane(pool) > INT32_MAX)
        return osw_pool_fail(call, "positions must be below 2^31", osw_input_plane(pool));
    pool->images = large->size[0];
    pool->channels = small->size[1];
    pool->input_channels = large->size[1];
    pool->block = osw_pool_block(large->size[0]);
    return 0;
}

bool osw_pool_fits_byte(const osw_pool *pool)
{
    const int64_t area = pool->dims[HEIGHT].kernel * pool->dims[WIDTH].kernel;
    return area <= MAX_BYTE_TAPS && area * pool->dims[DEPTH].kernel <= MAX_BYTE_TAPS;
}

/* Offsets are as large as the output; flat positions are int32, taps uint8 if these suffice. */
static int check_offsets(const osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    if (!call->objects[OFFSETS])
        return 0;
    const osw_tensor *t = &call->tensors[OFFSETS], *small = &call->tensors[pool_call->small];
    const osw_pool_dim *dims = pool_call->pool.dims;
    const int64_t area = dims[HEIGHT].kernel * dims[WIDTH].kernel;
    const bool fits = area <= INT32_MAX && area * dims[DEPTH].kernel <= INT32_MAX;
    const bool fits_byte = pool_call->has_window && osw_pool_fits_byte(&pool_call->pool);
    const bool is_byte = t->dtype.code == CODE_UINT && t->dtype.bits == 8;
    const bool is_int = t->dtype.code == CODE_INT && t->dtype.bits == 32;
    if (!osw_same_sizes(t, small, -1))
        return osw_fail(call->name, "%s of size %s does not fit offsets of size %s",
                        call->roles[pool_call->small],
                        osw_print_sizes(small->ndim, small->size).text,
                        osw_print_sizes(t->ndim, t->size).text);
    if (!fits)
        return osw_pool_fail(call, "taps must be below 2^31", area);
    if (!is_int && !(is_byte && fits_byte))
        return osw_pool_fail(call, "offsets must be uint8 for up to 256 taps, or int32",
                             t->dtype.bits);
    pool_call->pool.wide = is_int;
    return 0;
}

static osw_type type_of(const osw_tensor *t)
{
    int type = 0;
    while (type < TYPE_COUNT && memcmp(&dtypes[type], &t->dtype, sizeof t->dtype) != 0)
        type++;
    return (osw_type)type;
}

bool osw_pool_supports(osw_operation operation, const osw_tensor *t)
{
    const osw_type type = type_of(t);
    return type != TYPE_COUNT && kernels[operation][FORM_planes][type];
}

static int check_types(const osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    const osw_tensor *large = &call->tensors[pool_call->large];
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->objects[i] && i != OFFSETS && !osw_same_dtype(large, &call->tensors[i]))
            return osw_fail(call->name, "%s has another dtype than %s", call->roles[i],
                            call->roles[pool_call->large]);
    return osw_pool_supports(pool_call->operation, large) ? 0 : osw_fail_dtype(call->name, large);
}

int osw_pool_check(osw_call *call)
{
    return check_sizes(call) != 0 || check_offsets(call) != 0 ? -1 : 0;
}

/* Describe `t` in the given form; false if its memory does not allow it. */
static bool describe(const osw_tensor *t, osw_form form, osw_pool_tensor *out)
{
    int64_t count, step;
    if (!osw_flatten(t, 2, &count, &step))
        return false;
    if (form == FORM_pixels ? t->size[1] > 1 && t->stride[1] != 1 : count > 1 && step != 1)
        return false;
    *out = (osw_pool_tensor){
        .base = t->data,
        .image_step = t->stride[0],
        .channel_step = t->size[1] > 1 ? t->stride[1] : 1,
        .pixel_step = step,
    };
    return true;
}

static bool describe_all(const osw_call *call, osw_form form)
{
    osw_pool *pool = &((osw_pool_call *)call->job)->pool;
    osw_pool_tensor *const places[] = {&pool->input, &pool->output, &pool->offsets,
                                       &pool->grad_output, &pool->grad_input};
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->objects[i] && !describe(&call->tensors[i], form, places[i]))
            return false;
    return true;
}

/* Pixels first, as whole vectors of channels need no edges; one channel only is a plane. */
osw_form osw_pool_choose_form(osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    const osw_form first = pool_call->pool.input_channels > 1 ? FORM_pixels : FORM_planes;
    if (describe_all(call, first))
        return first;
    const osw_form second = first == FORM_pixels ? FORM_planes : FORM_pixels;
    return describe_all(call, second) ? second : FORM_COUNT;
}

int64_t osw_pool_units_of(const osw_pool_call *pool_call, osw_form form)
{
    return osw_pool_units(&pool_call->pool, pool_call->has_window, pool_call->large == GRAD_INPUT,
                          form == FORM_pixels);
}

int osw_pool_execute(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    osw_pool *pool = &pool_call->pool;
    if (osw_pool_check(call) != 0 || check_types(call) != 0)
        return -1;
    const osw_tensor *large = &call->tensors[pool_call->large],
                     *small = &call->tensors[pool_call->small];
    const bool backward = pool_call->large == GRAD_INPUT;
    if (large->numel == 0 || (small->numel == 0 && !backward))
        return 0;
    if (small->numel == 0)
        return osw_pool_fail(call, "grad_output must not be empty", 0);
    const osw_form form = osw_pool_choose_form(call);
    if (form == FORM_COUNT)
        return -1;
    const osw_tensor *written = backward ? large : small;
    pool->stream = osw_stream_bytes && written->numel * written->itemsize >= osw_stream_bytes;
    const int id = kernels[pool_call->operation][form][type_of(large)] - 1;
    const osw_pool_job job = {
        .pool = pool,
        .kernel = osw_pool_table[id],
        .has_window = pool_call->has_window,
        .pixels = form == FORM_pixels,
        .units = osw_pool_units_of(pool_call, form),
        .bytes = (large->numel + small->numel) * large->itemsize,
    };
    osw_pool_calls[id]++;
    OSW_RUN(call->name, job.bytes > OSW_GRAIN_BYTES, osw_pool_run(&job));
    return 0;
}
