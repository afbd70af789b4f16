/* SPDX-License-Identifier: MIT */
/* depthwise(input, weight, bias, stride, padding) -> output and depthwise_backward(grad_output,
 * input, weight, stride, padding, wants_input, wants_weight, wants_bias) -> the three gradients,
 * None for one that is not wanted. stride, padding: an int or a pair of ints, as torch takes them.
 * Input, output and their gradients are channels_last. plain_depthwise and plain_depthwise_backward
 * take the same arguments and return NotImplemented for everything that torch should see instead:
 * what would be an error, calls that its dispatcher watches, tiers and sizes on which it is as
 * fast; depthwise_fits says whether plain_depthwise would take its arguments.
 * depthwise_variants(): the kernels and how often each was called. */
#include "binding/binding.h"
#include "binding/profile.h"
#include "binding/tensor_arg.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "binding/variant_counts.h"
#include "core/isa.h"
#include "core/parallel.h"
#include "depthwise/holds.h"

#include <assert.h>

/* MIN_BYTES: work for which the GIL is released. FEWEST_CHANNELS: below, vectors are not filled. */
enum { MIN_BYTES = 1 << 16, FEWEST_CHANNELS = 8, CODE_FLOAT = 2 };

static uint64_t calls[OSW_DEPTHWISE_COUNT];

typedef enum osw_role {
    INPUT,
    WEIGHT,
    BIAS,
    OUTPUT,
    GRAD_OUTPUT,
    GRAD_INPUT,
    GRAD_WEIGHT,
    GRAD_BIAS,
    ROLE_COUNT
} osw_role;

static const char *const role_names[] = {"input",       "weight",     "bias",        "output",
                                         "grad_output", "grad_input", "grad_weight", "grad_bias"};

typedef struct osw_depthwise_call {
    const char *name;
    bool plain; /* only what torch's dispatcher need not see and is faster at */
    bool given[ROLE_COUNT];
    osw_tensor tensors[ROLE_COUNT];
    PyObject *made[ROLE_COUNT]; /* new references, or NULL */
    bool is_double;
    osw_depthwise d;
} osw_depthwise_call;

static int fail(const osw_depthwise_call *call, osw_role role, const char *problem, long long got,
                long long wanted)
{
    PyErr_Format(PyExc_RuntimeError, "%s: %s %s, got %lld, expected %lld", call->name,
                 role_names[role], problem, got, wanted);
    return -1;
}

static int parse(osw_depthwise_call *call, osw_role role, PyObject *object)
{
    if (object == Py_None && role == BIAS)
        return 0;
    call->given[role] = true;
    if (!call->plain)
        return osw_tensor_arg(object, call->name, &call->tensors[role]);
    if (osw_tensor_plain(object, &call->tensors[role]))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s: %s is no plain tensor", call->name, role_names[role]);
    return -1;
}

/* An int, or a tuple or list of two, from `least` on. */
static int parse_pair(const osw_depthwise_call *call, const char *what, PyObject *object,
                      int64_t least, int64_t pair[2])
{
    PyObject *tuple = PyTuple_Check(object) || PyList_Check(object)
                          ? PySequence_Tuple(object)
                          : PyTuple_Pack(2, object, object);
    bool fits = tuple && PyTuple_Size(tuple) == 2;
    for (int i = 0; fits && i < 2; i++) {
        fits = osw_exact_int(PyTuple_GetItem(tuple, i), least, INT32_MAX, &pair[i]);
    }
    Py_XDECREF(tuple);
    PyErr_Clear();
    if (fits)
        return 0;
    PyErr_Format(PyExc_RuntimeError, "%s: %s must be one or two ints from %lld on, got %R",
                 call->name, what, (long long)least, object);
    return -1;
}

static int parse_window(osw_depthwise_call *call, PyObject *stride, PyObject *padding)
{
    int64_t strides[2], paddings[2];
    if (parse_pair(call, "stride", stride, 1, strides) != 0 ||
        parse_pair(call, "padding", padding, 0, paddings) != 0)
        return -1;
    if (strides[0] != strides[1] || strides[0] > 2) {
        PyErr_Format(PyExc_RuntimeError, "%s: stride must be 1 or 2 in both directions, got %R",
                     call->name, stride);
        return -1;
    }
    call->d.stride = strides[0];
    call->d.top = paddings[0];
    call->d.left = paddings[1];
    return 0;
}

static int check_dtypes(osw_depthwise_call *call)
{
    const osw_tensor *input = &call->tensors[INPUT];
    const osw_dl_dtype *dtype = &input->dtype;
    if (dtype->code != CODE_FLOAT || dtype->lanes != 1 || (dtype->bits != 32 && dtype->bits != 64))
        return fail(call, INPUT, "must be float32 or float64", dtype->bits, 32);
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->given[i] && !osw_same_dtype(&call->tensors[i], input))
            return fail(call, (osw_role)i, "has another dtype than input",
                        call->tensors[i].dtype.bits, dtype->bits);
    call->is_double = dtype->bits == 64;
    return 0;
}

/* Dense with the channels innermost, of these sizes. */
static bool is_image(const osw_tensor *t, int64_t n, int64_t height, int64_t width, int64_t c)
{
    const int64_t size[] = {n, c, height, width};
    const int64_t stride[] = {height * width * c, 1, width * c, c};
    bool fits = t->ndim == 4;
    for (int i = 0; fits && i < 4; i++)
        fits = t->size[i] == size[i] && (size[i] == 1 || t->stride[i] == stride[i]);
    return fits;
}

/* Sizes from input and weight. */
static int check_sizes(osw_depthwise_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT], *w = &call->tensors[WEIGHT];
    osw_depthwise *d = &call->d;
    if (x->ndim != 4 || x->numel == 0)
        return fail(call, INPUT, "must be (N, C, H, W) with elements", x->ndim, 4);
    d->batch = x->size[0], d->channels = x->size[1], d->height = x->size[2], d->width = x->size[3];
    if (!is_image(x, d->batch, d->height, d->width, d->channels))
        return fail(call, INPUT, "must be channels_last", x->stride[1], 1);
    if (w->ndim != 4 || w->size[0] != d->channels || w->size[1] != 1 || !osw_is_dense(w, 0))
        return fail(call, WEIGHT, "must be (C, 1, k, k) and contiguous", w->size[0], d->channels);
    d->side = w->size[2];
    if (w->size[3] != d->side || (d->side != 3 && d->side != 5))
        return fail(call, WEIGHT, "must have 3 x 3 or 5 x 5 taps", w->size[3], d->side);
    d->out_height = (d->height + 2 * d->top - d->side) / d->stride + 1;
    d->out_width = (d->width + 2 * d->left - d->side) / d->stride + 1;
    if (d->height + 2 * d->top < d->side || d->width + 2 * d->left < d->side)
        return fail(call, INPUT, "with its padding is smaller than the window", d->height, d->side);
    int64_t numel = x->itemsize; /* of output and grad_output, products of which follow */
    if (__builtin_mul_overflow(numel, d->batch * d->channels, &numel) ||
        __builtin_mul_overflow(numel, d->out_height, &numel) ||
        __builtin_mul_overflow(numel, d->out_width, &numel))
        return fail(call, OUTPUT, "has too many elements, rows", d->out_height, INT32_MAX);
    return 0;
}

static int check_others(const osw_depthwise_call *call)
{
    const osw_tensor *bias = &call->tensors[BIAS], *dy = &call->tensors[GRAD_OUTPUT];
    const osw_depthwise *d = &call->d;
    if (call->given[BIAS] &&
        (bias->ndim != 1 || bias->size[0] != d->channels || !osw_is_dense(bias, 0)))
        return fail(call, BIAS, "must be (C,) and contiguous", bias->numel, d->channels);
    if (call->given[GRAD_OUTPUT] &&
        !is_image(dy, d->batch, d->out_height, d->out_width, d->channels))
        return fail(call, GRAD_OUTPUT, "must be like the output, in elements", dy->numel,
                    d->batch * d->channels * d->out_height * d->out_width);
    if (call->plain && d->channels < FEWEST_CHANNELS)
        return fail(call, INPUT, "has fewer channels than pay", d->channels, FEWEST_CHANNELS);
    if (call->plain && !osw_suggests_channels_last(&call->tensors[INPUT]))
        return fail(call, INPUT, "has an output that torch makes contiguous", d->channels, 1);
    return 0;
}

/* Everything that the call reads. */
static int prepare(osw_depthwise_call *call, PyObject *const *tensors, const osw_role *roles,
                   PyObject *const *window)
{
    if (parse_window(call, window[0], window[1]) != 0)
        return -1;
    for (int i = 0; i < 3; i++)
        if (parse(call, roles[i], tensors[i]) != 0)
            return -1;
    if (check_dtypes(call) != 0 || check_sizes(call) != 0 || check_others(call) != 0)
        return -1;
    call->d.input = call->tensors[INPUT].data;
    call->d.bias = call->tensors[BIAS].data;
    call->d.grad_output = call->tensors[GRAD_OUTPUT].data;
    return 0;
}

/* A new tensor like that of `like`, at `role`. */
static void *make(osw_depthwise_call *call, osw_role role, PyObject *object, const osw_tensor *like,
                  bool channels_last)
{
    call->made[role] = osw_tensor_new(object, OSW_SAME_DTYPE, call->name, like->ndim, like->size,
                                      channels_last, &call->tensors[role]);
    return call->made[role] ? call->tensors[role].data : NULL;
}

/* What the threads share. */
typedef struct osw_depthwise_work {
    const osw_depthwise *d;
    osw_depthwise_fn *kernels[2]; /* forward; or the backward's two, NULL: not wanted */
    osw_depthwise_chunks chunks;
    char *sums;
    int64_t sums_bytes; /* of a chunk */
} osw_depthwise_work;

static void run_rows(int64_t begin, int64_t end, void *context)
{
    const osw_depthwise_work *work = context;
    assert(osw_depthwise_rows_hold(work->d, begin, end, work->d->out_height));
    work->kernels[0](work->d, begin, end, NULL);
}

/* The output's rows of a chunk are read by both kernels, one soon after the other. */
static void run_chunks(int64_t begin, int64_t end, void *context)
{
    const osw_depthwise_work *work = context;
    const osw_depthwise *d = work->d;
    for (int64_t i = begin; i < end; i++) {
        const int64_t heights[] = {d->out_height, d->height};
        char *const sums[] = {work->sums + i * work->sums_bytes, NULL};
        for (int k = 0; k < 2; k++) {
            const int64_t first = osw_depthwise_first_row(d, &work->chunks, i, heights[k]);
            const int64_t last = osw_depthwise_first_row(d, &work->chunks, i + 1, heights[k]);
            assert(osw_depthwise_rows_hold(d, first, last, heights[k]));
            if (work->kernels[k])
                work->kernels[k](d, first, last, sums[k]);
        }
    }
}

/* `bytes` are moved in all. */
static void run(const char *name, osw_depthwise_work *work, int64_t count, int64_t bytes,
                osw_body *body)
{
    assert(osw_depthwise_holds(work->d) && count >= 1);
    PyObject *range = osw_profile_begin(name);
    PyThreadState *state = bytes > MIN_BYTES ? PyEval_SaveThread() : NULL;
    osw_parallel_for(count, osw_grain(bytes / count), body, work);
    if (state)
        PyEval_RestoreThread(state);
    osw_profile_end(range);
}

static osw_depthwise_fn *kernel_of(const osw_depthwise_call *call, osw_depthwise_id id)
{
    id = (osw_depthwise_id)(id + call->is_double);
    calls[id]++;
    return osw_depthwise_table[id];
}

static void pack(const osw_depthwise_call *call, void *taps)
{
    const void *weight = call->tensors[WEIGHT].data;
    if (call->is_double)
        osw_depthwise_pack_f64(&call->d, weight, taps);
    else
        osw_depthwise_pack_f32(&call->d, weight, taps);
}

static int64_t moved_bytes(const osw_depthwise_call *call)
{
    const osw_depthwise *d = &call->d;
    const int64_t pixels = d->height * d->width + d->out_height * d->out_width;
    return d->batch * pixels * d->channels * call->tensors[INPUT].itemsize;
}

static PyObject *execute_forward(osw_depthwise_call *call, PyObject *input)
{
    osw_depthwise *d = &call->d;
    const osw_tensor like = {.ndim = 4,
                             .size = {d->batch, d->channels, d->out_height, d->out_width}};
    d->output = make(call, OUTPUT, input, &like, true);
    if (!d->output || osw_tensors_unchanged(call->name, call->tensors, ROLE_COUNT) != 0)
        return NULL;
    void *taps =
        PyMem_Malloc((size_t)(call->tensors[WEIGHT].numel * call->tensors[WEIGHT].itemsize));
    if (!taps)
        return PyErr_NoMemory();
    pack(call, taps);
    d->taps = taps;
    osw_depthwise_work work = {.d = d, .kernels = {kernel_of(call, OSW_DEPTHWISE_forward_f32)}};
    run("depthwise_conv2d", &work, d->batch * d->out_height, moved_bytes(call), run_rows);
    PyMem_Free(taps);
    return Py_NewRef(call->made[OUTPUT]);
}

/* Room of the backward: the taps, the sums of every chunk, their total in double. */
static int run_backward(osw_depthwise_call *call)
{
    osw_depthwise *d = &call->d;
    const bool sums = call->made[GRAD_WEIGHT] || call->made[GRAD_BIAS];
    const int64_t itemsize = call->tensors[INPUT].itemsize;
    const int64_t length = (d->side * d->side + 1) * d->channels;
    osw_depthwise_work work = {.d = d, .chunks = osw_depthwise_cut(d)};
    work.sums_bytes = sums ? length * itemsize : 0;
    const int64_t total = length * (int64_t)sizeof(double);
    char *room =
        PyMem_Malloc((size_t)(total + length * itemsize + work.chunks.count * work.sums_bytes));
    if (!room) {
        PyErr_NoMemory();
        return -1;
    }
    void *taps = room + total;
    work.sums = room + total + length * itemsize;
    d->taps = taps;
    d->sums_output = call->made[GRAD_BIAS] != NULL;
    if (sums)
        work.kernels[0] = kernel_of(call, OSW_DEPTHWISE_grad_weight_f32);
    if (d->grad_input) {
        pack(call, taps);
        work.kernels[1] = kernel_of(call, OSW_DEPTHWISE_grad_input_f32);
    }
    run("depthwise_conv2d_backward", &work, work.chunks.count, 2 * moved_bytes(call), run_chunks);
    void *weight = call->tensors[GRAD_WEIGHT].data, *bias = call->tensors[GRAD_BIAS].data;
    if (sums && call->is_double)
        osw_depthwise_finish_f64(d, work.chunks.count, (double *)(void *)work.sums,
                                 (double *)(void *)room, weight, bias);
    else if (sums)
        osw_depthwise_finish_f32(d, work.chunks.count, (float *)(void *)work.sums,
                                 (double *)(void *)room, weight, bias);
    PyMem_Free(room);
    return 0;
}

static PyObject *execute_backward(osw_depthwise_call *call, PyObject *input,
                                  PyObject *const *wanted)
{
    const osw_tensor *x = &call->tensors[INPUT], *w = &call->tensors[WEIGHT];
    const osw_tensor bias = {.ndim = 1, .size = {call->d.channels}};
    if (wanted[0] == Py_True && !(call->d.grad_input = make(call, GRAD_INPUT, input, x, true)))
        return NULL;
    if (wanted[1] == Py_True && !make(call, GRAD_WEIGHT, input, w, w->stride[1] == 1))
        return NULL;
    if (wanted[2] == Py_True && !make(call, GRAD_BIAS, input, &bias, false))
        return NULL;
    if (osw_tensors_unchanged(call->name, call->tensors, ROLE_COUNT) != 0 ||
        run_backward(call) != 0)
        return NULL;
    PyObject *tuple = PyTuple_New(3);
    for (int i = 0; tuple && i < 3; i++) {
        PyObject *made = call->made[GRAD_INPUT + i];
        PyTuple_SetItem(tuple, i, Py_NewRef(made ? made : Py_None));
    }
    return tuple;
}

static const osw_role forward_roles[] = {INPUT, WEIGHT, BIAS};
static const osw_role backward_roles[] = {GRAD_OUTPUT, INPUT, WEIGHT};
enum { WINDOW = 3, WANTED = 5, FORWARD_ARGUMENTS = 5, BACKWARD_ARGUMENTS = 8 };

static PyObject *run_call(bool plain, bool backward, PyObject *const *args, Py_ssize_t nargs)
{
    osw_depthwise_call call = {.name = backward ? "depthwise_backward" : "depthwise",
                               .plain = plain};
    const Py_ssize_t expected = backward ? BACKWARD_ARGUMENTS : FORWARD_ARGUMENTS;
    if (!osw_expect(call.name, nargs, expected))
        return NULL;
    PyObject *result = NULL;
    if (prepare(&call, args, backward ? backward_roles : forward_roles, args + WINDOW) == 0)
        result = backward ? execute_backward(&call, args[1], args + WANTED)
                          : execute_forward(&call, args[0]);
    for (int i = 0; i < ROLE_COUNT; i++)
        Py_XDECREF(call.made[i]);
    return result;
}

static PyObject *run_plain(bool backward, PyObject *const *args, Py_ssize_t nargs)
{
    if (!osw_depthwise_leads(osw_isa_current()) || !osw_plain_eager(true))
        Py_RETURN_NOTIMPLEMENTED;
    return osw_or_declined(run_call(true, backward, args, nargs));
}

static PyObject *depthwise(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    return run_call(false, false, args, nargs);
}

static PyObject *plain_depthwise(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    return run_plain(false, args, nargs);
}

static PyObject *depthwise_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    return run_call(false, true, args, nargs);
}

static PyObject *plain_depthwise_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    return run_plain(true, args, nargs);
}

static PyObject *depthwise_fits(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_depthwise_call call = {.name = "depthwise", .plain = true};
    const bool fits = nargs == FORWARD_ARGUMENTS && osw_depthwise_leads(osw_isa_current()) &&
                      osw_plain_eager(true) &&
                      prepare(&call, args, forward_roles, args + WINDOW) == 0;
    PyErr_Clear();
    return PyBool_FromLong(fits);
}

#define NAME(operation, dtype) #operation "_" #dtype,

static PyObject *depthwise_variants(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {OSW_DEPTHWISE_VARIANTS(NAME)};
    (void)module, (void)unused;
    return osw_variant_counts(OSW_DEPTHWISE_COUNT, names, calls);
}

static PyObject *depthwise_leads(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyBool_FromLong(osw_depthwise_leads(osw_isa_current()));
}

PyMethodDef osw_depthwise_methods[] = {
    {"depthwise", OSW_METHOD(depthwise), METH_FASTCALL,
     "depthwise(input, weight, bias, stride, padding) -> output"},
    {"depthwise_backward", OSW_METHOD(depthwise_backward), METH_FASTCALL,
     "depthwise_backward(grad_output, input, weight, stride, padding, wants_input, wants_weight, "
     "wants_bias) -> the gradients"},
    {"plain_depthwise", OSW_METHOD(plain_depthwise), METH_FASTCALL,
     "As depthwise, or NotImplemented where torch should run."},
    {"plain_depthwise_backward", OSW_METHOD(plain_depthwise_backward), METH_FASTCALL,
     "As depthwise_backward, or NotImplemented where torch should run."},
    {"depthwise_fits", OSW_METHOD(depthwise_fits), METH_FASTCALL,
     "Whether plain_depthwise takes these arguments."},
    {"depthwise_variants", depthwise_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {"depthwise_leads", depthwise_leads, METH_NOARGS,
     "Whether convolutions go to the kernels on the tier in use."},
    {NULL, NULL, 0, NULL},
};
