/* SPDX-License-Identifier: MIT */
/* Pooling: parses, validates, chooses the form and runs the kernels of csrc/pool. Every function
 * returns None when done, or NotImplemented where the memory of a tensor fits neither form: the
 * caller makes it dense and calls again. */
#include "binding/binding.h"
#include "binding/tensor_arg.h"
#include "core/parallel.h"
#include "pool/indices.h"
#include "pool/pool.h"
#include "pool/window.h"

#include <string.h>

enum { MAX_BYTE_TAPS = 256, CODE_INT = 0, CODE_UINT = 1, CODE_FLOAT = 2, CODE_BFLOAT = 4 };

typedef enum osw_form { FORM_planes, FORM_pixels, FORM_COUNT } osw_form;

typedef enum osw_operation {
    OP_max,
    OP_max_backward,
    OP_avg,
    OP_avg_backward,
    OP_adaptive_max,
    OP_adaptive_max_backward,
    OP_amax_backward,
    OP_COUNT
} osw_operation;

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

/* What the tensors of a call are to it. */
typedef enum osw_role { INPUT, OUTPUT, OFFSETS, GRAD_OUTPUT, GRAD_INPUT, ROLE_COUNT } osw_role;

static const char *const role_names[] = {"input", "output", "offsets", "grad_output", "grad_input"};

typedef struct osw_pool_call {
    const char *name;
    osw_operation operation;
    osw_tensor tensors[ROLE_COUNT];
    bool given[ROLE_COUNT];
    osw_role large;  /* INPUT or GRAD_INPUT: its sizes are those of the input */
    osw_role small;  /* OUTPUT or GRAD_OUTPUT */
    int spatial;     /* dimensions */
    bool has_window; /* false for the adaptive operations */
    osw_pool pool;
} osw_pool_call;

static int fail(const osw_pool_call *call, const char *problem, long long got)
{
    PyErr_Format(PyExc_RuntimeError, "%s: %s, got %lld", call->name, problem, got);
    return -1;
}

static int parse_tensor(osw_pool_call *call, osw_role role, PyObject *object)
{
    osw_tensor *t = &call->tensors[role];
    if (osw_tensor_arg(object, call->name, t) != 0)
        return -1;
    call->given[role] = true;
    return 0;
}

/* A tuple of call->spatial ints, each within [low, 2^31), into one field of the dims; dimensions
 * that the tensor does not have keep their values. */
static int parse_sizes(const osw_pool_call *call, PyObject *tuple, const char *what, int64_t low,
                       int64_t *first_field)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != call->spatial) {
        PyErr_Format(PyExc_TypeError, "%s: %s must be a tuple of %d ints, got %R", call->name, what,
                     call->spatial, tuple);
        return -1;
    }
    const size_t stride = sizeof(osw_pool_dim) / sizeof(int64_t);
    for (int i = 0; i < call->spatial; i++) {
        const int64_t value = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (value == -1 && PyErr_Occurred())
            return -1;
        if (value < low || value > INT32_MAX) {
            PyErr_Format(PyExc_RuntimeError, "%s: %s must be at least %lld and below 2^31, got %R",
                         call->name, what, (long long)low, tuple);
            return -1;
        }
        first_field[(size_t)(OSW_POOL_DIMS - call->spatial + i) * stride] = value;
    }
    return 0;
}

static const osw_pool_dim unit_dim = {1, 1, 1, 1, 0, 1};

/* The window arguments; dilation may be NULL. */
static int parse_window(osw_pool_call *call, PyObject *kernel, PyObject *stride, PyObject *padding,
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
    if (parse_sizes(call, kernel, "kernel", 1, &dims->kernel) != 0 ||
        parse_sizes(call, stride, "stride", 1, &dims->stride) != 0 ||
        parse_sizes(call, padding, "padding", 0, &dims->padding) != 0 ||
        (dilation && parse_sizes(call, dilation, "dilation", 1, &dims->dilation) != 0))
        return -1;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        if (dims[i].padding > dims[i].kernel / 2)
            return fail(call, "padding must be at most half of the kernel", dims[i].padding);
    return 0;
}

static int parse_int(PyObject *object, int64_t *value)
{
    *value = PyLong_AsLongLong(object);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static bool same_sizes(const osw_tensor *a, const osw_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->size, b->size, (size_t)a->ndim * sizeof *a->size) == 0;
}

/* Wide blocks are read faster; narrow ones give every thread work where there are few images. */
static int64_t block_size(const osw_pool *pool)
{
    if (pool->images >= 2 * osw_parallel_threads())
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
        return fail(call, "expected (N, C, *) with the spatial dimensions of the kernel",
                    large->ndim);
    if (call->pool.channel_step < 1)
        return fail(call, "channel_step must be positive", call->pool.channel_step);
    if (small->size[0] != large->size[0])
        return fail(call, "output and input must have the same batch", small->size[0]);
    if (small->size[1] != osw_ceil_div(large->size[1], call->pool.channel_step))
        return fail(call, "output must have ceil(C / channel_step) channels", small->size[1]);
    for (int i = 0; i < call->spatial; i++) {
        osw_pool_dim *dim = &call->pool.dims[OSW_POOL_DIMS - call->spatial + i];
        dim->input = large->size[2 + i];
        dim->output = small->size[2 + i];
        if ((dim->input == 0 && dim->output > 0) || dim->output > INT32_MAX)
            return fail(call, "output size does not fit the input", dim->output);
        if (call->has_window && dim->output > 0 &&
            (dim->output - 1) * dim->stride - dim->padding >= dim->input)
            return fail(call, "last window must start before the end of the input", dim->output);
    }
    call->pool.images = large->size[0];
    call->pool.channels = small->size[1];
    call->pool.input_channels = large->size[1];
    call->pool.block = block_size(&call->pool);
    return 0;
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
    const bool fits_byte = call->has_window && fits && area * dims[DEPTH].kernel <= MAX_BYTE_TAPS;
    const bool is_byte = t->dtype.code == CODE_UINT && t->dtype.bits == 8;
    const bool is_int = t->dtype.code == CODE_INT && t->dtype.bits == 32;
    if (!same_sizes(t, &call->tensors[call->small]))
        return fail(call, "offsets must have the size of the output", t->numel);
    if (!fits || (!call->has_window && osw_input_plane(&call->pool) > INT32_MAX))
        return fail(call, "taps must be below 2^31", area);
    if (!is_int && !(is_byte && fits_byte))
        return fail(call, "offsets must be uint8 for up to 256 taps, or int32", t->dtype.bits);
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
    if (*type == TYPE_COUNT || !kernels[call->operation][FORM_planes][*type]) {
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
static osw_form choose_form(osw_pool_call *call)
{
    const osw_form first = call->pool.input_channels > 1 ? FORM_pixels : FORM_planes;
    if (describe_all(call, first))
        return first;
    const osw_form second = first == FORM_pixels ? FORM_planes : FORM_pixels;
    return describe_all(call, second) ? second : FORM_COUNT;
}

static int64_t unit_count(const osw_pool_call *call, osw_form form)
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
static void run_units(int64_t units, int64_t bytes, osw_body *body, void *context)
{
    PyThreadState *state = bytes > OSW_GRAIN_BYTES ? PyEval_SaveThread() : NULL;
    osw_parallel_for(units, osw_grain(bytes / units), body, context);
    if (state)
        PyEval_RestoreThread(state);
}

static PyObject *not_implemented(void)
{
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

static PyObject *execute(osw_pool_call *call)
{
    osw_type type;
    if (check_sizes(call) != 0 || check_types(call, &type) != 0 || check_offsets(call) != 0 ||
        check_written(call) != 0)
        return NULL;
    const osw_tensor *large = &call->tensors[call->large], *small = &call->tensors[call->small];
    if (large->numel == 0 || (small->numel == 0 && call->large == INPUT))
        Py_RETURN_NONE;
    if (small->numel == 0) {
        fail(call, "grad_output must not be empty", 0);
        return NULL;
    }
    const osw_form form = choose_form(call);
    if (form == FORM_COUNT)
        return not_implemented();
    const int id = kernels[call->operation][form][type] - 1;
    calls[id]++;
    osw_job job = {osw_pool_table[id], &call->pool};
    run_units(unit_count(call, form), (large->numel + small->numel) * large->itemsize, run_job,
              &job);
    Py_RETURN_NONE;
}

static bool expect(const char *name, Py_ssize_t nargs, Py_ssize_t wanted)
{
    if (nargs == wanted)
        return true;
    PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd", name, wanted, nargs);
    return false;
}

static osw_pool_call begin_call(const char *name, osw_operation operation, bool backward)
{
    return (osw_pool_call){
        .name = name,
        .operation = operation,
        .large = backward ? GRAD_INPUT : INPUT,
        .small = backward ? GRAD_OUTPUT : OUTPUT,
        .pool.channel_step = 1,
    };
}

static PyObject *max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("max_pool", OP_max, false);
    if (!expect(call.name, nargs, 8) || parse_tensor(&call, INPUT, args[0]) != 0 ||
        parse_tensor(&call, OUTPUT, args[1]) != 0 ||
        (args[2] != Py_None && parse_tensor(&call, OFFSETS, args[2]) != 0) ||
        parse_window(&call, args[3], args[4], args[5], args[6]) != 0 ||
        parse_int(args[7], &call.pool.channel_step) != 0)
        return NULL;
    return execute(&call);
}

static PyObject *max_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("max_pool_backward", OP_max_backward, true);
    if (!expect(call.name, nargs, 8) || parse_tensor(&call, GRAD_OUTPUT, args[0]) != 0 ||
        parse_tensor(&call, OFFSETS, args[1]) != 0 ||
        parse_tensor(&call, GRAD_INPUT, args[2]) != 0 ||
        parse_window(&call, args[3], args[4], args[5], args[6]) != 0 ||
        parse_int(args[7], &call.pool.channel_step) != 0)
        return NULL;
    return execute(&call);
}

static PyObject *avg_any(osw_pool_call *call, PyObject *const *args, Py_ssize_t nargs)
{
    const bool backward = call->large == GRAD_INPUT;
    if (!expect(call->name, nargs, 8) ||
        parse_tensor(call, backward ? GRAD_OUTPUT : INPUT, args[0]) != 0 ||
        parse_tensor(call, backward ? GRAD_INPUT : OUTPUT, args[1]) != 0 ||
        parse_window(call, args[2], args[3], args[4], NULL) != 0 ||
        parse_int(args[6], &call->pool.divisor) != 0 ||
        parse_int(args[7], &call->pool.channel_step) != 0)
        return NULL;
    const int include = PyObject_IsTrue(args[5]);
    if (include < 0)
        return NULL;
    call->pool.count_include_pad = include;
    return execute(call);
}

static PyObject *avg_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("avg_pool", OP_avg, false);
    return avg_any(&call, args, nargs);
}

static PyObject *avg_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("avg_pool_backward", OP_avg_backward, true);
    return avg_any(&call, args, nargs);
}

static PyObject *adaptive_max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("adaptive_max_pool", OP_adaptive_max, false);
    if (!expect(call.name, nargs, 3) || parse_tensor(&call, INPUT, args[0]) != 0 ||
        parse_tensor(&call, OUTPUT, args[1]) != 0 ||
        (args[2] != Py_None && parse_tensor(&call, OFFSETS, args[2]) != 0))
        return NULL;
    return execute(&call);
}

static PyObject *adaptive_max_pool_backward(PyObject *module, PyObject *const *args,
                                            Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("adaptive_max_pool_backward", OP_adaptive_max_backward, true);
    if (!expect(call.name, nargs, 3) || parse_tensor(&call, GRAD_OUTPUT, args[0]) != 0 ||
        parse_tensor(&call, OFFSETS, args[1]) != 0 || parse_tensor(&call, GRAD_INPUT, args[2]) != 0)
        return NULL;
    return execute(&call);
}

/* (N, C), or (N, C, 1, ...), as a tensor of the dimensions of `like`. */
static int as_reduced(const osw_pool_call *call, osw_tensor *t, const osw_tensor *like)
{
    if (t->ndim < 2 || like->ndim < 2 || t->size[0] != like->size[0] ||
        t->size[1] != like->size[1] || t->numel != t->size[0] * t->size[1])
        return fail(call, "output and grad_output must be (N, C) or (N, C, 1, ...)", t->numel);
    for (int i = 2; i < like->ndim; i++)
        t->size[i] = t->stride[i] = 1;
    t->ndim = like->ndim;
    return 0;
}

static PyObject *amax_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("amax_backward", OP_amax_backward, true);
    osw_tensor *t = call.tensors;
    if (!expect(call.name, nargs, 4) || parse_tensor(&call, INPUT, args[0]) != 0 ||
        parse_tensor(&call, OUTPUT, args[1]) != 0 ||
        parse_tensor(&call, GRAD_OUTPUT, args[2]) != 0 ||
        parse_tensor(&call, GRAD_INPUT, args[3]) != 0 ||
        as_reduced(&call, &t[OUTPUT], &t[INPUT]) != 0 ||
        as_reduced(&call, &t[GRAD_OUTPUT], &t[INPUT]) != 0)
        return NULL;
    if (!same_sizes(&t[INPUT], &t[GRAD_INPUT])) {
        fail(&call, "grad_input must have the size of the input", t[GRAD_INPUT].numel);
        return NULL;
    }
    return execute(&call);
}

static void run_indices(int64_t begin, int64_t end, void *context)
{
    osw_pool_write_indices(context, begin, end);
}

static PyObject *execute_indices(osw_pool_call *call)
{
    const osw_tensor *indices = &call->tensors[OUTPUT];
    osw_pool *pool = &call->pool;
    if (type_of(indices) != TYPE_i64) {
        fail(call, "indices must be int64", indices->dtype.bits);
        return NULL;
    }
    if (indices->numel == 0)
        Py_RETURN_NONE;
    const osw_form form = choose_form(call);
    if (form == FORM_COUNT)
        return not_implemented();
    const int64_t taps =
        pool->dims[DEPTH].kernel * pool->dims[HEIGHT].kernel * pool->dims[WIDTH].kernel;
    int64_t *distance = PyMem_Malloc((size_t)taps * sizeof *distance);
    if (!distance)
        return PyErr_NoMemory();
    osw_pool_distances(pool, distance, taps);
    osw_pool_indices work = {pool, pool->output, distance, form == FORM_pixels};
    run_units(unit_count(call, form), indices->numel * indices->itemsize, run_indices, &work);
    PyMem_Free(distance);
    Py_RETURN_NONE;
}

/* The input itself is not needed: a tensor of its size without memory stands for it. */
static PyObject *max_pool_indices(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = begin_call("max_pool_indices", OP_max, false);
    osw_tensor *t = call.tensors;
    if (!expect(call.name, nargs, 7) || parse_tensor(&call, OFFSETS, args[0]) != 0 ||
        parse_tensor(&call, OUTPUT, args[1]) != 0 ||
        parse_window(&call, args[3], args[4], args[5], args[6]) != 0 ||
        parse_sizes(&call, args[2], "input size", 0, &call.pool.dims->input) != 0)
        return NULL;
    t[INPUT] = t[OUTPUT];
    for (int i = 0; i < call.spatial && t[INPUT].ndim == call.spatial + 2; i++)
        t[INPUT].size[2 + i] = call.pool.dims[OSW_POOL_DIMS - call.spatial + i].input;
    if (check_sizes(&call) != 0 || check_offsets(&call) != 0 || check_written(&call) != 0)
        return NULL;
    return execute_indices(&call);
}

#define VARIANT_NAME(operation, form, dtype) #operation "_" #form "_" #dtype,

static PyObject *pool_variants(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {OSW_POOL_VARIANTS(VARIANT_NAME)};
    (void)module, (void)unused;
    PyObject *counts = PyDict_New();
    for (int i = 0; counts && i < OSW_POOL_COUNT; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(calls[i]);
        if (!count || PyDict_SetItemString(counts, names[i], count) != 0)
            Py_CLEAR(counts);
        Py_XDECREF(count);
    }
    return counts;
}

PyMethodDef osw_pool_methods[] = {
    {"max_pool", OSW_METHOD(max_pool), METH_FASTCALL,
     "max_pool(input, output, offsets, kernel, stride, padding, dilation, channel_step)"},
    {"max_pool_backward", OSW_METHOD(max_pool_backward), METH_FASTCALL,
     "max_pool_backward(grad_output, offsets, grad_input, kernel, stride, padding, dilation, "
     "channel_step)"},
    {"max_pool_indices", OSW_METHOD(max_pool_indices), METH_FASTCALL,
     "max_pool_indices(offsets, indices, input_size, kernel, stride, padding, dilation)"},
    {"avg_pool", OSW_METHOD(avg_pool), METH_FASTCALL,
     "avg_pool(input, output, kernel, stride, padding, count_include_pad, divisor, channel_step)"},
    {"avg_pool_backward", OSW_METHOD(avg_pool_backward), METH_FASTCALL,
     "avg_pool_backward(grad_output, grad_input, kernel, stride, padding, count_include_pad, "
     "divisor, channel_step)"},
    {"adaptive_max_pool", OSW_METHOD(adaptive_max_pool), METH_FASTCALL,
     "adaptive_max_pool(input, output, index)"},
    {"adaptive_max_pool_backward", OSW_METHOD(adaptive_max_pool_backward), METH_FASTCALL,
     "adaptive_max_pool_backward(grad_output, index, grad_input)"},
    {"amax_backward", OSW_METHOD(amax_backward), METH_FASTCALL,
     "amax_backward(input, output, grad_output, grad_input)"},
    {"pool_variants", pool_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
