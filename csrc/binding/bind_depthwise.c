/* SPDX-License-Identifier: MIT */
/* depthwise(input, weight, bias, stride, padding, dilation) -> output and
 * depthwise_backward(grad_output, input, weight, stride, padding, dilation, wants_input,
 * wants_weight, wants_bias) -> the three gradients, None for one that is not wanted. stride,
 * padding, dilation: an int or a pair of ints, as in torch.
 * Input, output and their gradients are channels_last. plain_depthwise and plain_depthwise_backward
 * have the same arguments and return NotImplemented for everything that torch should see instead:
 * what would be an error, calls that its dispatcher watches, tiers and sizes on which it is as
 * fast; depthwise_fits says whether plain_depthwise supports its arguments.
 * depthwise_variants(): the kernels and how often each was called. */
#include "binding/layer.h"
#include "core/isa.h"
#include "depthwise/run.h"

enum { FEWEST_CHANNELS = 8 }; /* below, vectors are not filled */

static uint64_t calls[OSW_DEPTHWISE_COUNT];

/* An int, or a tuple or list of two, from `least` on. */
static int read_pair(const osw_call *call, const char *what, PyObject *object, int64_t least,
                     int64_t pair[2])
{
    if (osw_exact_sides(object, 2, false, least, pair))
        return 0;
    return osw_fail(call->name, "%s must be one or two ints from %lld on, got %R", what,
                    (long long)least, object);
}

static int read_window(const osw_call *call, osw_depthwise *d, PyObject *const *window)
{
    int64_t stride[2], padding[2], dilation[2];
    if (read_pair(call, "stride", window[0], 1, stride) != 0 ||
        read_pair(call, "padding", window[1], 0, padding) != 0 ||
        read_pair(call, "dilation", window[2], 1, dilation) != 0)
        return -1;
    if (stride[0] != stride[1] || stride[0] > 2)
        return osw_fail(call->name, "stride must be 1 or 2 in both directions, got %R", window[0]);
    if (dilation[0] != dilation[1] || (stride[0] == 2 && dilation[0] != 1))
        return osw_fail(call->name,
                        "dilation must be the same in both directions, and 1 with a stride, got %R",
                        window[2]);
    d->stride = stride[0];
    d->dilation = dilation[0];
    d->top = padding[0];
    d->left = padding[1];
    return 0;
}

static int check_dtypes(const osw_call *call, osw_depthwise_job *job)
{
    const osw_tensor *input = &call->tensors[INPUT];
    job->dtype = osw_dtype_of_dlpack(input->dtype.code, input->dtype.bits, input->dtype.lanes);
    if (job->dtype != OSW_F32 && job->dtype != OSW_F64)
        return osw_call_fail(call, INPUT, "must be float32 or float64", input->dtype.bits, 32);
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->objects[i] && !osw_same_dtype(&call->tensors[i], input))
            return osw_call_fail(call, i, "has another dtype than input",
                                 call->tensors[i].dtype.bits, input->dtype.bits);
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
static int check_sizes(const osw_call *call, osw_depthwise *d)
{
    const osw_tensor *x = &call->tensors[INPUT], *w = &call->tensors[WEIGHT];
    if (x->ndim != 4 || x->numel == 0)
        return osw_call_fail(call, INPUT, "must be (N, C, H, W) with elements", x->ndim, 4);
    d->batch = x->size[0], d->channels = x->size[1], d->height = x->size[2], d->width = x->size[3];
    if (!is_image(x, d->batch, d->height, d->width, d->channels))
        return osw_call_fail(call, INPUT, "must be channels_last", x->stride[1], 1);
    if (w->ndim != 4 || w->size[0] != d->channels || w->size[1] != 1 || !osw_is_dense(w, 0))
        return osw_call_fail(call, WEIGHT, "must be (C, 1, k, k) and contiguous", w->size[0],
                             d->channels);
    d->side = w->size[2];
    if (w->size[3] != d->side || d->side < 3 || d->side > OSW_DEPTHWISE_MOST_SIDE ||
        d->side % 2 == 0)
        return osw_call_fail(call, WEIGHT, "must have 3 x 3, 5 x 5, 7 x 7 or 9 x 9 taps",
                             w->size[3], d->side);
    const int64_t window = (d->side - 1) * d->dilation + 1;
    if (d->height + 2 * d->top < window || d->width + 2 * d->left < window)
        return osw_call_fail(call, INPUT, "with its padding is smaller than the window", d->height,
                             window);
    d->out_height = osw_depthwise_outputs(d, d->height, d->top);
    d->out_width = osw_depthwise_outputs(d, d->width, d->left);
    int64_t numel = x->itemsize; /* of output and grad_output, products of which follow */
    if (__builtin_mul_overflow(numel, d->batch * d->channels, &numel) ||
        __builtin_mul_overflow(numel, d->out_height, &numel) ||
        __builtin_mul_overflow(numel, d->out_width, &numel))
        return osw_call_fail(call, OUTPUT, "has too many elements, rows", d->out_height, INT32_MAX);
    return 0;
}

static int check_others(const osw_call *call, const osw_depthwise *d)
{
    const osw_tensor *bias = &call->tensors[BIAS], *dy = &call->tensors[GRAD_OUTPUT];
    if (call->objects[BIAS] &&
        (bias->ndim != 1 || bias->size[0] != d->channels || !osw_is_dense(bias, 0)))
        return osw_call_fail(call, BIAS, "must be (C,) and contiguous", bias->numel, d->channels);
    if (call->objects[GRAD_OUTPUT] &&
        !is_image(dy, d->batch, d->out_height, d->out_width, d->channels))
        return osw_call_fail(call, GRAD_OUTPUT, "must be like the output, in elements", dy->numel,
                             d->batch * d->channels * d->out_height * d->out_width);
    if (call->plain && d->channels < FEWEST_CHANNELS)
        return osw_call_fail(call, INPUT, "has fewer channels than pay", d->channels,
                             FEWEST_CHANNELS);
    if (call->plain && !osw_suggests_channels_last(&call->tensors[INPUT]))
        return osw_call_fail(call, INPUT, "has an output that torch makes contiguous", d->channels,
                             1);
    return 0;
}

/* Everything that the call reads: three tensors from the role `first` on, and the window. */
static int prepare(osw_call *call, osw_depthwise_job *job, int first, PyObject *const *args)
{
    const int count = first == INPUT && args[2] == Py_None ? 2 : 3;
    if (call->plain && (!osw_depthwise_leads(osw_isa_current()) || !osw_plain_eager(true)))
        return -1;
    if (read_window(call, &job->d, args + 3) != 0 ||
        osw_call_tensors(call, first, count, args) != 0 || check_dtypes(call, job) != 0 ||
        check_sizes(call, &job->d) != 0 || check_others(call, &job->d) != 0)
        return -1;
    job->weight = call->tensors[WEIGHT].data;
    job->d.input = call->tensors[INPUT].data;
    job->d.bias = call->tensors[BIAS].data;
    job->d.grad_output = call->tensors[GRAD_OUTPUT].data;
    return 0;
}

static int run(const osw_call *call, osw_depthwise_job *job, bool backward)
{
    if (osw_call_unchanged(call) != 0)
        return -1;
    char *room = osw_room(osw_depthwise_plan(job, backward, calls));
    if (!room)
        return -1;
    const osw_running running = osw_run_begin(
        backward ? "depthwise_conv2d_backward" : "depthwise_conv2d", job->bytes > OSW_GRAIN_BYTES);
    (backward ? osw_depthwise_backward : osw_depthwise_forward)(job, room);
    osw_run_end(running);
    PyMem_Free(room);
    return 0;
}

static int execute_forward(osw_call *call, osw_depthwise_job *job)
{
    osw_depthwise *d = &job->d;
    const int64_t size[] = {d->batch, d->channels, d->out_height, d->out_width};
    if (osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, 4, size, true) != 0)
        return -1;
    d->output = call->tensors[OUTPUT].data;
    return run(call, job, false);
}

static int execute_backward(osw_call *call, osw_depthwise_job *job, PyObject *const *wanted)
{
    const osw_tensor *t = call->tensors;
    if (osw_layer_gradients(call, wanted, true, t[WEIGHT].stride[1] == 1, 1) != 0)
        return -1;
    job->d.grad_input = t[GRAD_INPUT].data;
    job->grad_weight = t[GRAD_WEIGHT].data;
    job->grad_bias = t[GRAD_BIAS].data;
    return run(call, job, true);
}

static PyObject *forward(bool plain, PyObject *const *args, Py_ssize_t nargs)
{
    osw_call call = {.name = "depthwise", .roles = osw_layer_roles, .plain = plain};
    osw_depthwise_job job = {.weight = NULL};
    const bool done = osw_expect(call.name, nargs, 6) && prepare(&call, &job, INPUT, args) == 0 &&
                      execute_forward(&call, &job) == 0;
    return osw_call_end(&call, done ? osw_call_made(&call, OUTPUT) : NULL);
}

static PyObject *backward(bool plain, PyObject *const *args, Py_ssize_t nargs)
{
    osw_call call = {.name = "depthwise_backward", .roles = osw_layer_roles, .plain = plain};
    osw_depthwise_job job = {.weight = NULL};
    const bool done = osw_expect(call.name, nargs, 9) &&
                      prepare(&call, &job, GRAD_OUTPUT, args) == 0 &&
                      execute_backward(&call, &job, args + 6) == 0;
    return osw_call_end(&call, done ? osw_call_tuple(&call, GRAD_INPUT, 3) : NULL);
}

OSW_ENTRY(depthwise)
{
    return forward(false, args, nargs);
}

OSW_ENTRY(plain_depthwise)
{
    return osw_or_declined(forward(true, args, nargs));
}

OSW_ENTRY(depthwise_backward)
{
    return backward(false, args, nargs);
}

OSW_ENTRY(plain_depthwise_backward)
{
    return osw_or_declined(backward(true, args, nargs));
}

OSW_ENTRY(depthwise_fits)
{
    osw_call call = {.name = "depthwise", .roles = osw_layer_roles, .plain = true};
    osw_depthwise_job job = {.weight = NULL};
    const bool fits = nargs == 6 && prepare(&call, &job, INPUT, args) == 0;
    PyErr_Clear();
    return PyBool_FromLong(fits);
}

OSW_ENTRY_NO_ARGS(depthwise_leads)
{
    return PyBool_FromLong(osw_depthwise_leads(osw_isa_current()));
}

OSW_ENTRY_COUNTS(depthwise_variants, calls, OSW_DEPTHWISE_VARIANTS(OSW_VARIANT_2))

PyMethodDef osw_depthwise_methods[] = {
    OSW_ENTRY_LINE(depthwise,
                   "depthwise(input, weight, bias, stride, padding, dilation) -> output"),
    OSW_ENTRY_LINE(depthwise_backward,
                   "depthwise_backward(grad_output, input, weight, stride, "
                   "padding, dilation, wants_input, wants_weight, wants_bias) -> "
                   "the gradients"),
    OSW_ENTRY_LINE(plain_depthwise, "As depthwise, or NotImplemented if torch should run."),
    OSW_ENTRY_LINE(plain_depthwise_backward,
                   "As depthwise_backward, or NotImplemented if torch should run."),
    OSW_ENTRY_LINE(depthwise_fits, "Whether plain_depthwise supports these arguments."),
    OSW_ENTRY_COUNTS_LINE(depthwise_variants),
    OSW_ENTRY_NO_ARGS_LINE(depthwise_leads,
                           "Whether convolutions go to the kernels on the tier in use."),
    {NULL, NULL, 0, NULL},
};
