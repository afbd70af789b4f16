/* SPDX-License-Identifier: MIT */
/* depthwise(input, weight, bias, stride, padding, dilation) -> output and
 * depthwise_backward(grad_output, input, weight, stride, padding, dilation, wants_input,
 * wants_weight, wants_bias) -> the three gradients, None for one that is not wanted. stride,
 * padding, dilation: an int or a pair of ints, as in torch.
 * Input, output and their gradients are channels_last; beside those of 16 bits weight and bias may
 * be float32, which is not rounded, as are their gradients then. plain_depthwise and
 * plain_depthwise_backward have the same arguments and return NotImplemented for everything that
 * torch should see instead: what would be an error, calls that its dispatcher watches but for
 * autocast, tiers and sizes on which it is as fast; depthwise_fits says whether plain_depthwise
 * supports its arguments, depthwise_fits_but_for_format whether it would if the input were in
 * channels_last. depthwise_variants(): the kernels and how often each was called. */
#include "binding/layer.h"
#include "core/isa.h"
#include "depthwise/holds.h"
#include "depthwise/run.h"

enum { FEWEST_CHANNELS = 8 }; /* below, vectors are not filled */

static uint64_t calls[OSW_DEPTHWISE_COUNT];

/* What the steps of a call share. */
typedef struct osw_depthwise_call {
    osw_depthwise_job job;
    bool any_format; /* of the input, which is not read */
} osw_depthwise_call;

static bool reads_any_format(const osw_call *call)
{
    return ((const osw_depthwise_call *)call->job)->any_format;
}

/* An int, or a tuple or list of two, from `least` on. */
static int read_pair(const osw_call *call, const char *what, PyObject *object, int64_t least,
                     int64_t pair[2])
{
    if (osw_exact_sides(object, 2, false, least, pair))
        return 0;
    return osw_fail(call->name, "%s must be one or two ints from %lld on, got %R", what,
                    (long long)least, object);
}

static int read_window(osw_call *call)
{
    osw_depthwise *d = &((osw_depthwise_job *)call->job)->d;
    PyObject *const *window = call->args + 3;
    int64_t stride[2], padding[2], dilation[2];
    if (call->plain && (!osw_depthwise_leads(osw_isa_current()) || !osw_plain_eager(false)))
        return -1;
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
    const osw_tensor *t = call->tensors;
    job->dtype = osw_dtype_of(&t[INPUT]);
    job->weight_dtype = osw_dtype_of(&t[WEIGHT]);
    if (job->dtype == OSW_DTYPE_COUNT)
        return osw_call_fail(call, INPUT, "must be of a floating-point dtype", t[INPUT].dtype.bits,
                             32);
    if (!osw_depthwise_dtypes_hold(job->dtype, job->weight_dtype))
        return osw_call_fail(call, WEIGHT, "must be of the input's dtype", t[WEIGHT].dtype.bits,
                             t[INPUT].dtype.bits);
    if (call->objects[BIAS] && !osw_same_dtype(&t[BIAS], &t[WEIGHT]))
        return osw_call_fail(call, BIAS, "must be of the weight's dtype", t[BIAS].dtype.bits,
                             t[WEIGHT].dtype.bits);
    if (call->objects[GRAD_OUTPUT] && !osw_same_dtype(&t[GRAD_OUTPUT], &t[INPUT]))
        return osw_call_fail(call, GRAD_OUTPUT, "must be of the input's dtype",
                             t[GRAD_OUTPUT].dtype.bits, t[INPUT].dtype.bits);
    return 0;
}

/* Whether so many rows or columns, with padding at both ends, are fewer than a window needs. */
static bool misses(int64_t length, int64_t taps, int64_t padding, const osw_depthwise *d)
{
    return length + 2 * padding < (taps - 1) * d->dilation + 1;
}

/* Sizes from input and weight. */
static int check_sizes(const osw_call *call, osw_depthwise *d)
{
    const osw_tensor *x = &call->tensors[INPUT], *w = &call->tensors[WEIGHT];
    if (x->ndim != 4 || x->numel == 0)
        return osw_call_fail(call, INPUT, "must be (N, C, H, W) with elements", x->ndim, 4);
    d->batch = x->size[0], d->channels = x->size[1], d->height = x->size[2], d->width = x->size[3];
    if (!osw_is_pixels(x) && !reads_any_format(call))
        return osw_call_fail(call, INPUT, "must be channels_last", x->stride[1], 1);
    if (w->ndim != 4 || w->size[0] != d->channels || w->size[1] != 1 || !osw_is_dense(w, 0))
        return osw_call_fail(call, WEIGHT, "must be (C, 1, kH, kW) and contiguous", w->size[0],
                             d->channels);
    d->tall = w->size[2], d->wide = w->size[3];
    for (int i = 2; i < 4; i++)
        if (!osw_depthwise_has_side(w->size[i]))
            return osw_call_fail(call, WEIGHT, "must have sides of 1, 3, 5, 7 or 9 taps",
                                 w->size[i], OSW_DEPTHWISE_MOST_SIDE);
    if (d->tall * d->wide == 1)
        return osw_call_fail(call, WEIGHT, "must have several taps", 1, 3);
    if (misses(d->height, d->tall, d->top, d) || misses(d->width, d->wide, d->left, d))
        return osw_call_fail(call, INPUT, "with its padding is smaller than the window", d->height,
                             (d->tall - 1) * d->dilation + 1);
    d->out_height = osw_depthwise_outputs(d, d->tall, d->height, d->top);
    d->out_width = osw_depthwise_outputs(d, d->wide, d->width, d->left);
    int64_t numel = x->itemsize; /* of output and grad_output, products of which follow */
    if (__builtin_mul_overflow(numel, d->batch * d->channels, &numel) ||
        __builtin_mul_overflow(numel, d->out_height, &numel) ||
        __builtin_mul_overflow(numel, d->out_width, &numel))
        return osw_call_fail(call, OUTPUT, "has too many elements, rows", d->out_height, INT32_MAX);
    return 0;
}

/* Whether images and outputs are of one pixel, which lie alike in both memory formats. */
static bool is_one_pixel(const osw_depthwise *d)
{
    return d->height * d->width * d->out_height * d->out_width == 1;
}

static int check_others(const osw_call *call, const osw_depthwise *d)
{
    const osw_tensor *bias = &call->tensors[BIAS], *dy = &call->tensors[GRAD_OUTPUT];
    if (call->objects[BIAS] &&
        (bias->ndim != 1 || bias->size[0] != d->channels || !osw_is_dense(bias, 0)))
        return osw_call_fail(call, BIAS, "must be (C,) and contiguous", bias->numel, d->channels);
    const int64_t size[] = {d->batch, d->channels, d->out_height, d->out_width};
    if (call->objects[GRAD_OUTPUT] && !(osw_has_size(dy, 4, size) && osw_is_pixels(dy)))
        return osw_call_fail(call, GRAD_OUTPUT, "must be like the output, in elements", dy->numel,
                             d->batch * d->channels * d->out_height * d->out_width);
    if (call->plain && d->channels < FEWEST_CHANNELS)
        return osw_call_fail(call, INPUT, "has fewer channels than pay", d->channels,
                             FEWEST_CHANNELS);
    if (call->plain && !osw_suggests_channels_last(&call->tensors[INPUT]) && !is_one_pixel(d) &&
        !reads_any_format(call))
        return osw_call_fail(call, INPUT, "has an output that torch makes contiguous", d->channels,
                             1);
    return 0;
}

/* Everything that the call reads. */
static int check(osw_call *call)
{
    osw_depthwise_job *job = call->job;
    const osw_tensor *t = call->tensors;
    if (check_dtypes(call, job) != 0 || check_sizes(call, &job->d) != 0 ||
        check_others(call, &job->d) != 0)
        return -1;
    job->weight = t[WEIGHT].data;
    job->d.input = t[INPUT].data;
    job->bias = t[BIAS].data;
    job->d.grad_output = t[GRAD_OUTPUT].data;
    return 0;
}

static int make_output(osw_call *call)
{
    const osw_depthwise *d = &((osw_depthwise_job *)call->job)->d;
    const int64_t size[] = {d->batch, d->channels, d->out_height, d->out_width};
    const osw_tensor *t = call->tensors;
    const bool last = !is_one_pixel(d) || osw_suggests_channels_last(&t[INPUT]) ||
                      osw_suggests_channels_last(&t[WEIGHT]);
    return osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, 4, size, last);
}

static int make_gradients(osw_call *call)
{
    return osw_layer_gradients(call, call->args + 6, true, call->tensors[WEIGHT].stride[1] == 1, 1);
}

static int run(osw_call *call)
{
    const char *name = call->backward ? "depthwise_conv2d_backward" : "depthwise_conv2d";
    osw_depthwise_job *job = call->job;
    const osw_tensor *t = call->tensors;
    job->d.output = t[OUTPUT].data;
    job->d.grad_input = t[GRAD_INPUT].data;
    job->grad_weight = t[GRAD_WEIGHT].data;
    job->grad_bias = t[GRAD_BIAS].data;
    char *room = osw_call_room(call, osw_depthwise_plan(job, call->backward, calls));
    if (!room)
        return -1;
    OSW_RUN(name, job->bytes > OSW_GRAIN_BYTES,
            (call->backward ? osw_depthwise_backward : osw_depthwise_forward)(job, room));
    return 0;
}

OSW_ENTRIES_OF(depthwise, (osw_depthwise_call){.any_format = false}, .name = "depthwise",
               OSW_LAYER_FORWARD, .arguments = 6, .numbers = read_window,
               OSW_STEPS(check, make_output, run))

OSW_ENTRIES_OF(depthwise_backward, (osw_depthwise_call){.any_format = false},
               .name = "depthwise_backward", OSW_LAYER_BACKWARD, .arguments = 9,
               .numbers = read_window, OSW_STEPS(check, make_gradients, run))

static const osw_entry fits_entry = {
    .name = "depthwise",
    OSW_LAYER_FORWARD,
    .arguments = 6,
    .numbers = read_window,
    .steps = {check},
    .give = osw_call_true,
};

static PyObject *fits(bool any_format, PyObject *const *args, Py_ssize_t nargs)
{
    osw_depthwise_call job = {.any_format = any_format};
    PyObject *answer = osw_enter(&fits_entry, true, &job, args, nargs);
    if (answer != Py_NotImplemented)
        return answer;
    Py_DECREF(answer);
    Py_RETURN_FALSE;
}

OSW_ENTRY(depthwise_fits)
{
    return fits(false, args, nargs);
}

OSW_ENTRY(depthwise_fits_but_for_format)
{
    return fits(true, args, nargs);
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
                   "depthwise_backward(grad_output, input, weight, stride, padding, dilation, "
                   "wants_input, wants_weight, wants_bias) -> the gradients"),
    OSW_ENTRY_LINE(plain_depthwise, "As depthwise, or NotImplemented if torch should run."),
    OSW_ENTRY_LINE(plain_depthwise_backward,
                   "As depthwise_backward, or NotImplemented if torch should run."),
    OSW_ENTRY_LINE(depthwise_fits, "Whether plain_depthwise supports these arguments."),
    OSW_ENTRY_LINE(depthwise_fits_but_for_format,
                   "Whether it would support them with the input in channels_last."),
    OSW_ENTRY_COUNTS_LINE(depthwise_variants),
    OSW_ENTRY_NO_ARGS_LINE(depthwise_leads,
                           "Whether convolutions go to the kernels on the tier in use."),
    {NULL, NULL, 0, NULL},
};
