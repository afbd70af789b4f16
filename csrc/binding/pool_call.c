/* SPDX-License-Identifier: MIT */
#include "binding/pool_call.h"

#include "binding/profile.h"
#include "binding/tensor_new.h"
#include "binding/variant_counts.h"
#include "core/prefetch.h"
#include "pool/holds.h"
#include "pool/window.h"

#include <assert.h>
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

/* osw_pool_id + 1; 0 where there is no kernel. */
#define KERNEL_ENTRY(operation, form, type)                                                        \
    [OP_##operation][FORM_##form][TYPE_##type] = OSW_POOL_##operation##_##form##_##type + 1,
static const uint8_t kernels[OP_COUNT][FORM_COUNT][TYPE_COUNT] = {OSW_POOL_VARIANTS(KERNEL_ENTRY)};

static uint64_t calls[OSW_POOL_COUNT];

static const char *const role_names[] = {"input", "output", "offsets", "grad_output", "grad_input"};

int osw_pool_fail(const osw_pool_call *call, const char *problem, long long got)
{
    PyErr_Format(PyExc_RuntimeError, "%s: %s, got %lld", call->name, problem, got);
    return -1;
}

int osw_pool_tensor_arg(osw_pool_call *call, osw_role role, PyObject *object)
{
    osw_tensor *t = &call->tensors[role];
    if (osw_tensor_arg(object, call->name, t) != 0)
        return -1;
    call->given[role] = true;
    return 0;
}

/* A tuple of call->spatial ints, each within [low, 2^31), into one field of the dims; dimensions
 * that the tensor does not have keep their values. */
int osw_pool_sizes(const osw_pool_call *call, PyObject *tuple, const char *what, int64_t low,
                   int64_t *first_field)
{
    int64_t values[OSW_POOL_DIMS];
    if (osw_ints_arg(call->name, what, tuple, call->spatial, low, INT32_MAX, values) != 0)
        return -1;
    const size_t stride = sizeof(osw_pool_dim) / sizeof(int64_t);
    for (int i = 0; i < call->spatial; i++)
        first_field[(size_t)(OSW_POOL_DIMS - call->spatial + i) * stride] = values[i];
    return 0;
}

int osw_pool_step_arg(osw_pool_call *call, PyObject *object)
{
    return osw_int_arg(call->name, "channel_step", object, 1, INT64_MAX, &call->pool.channel_step);
}

static const osw_pool_dim unit_dim = {1, 1, 1, 1, 0, 1};

/* The window arguments; dilation may be NULL. */
int osw_pool_window_args(osw_pool_call *call, PyObject *kernel, PyObject *stride, PyObject *padding,
                         PyObject *dilation)
{
    osw_pool_dim *dims = call->pool.dims;
    call->has_window = true;
    call->spatial = PyTuple_Check(kernel) ? (int)PyTuple_Size(kernel) : 0;
    if (call->spatial < 1 || call->spatial > OSW_POOL_DIMS) {
        PyErr_Format(PyExc_TypeError, "%s: kernel must be a tuple of 1 to 3 ints, got %R",
                     call->name, kernel);
        return -1;
    }
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        dims[i] = unit_dim;
    if (osw_pool_sizes(call, kernel, "kernel", 1, &dims->kernel) != 0 ||
        osw_pool_sizes(call, stride, "stride", 1, &dims->stride) != 0 ||
        osw_pool_sizes(call, padding, "padding", 0, &dims->padding) != 0 ||
        (dilation && osw_pool_sizes(call, dilation, "dilation", 1, &dims->dilation) != 0))
        return -1;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        if (dims[i].padding > dims[i].kernel / 2)
            return osw_pool_fail(call, "padding must be at most half of the kernel",
                                 dims[i].padding);
    return 0;
}

int64_t osw_pool_bounded_step(int64_t step, int64_t channels)
{
    return osw_min(step, osw_max(channels, 1));
}

bool osw_pool_same_sizes(const osw_tensor *a, const osw_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->size, b->size, (size_t)a->ndim * sizeof *a->size) == 0;
}

/* Wide blocks are read faster; narrow ones give every thread work where there are few images. */
static int64_t block_size(const osw_pool *pool)
{
    if (osw_parallel_threads() == 1 || pool->images >= 2 * osw_parallel_threads())
        return OSW_POOL_MAX_BLOCK;
    return OSW_POOL_MIN_BLOCK;
}

static int check_sizes(osw_pool_call *call)
{
    const osw_tensor *large = &call->tensors[call->large], *small = &call->tensors[call->small];
    if (!call->has_window) {
        call->spatial = large->ndim - 2;
        for (int i = 0; i < OSW_POOL_DIMS; i++)
            call->pool.dims[i] = unit_dim;
    }
    if (large->ndim != call->spatial + 2 || small->ndim != large->ndim || call->spatial < 1 ||
        call->spatial > OSW_POOL_DIMS)
        return osw_pool_fail(call, "expected (N, C, *) with the spatial dimensions of the kernel",
                             large->ndim);
    call->pool.channel_step = osw_pool_bounded_step(call->pool.channel_step, large->size[1]);
    if (small->size[0] != large->size[0])
        return osw_pool_fail(call, "output and input must have the same batch", small->size[0]);
    if (small->size[1] != osw_ceil_div(large->size[1], call->pool.channel_step))
        return osw_pool_fail(call, "output must have ceil(C / channel_step) channels",
                             small->size[1]);
    for (int i = 0; i < call->spatial; i++) {
        osw_pool_dim *dim = &call->pool.dims[OSW_POOL_DIMS - call->spatial + i];
        dim->input = large->size[2 + i];
        dim->output = small->size[2 + i];
        if ((dim->input == 0 && dim->output > 0) || dim->output > INT32_MAX)
            return osw_pool_fail(call, "output size does not fit the input", dim->output);
        if (call->has_window && dim->output > 0 &&
            (dim->output - 1) * dim->stride - dim->padding >= dim->input)
            return osw_pool_fail(call, "last window must start before the end of the input",
                                 dim->output);
    }
    if (!call->has_window && osw_input_plane(&call->pool) > INT32_MAX)
        return osw_pool_fail(call, "positions must be below 2^31", osw_input_plane(&call->pool));
    call->pool.images = large->size[0];
    call->pool.channels = small->size[1];
    call->pool.input_channels = large->size[1];
    call->pool.block = block_size(&call->pool);
    return 0;
}

bool osw_pool_fits_byte(const osw_pool *pool)
{
    const int64_t area = pool->dims[HEIGHT].kernel * pool->dims[WIDTH].kernel;
    return area <= MAX_BYTE_TAPS && area * pool->dims[DEPTH].kernel <= MAX_BYTE_TAPS;
}

static int fail_sizes(const osw_pool_call *call)
{
    const osw_tensor *small = &call->tensors[call->small], *offsets = &call->tensors[OFFSETS];
    PyObject *size = osw_tuple_of(small->ndim, small->size);
    PyObject *of_offsets = osw_tuple_of(offsets->ndim, offsets->size);
    if (size && of_offsets)
        PyErr_Format(PyExc_RuntimeError, "%s: %s of size %R does not fit offsets of size %R",
                     call->name, role_names[call->small], size, of_offsets);
    Py_XDECREF(size);
    Py_XDECREF(of_offsets);
    return -1;
}

/* Offsets are as large as the output; flat positions are int32, taps uint8 where these suffice. */
static int check_offsets(osw_pool_call *call)
{
    if (!call->given[OFFSETS])
        return 0;
    const osw_tensor *t = &call->tensors[OFFSETS];
    const osw_pool_dim *dims = call->pool.dims;
    const int64_t area = dims[HEIGHT].kernel * dims[WIDTH].kernel;
    const bool fits = area <= INT32_MAX && area * dims[DEPTH].kernel <= INT32_MAX;
    const bool fits_byte = call->has_window && osw_pool_fits_byte(&call->pool);
    const bool is_byte = t->dtype.code == CODE_UINT && t->dtype.bits == 8;
    const bool is_int = t->dtype.code == CODE_INT && t->dtype.bits == 32;
    if (!osw_pool_same_sizes(t, &call->tensors[call->small]))
        return fail_sizes(call);
    if (!fits)
        return osw_pool_fail(call, "taps must be below 2^31", area);
    if (!is_int && !(is_byte && fits_byte))
        return osw_pool_fail(call, "offsets must be uint8 for up to 256 taps, or int32",
                             t->dtype.bits);
    call->pool.wide = is_int;
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

static int check_types(const osw_pool_call *call, osw_type *type)
{
    const osw_tensor *large = &call->tensors[call->large];
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->given[i] && i != OFFSETS && !osw_same_dtype(large, &call->tensors[i])) {
            PyErr_Format(PyExc_RuntimeError, "%s: %s has another dtype than %s", call->name,
                         role_names[i], role_names[call->large]);
            return -1;
        }
    *type = type_of(large);
    if (!osw_pool_supports(call->operation, large)) {
        PyErr_Format(PyExc_NotImplementedError, "%s: not implemented for dtype code %d, %d bit",
                     call->name, (int)large->dtype.code, (int)large->dtype.bits);
        return -1;
    }
    return 0;
}

static int check_written(const osw_pool_call *call)
{
    for (int i = 0; i < ROLE_COUNT; i++) {
        const bool backward = call->large == GRAD_INPUT;
        const bool written = backward ? i == GRAD_INPUT : i == OUTPUT || i == OFFSETS;
        if (written && call->given[i] && !osw_no_overlap(&call->tensors[i])) {
            PyErr_Format(PyExc_RuntimeError, "%s: %s overlaps itself", call->name, role_names[i]);
            return -1;
        }
    }
    return 0;
}

int osw_pool_check(osw_pool_call *call)
{
    return check_sizes(call) != 0 || check_offsets(call) != 0 || check_written(call) != 0 ? -1 : 0;
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

static bool describe_all(osw_pool_call *call, osw_form form)
{
    osw_pool_tensor *const places[] = {&call->pool.input, &call->pool.output, &call->pool.offsets,
                                       &call->pool.grad_output, &call->pool.grad_input};
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->given[i] && !describe(&call->tensors[i], form, places[i]))
            return false;
    return true;
}

/* The form that all tensors allow, FORM_COUNT if there is none. Pixels first, as whole vectors of
 * channels need no edges; one channel only is a plane. */
osw_form osw_pool_choose_form(osw_pool_call *call)
{
    const osw_form first = call->pool.input_channels > 1 ? FORM_pixels : FORM_planes;
    if (describe_all(call, first))
        return first;
    const osw_form second = first == FORM_pixels ? FORM_planes : FORM_pixels;
    return describe_all(call, second) ? second : FORM_COUNT;
}

int64_t osw_pool_units(const osw_pool_call *call, osw_form form)
{
    const osw_pool *p = &call->pool;
    const bool backward = call->large == GRAD_INPUT;
    if (!call->has_window)
        return p->images * (form == FORM_pixels ? osw_blocks(p) : p->channels);
    const int64_t rows = backward ? p->dims[DEPTH].input * p->dims[HEIGHT].input
                                  : p->dims[DEPTH].output * p->dims[HEIGHT].output;
    const int64_t planes = backward ? p->input_channels : p->channels;
    return p->images * rows * (form == FORM_pixels ? 1 : planes);
}

typedef struct osw_job {
    osw_pool_fn *kernel;
    const osw_pool *pool;
} osw_job;

static void run_job(int64_t begin, int64_t end, void *context)
{
    const osw_job *job = context;
    job->kernel(job->pool, begin, end);
}

/* Spread `units` over the threads; a unit is its share of `bytes`. */
void osw_pool_run(const char *name, int64_t units, int64_t bytes, osw_body *body, void *context)
{
    PyObject *range = osw_profile_begin(name);
    PyThreadState *state = bytes > OSW_GRAIN_BYTES ? PyEval_SaveThread() : NULL;
    osw_parallel_for(units, osw_grain(bytes / units), body, context);
    if (state)
        PyEval_RestoreThread(state);
    osw_profile_end(range);
}

#if !defined(NDEBUG)
static bool all_hold(const osw_pool *p, osw_form form)
{
    const bool pixels = form == FORM_pixels;
    const bool one_in = pixels ? p->input_channels == 1 : osw_input_plane(p) == 1;
    const bool one_out = pixels ? p->channels == 1 : osw_output_plane(p) == 1;
    return osw_pool_tensor_holds(&p->input, pixels, one_in) &&
           osw_pool_tensor_holds(&p->grad_input, pixels, one_in) &&
           osw_pool_tensor_holds(&p->output, pixels, one_out) &&
           osw_pool_tensor_holds(&p->offsets, pixels, one_out) &&
           osw_pool_tensor_holds(&p->grad_output, pixels, one_out);
}
#endif

PyObject *osw_pool_execute(osw_pool_call *call)
{
    osw_type type;
    if (osw_pool_check(call) != 0 || check_types(call, &type) != 0)
        return NULL;
    const osw_tensor *large = &call->tensors[call->large], *small = &call->tensors[call->small];
    if (large->numel == 0 || (small->numel == 0 && call->large == INPUT))
        Py_RETURN_NONE;
    if (small->numel == 0) {
        osw_pool_fail(call, "grad_output must not be empty", 0);
        return NULL;
    }
    const osw_form form = osw_pool_choose_form(call);
    if (form == FORM_COUNT)
        Py_RETURN_NOTIMPLEMENTED;
    if (osw_tensors_unchanged(call->name, call->tensors, ROLE_COUNT) != 0)
        return NULL;
    const osw_tensor *written = call->large == GRAD_INPUT ? large : small;
    call->pool.stream = osw_stream_bytes && written->numel * written->itemsize >= osw_stream_bytes;
    assert(osw_pool_holds(&call->pool, call->has_window, osw_pool_units(call, form)));
    assert(all_hold(&call->pool, form));
    const int id = kernels[call->operation][form][type] - 1;
    calls[id]++;
    osw_job job = {osw_pool_table[id], &call->pool};
    osw_pool_run(call->name, osw_pool_units(call, form),
                 (large->numel + small->numel) * large->itemsize, run_job, &job);
    Py_RETURN_NONE;
}

osw_pool_call osw_pool_begin(const char *name, osw_operation operation, bool backward)
{
    return (osw_pool_call){
        .name = name,
        .operation = operation,
        .large = backward ? GRAD_INPUT : INPUT,
        .small = backward ? GRAD_OUTPUT : OUTPUT,
        .pool.channel_step = 1,
    };
}

#define VARIANT_NAME(operation, form, dtype) #operation "_" #form "_" #dtype,

PyObject *osw_pool_count_calls(void)
{
    static const char *const names[] = {OSW_POOL_VARIANTS(VARIANT_NAME)};
    return osw_variant_counts(OSW_POOL_COUNT, names, calls);
}
