/* SPDX-License-Identifier: MIT */
/* plain_batch_norm_max_pool and its backward: a whole call each, of ordinary images that are dense
 * in one of both memory formats. They decline all else. */
#include "binding/norm_call.h"
#include "binding/pool_counts.h"
#include "core/prefetch.h"
#include "norm_pool/run.h"
#include "pool/run.h"
#include "pool/window.h"

/* Behind the roles of a normalisation, of which OUTPUT and GRAD_OUTPUT are not given. */
enum { POOLED = ROLE_COUNT, OFFSETS, GRAD_POOLED, ALL_ROLES };

static const char *const roles[ALL_ROLES] = {
    [INPUT] = "input",
    [STATISTICS] = "statistics",
    [GRAD_INPUT] = "grad_input",
    [GRAD_WEIGHT] = "grad_weight",
    [GRAD_BIAS] = "grad_bias",
    [RUNNING_MEAN] = "running_mean",
    [RUNNING_VAR] = "running_var",
    [WEIGHT] = "weight",
    [BIAS] = "bias",
    [POOLED] = "output",
    [OFFSETS] = "offsets",
    [GRAD_POOLED] = "grad_output",
};

/* The arguments of a window, in this order. */
enum { KERNEL, STRIDE, PADDING, DILATION, SIDES };

typedef struct osw_norm_pool_call {
    osw_norm_pool_job job;
    int64_t sides[SIDES][2]; /* height, width */
    bool ceil_mode, trains;  /* of a forward */
} osw_norm_pool_call;

/* Sides of the window; a stride of None is the kernel. */
static int read_window(const osw_call *call, PyObject *const *window)
{
    osw_norm_pool_call *c = call->job;
    osw_pool *pool = &c->job.pool;
    for (int i = 0; i < SIDES; i++) {
        const int from = i == STRIDE && window[i] == Py_None ? KERNEL : i;
        if (!osw_plain_sides(window[from], 2, i != PADDING, c->sides[i]))
            return -1;
    }
    pool->dims[DEPTH] = (osw_pool_dim){1, 1, 1, 1, 0, 1};
    for (int i = 0; i < 2; i++) {
        if (c->sides[PADDING][i] > c->sides[KERNEL][i] / 2)
            return -1;
        pool->dims[HEIGHT + i] = (osw_pool_dim){.kernel = c->sides[KERNEL][i],
                                                .stride = c->sides[STRIDE][i],
                                                .padding = c->sides[PADDING][i],
                                                .dilation = c->sides[DILATION][i]};
    }
    return c->sides[KERNEL][0] * c->sides[KERNEL][1] <= OSW_MOST_TAPS ? 0 : -1;
}

/* In one of both formats, and not in the other one too. */
static bool is_usual(const osw_tensor *x)
{
    return x->ndim == 4 && x->numel > 0 && osw_is_dense(x, 0) != osw_is_pixels(x);
}

/* Form and sizes of the job; behind it, those of the output are missing. */
static int describe_input(const osw_call *call)
{
    osw_norm_pool_job *job = &((osw_norm_pool_call *)call->job)->job;
    const osw_tensor *x = &call->tensors[INPUT];
    if (!is_usual(x) || osw_norm_check(call, &job->norm) != 0 ||
        !osw_norm_choose_form(call, &job->norm))
        return -1;
    osw_pool *pool = &job->pool;
    pool->images = x->size[0];
    pool->channels = pool->input_channels = x->size[1];
    pool->channel_step = 1;
    pool->block = osw_pool_block(pool->images);
    pool->dims[HEIGHT].input = x->size[2];
    pool->dims[WIDTH].input = x->size[3];
    return 0;
}

static bool in_pixels(const osw_call *call)
{
    return ((osw_norm_pool_call *)call->job)->job.norm.form == OSW_NORM_PIXELS;
}

/* A tensor of the size of the output, which is dense in the format of the input. */
static osw_pool_tensor described(const osw_call *call, int role)
{
    const osw_tensor *t = &call->tensors[role];
    const int64_t plane = t->size[2] * t->size[3], channels = t->size[1];
    if (!call->objects[role])
        return (osw_pool_tensor){.base = NULL};
    return (osw_pool_tensor){t->data, channels * plane, in_pixels(call) ? 1 : plane,
                             in_pixels(call) ? channels : 1};
}

/* --- forward ---------------------------------------------------------------------------------- */

enum { F_TRAINING, F_MOMENTUM, F_EPS, F_ACTIVATION, F_WINDOW, F_CEIL_MODE = F_WINDOW + SIDES };
enum { F_INPUT = F_CEIL_MODE + 1, F_MEAN, F_VAR, F_WEIGHT, F_BIAS, F_TRAINS, F_COUNT };

static int read_forward(osw_call *call)
{
    osw_norm_pool_call *c = call->job;
    PyObject *const *args = call->args;
    osw_norm_job *norm = &c->job.norm;
    c->ceil_mode = args[F_CEIL_MODE] == Py_True;
    c->trains = args[F_TRAINS] == Py_True;
    norm->moves = true;
    if (!PyBool_Check(args[F_CEIL_MODE]) || read_window(call, args + F_WINDOW) != 0 ||
        osw_float_arg(args[F_MOMENTUM], &norm->momentum) != 0)
        return -1;
    return osw_norm_read_options(call, norm, args[F_TRAINING], args[F_EPS], args[F_ACTIVATION]);
}

static int check_forward(osw_call *call)
{
    osw_norm_pool_call *c = call->job;
    if (describe_input(call) != 0 || osw_norm_check_given(call, &c->job.norm) != 0 ||
        osw_norm_requires_grad(call->args[F_MEAN]) || osw_norm_requires_grad(call->args[F_VAR]))
        return -1;
    for (int i = HEIGHT; i <= WIDTH; i++) {
        osw_pool_dim *dim = &c->job.pool.dims[i];
        dim->output = osw_pool_output_size(dim, c->ceil_mode);
        if (dim->output < 1 || dim->output > INT32_MAX)
            return -1;
    }
    return osw_norm_pool_fits(&c->job) ? 0 : -1;
}

static int make_forward(osw_call *call)
{
    osw_norm_pool_call *c = call->job;
    osw_pool *pool = &c->job.pool;
    const bool last = in_pixels(call);
    const int64_t size[] = {pool->images, pool->channels, pool->dims[HEIGHT].output,
                            pool->dims[WIDTH].output};
    const int64_t statistics[] = {2, pool->channels};
    if (osw_call_make(call, POOLED, INPUT, OSW_SAME_DTYPE, 4, size, last) != 0)
        return -1;
    if (c->trains &&
        (osw_call_make(call, OFFSETS, INPUT, OSW_UINT8, 4, size, last) != 0 ||
         osw_call_make(call, STATISTICS, INPUT, OSW_FLOAT64, 2, statistics, false) != 0))
        return -1;
    pool->output = described(call, POOLED);
    pool->offsets = described(call, OFFSETS);
    const osw_tensor *made = &call->tensors[POOLED];
    pool->stream = osw_stream_bytes && made->numel * made->itemsize >= osw_stream_bytes;
    return 0;
}

static int run(osw_call *call)
{
    osw_norm_pool_job *job = &((osw_norm_pool_call *)call->job)->job;
    osw_norm_job *norm = &job->norm;
    double *scratch = osw_norm_begin(call, norm);
    if (!scratch)
        return -1;
    osw_norm_pool_choose(job, call->backward, osw_norm_calls, osw_pool_calls);
    OSW_RUN(call->name, osw_norm_is_large(call),
            (call->backward ? osw_norm_pool_backward : osw_norm_pool_forward)(job, scratch));
    osw_norm_end(call, norm, scratch);
    return 0;
}

/* The output; if it trains, also the statistics, the offsets and the window in tuples. */
static PyObject *give_forward(const osw_call *call)
{
    const osw_norm_pool_call *c = call->job;
    if (!c->trains)
        return osw_call_made(call, POOLED);
    PyObject *window = PyTuple_New(SIDES);
    for (int i = 0; window && i < SIDES; i++) {
        PyObject *sides = osw_tuple_of(2, c->sides[i]);
        if (sides)
            PyTuple_SetItem(window, i, sides);
        else
            Py_CLEAR(window);
    }
    return window ? Py_BuildValue("(OOON)", call->made[POOLED], call->made[STATISTICS],
                                  call->made[OFFSETS], window)
                  : NULL;
}

OSW_ENTRY_OF(plain_batch_norm_max_pool, true, (osw_norm_pool_call){.trains = false},
             .name = "batch_norm_max_pool", .roles = roles, .role_count = ALL_ROLES,
             .arguments = F_COUNT, .numbers = read_forward,
             OSW_READS(F_INPUT, 1, INPUT, RUNNING_MEAN, RUNNING_VAR, WEIGHT, BIAS),
             OSW_STEPS(check_forward, make_forward, run), .give = give_forward)

/* --- backward --------------------------------------------------------------------------------- */

enum { B_TRAINING, B_EPS, B_ACTIVATION, B_NEEDED, B_WINDOW, B_TENSORS = B_WINDOW + SIDES };
enum { B_COUNT = B_TENSORS + 6 };

static int read_backward(osw_call *call)
{
    osw_norm_pool_call *c = call->job;
    PyObject *const *args = call->args;
    if (osw_norm_expect_needed(call, args[B_NEEDED]) != 0 ||
        read_window(call, args + B_WINDOW) != 0)
        return -1;
    return osw_norm_read_options(call, &c->job.norm, args[B_TRAINING], args[B_EPS],
                                 args[B_ACTIVATION]);
}

/* Sizes and format of a tensor that is like the output. */
static bool fits_output(const osw_call *call, int role)
{
    const osw_tensor *t = &call->tensors[role], *x = &call->tensors[INPUT];
    return t->ndim == 4 && t->size[0] == x->size[0] && t->size[1] == x->size[1] &&
           (in_pixels(call) ? osw_is_pixels(t) : osw_is_dense(t, 0));
}

static int check_backward(osw_call *call)
{
    osw_norm_pool_job *job = &((osw_norm_pool_call *)call->job)->job;
    osw_pool *pool = &job->pool;
    const osw_tensor *grad = &call->tensors[GRAD_POOLED], *offsets = &call->tensors[OFFSETS];
    const int64_t size[] = {2, call->tensors[INPUT].size[1]};
    if (describe_input(call) != 0 || osw_norm_check_statistics(call, 2, size, "(2, C)") != 0 ||
        !fits_output(call, GRAD_POOLED) || !fits_output(call, OFFSETS) ||
        !osw_same_sizes(grad, offsets, -1) || !osw_same_dtype(grad, &call->tensors[INPUT]))
        return -1;
    for (int i = HEIGHT; i <= WIDTH; i++) {
        osw_pool_dim *dim = &pool->dims[i];
        dim->output = grad->size[i + 1];
        if (dim->output > INT32_MAX || (dim->output - 1) * dim->stride - dim->padding >= dim->input)
            return -1;
    }
    const bool is_byte = offsets->dtype.code == 1 && offsets->dtype.bits == 8;
    pool->grad_output = described(call, GRAD_POOLED);
    pool->offsets = described(call, OFFSETS);
    return is_byte && osw_norm_pool_fits(job) ? 0 : -1;
}

static int make_gradients(osw_call *call)
{
    osw_norm_job *norm = &((osw_norm_pool_call *)call->job)->job.norm;
    if (osw_norm_make_gradients(call, call->args[B_NEEDED], in_pixels(call)) != 0)
        return -1;
    norm->norm.dx = (osw_norm_tensor){NULL, norm->norm.x.image_step};
    if (call->objects[GRAD_INPUT])
        norm->norm.dx.base = call->tensors[GRAD_INPUT].data;
    return 0;
}

OSW_ENTRY_OF(plain_batch_norm_max_pool_backward, true, (osw_norm_pool_call){.trains = true},
             .name = "batch_norm_max_pool_backward", .roles = roles, .role_count = ALL_ROLES,
             .arguments = B_COUNT, .backward = true, .numbers = read_backward,
             OSW_READS(B_TENSORS, 4, GRAD_POOLED, OFFSETS, INPUT, STATISTICS, WEIGHT, BIAS),
             OSW_STEPS(check_backward, make_gradients, run), .result = GRAD_INPUT, .results = 3)

PyMethodDef osw_norm_pool_methods[] = {
    OSW_ENTRY_LINE(
        plain_batch_norm_max_pool,
        "plain_batch_norm_max_pool(training, momentum, eps, activation, kernel_size, stride, "
        "padding, dilation, ceil_mode, input, running_mean, running_var, weight, bias, trains) -> "
        "output; if it trains (output, statistics, offsets, (kernel, stride, padding, dilation)); "
        "NotImplemented if the call is not an ordinary one"),
    OSW_ENTRY_LINE(
        plain_batch_norm_max_pool_backward,
        "plain_batch_norm_max_pool_backward(training, eps, activation, needed, kernel, stride, "
        "padding, dilation, grad_output, offsets, input, statistics, weight, bias) -> the "
        "gradients of input, weight and bias, None if not needed, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
