/* SPDX-License-Identifier: MIT */
#include "binding/chain_call.h"

#include "binding/activation_arg.h"

#include <string.h>

uint64_t osw_chain_calls[OSW_CHAIN_COUNT];

Py_ssize_t osw_chain_place(const osw_call *call, int stage, int role)
{
    return TENSORS + 1 + stage * ((osw_chain_call *)call->job)->per_stage + role;
}

static const osw_tensor *tensor_at(const osw_call *call, int stage, int role)
{
    const Py_ssize_t i = osw_chain_place(call, stage, role);
    return call->objects[i] ? &call->tensors[i] : NULL;
}

void *osw_chain_data(const osw_call *call, Py_ssize_t i)
{
    return call->objects[i] ? call->tensors[i].data : NULL;
}

float *osw_chain_values(const osw_call *call, int stage, int role)
{
    return osw_chain_data(call, osw_chain_place(call, stage, role));
}

bool osw_chain_is_image(const osw_tensor *t)
{
    return osw_is_pixels(t) && osw_suggests_channels_last(t);
}

/* Item i of a tuple as a whole number. */
static bool number_at(PyObject *tuple, Py_ssize_t i, int64_t low, int64_t high, int64_t *value)
{
    return osw_exact_int(PyTuple_GetItem(tuple, i), low, high, value);
}

/* The window of a stage but for its size, eps and activation. */
static bool read_option(osw_chain_call *call, int i, PyObject *one)
{
    osw_chain_stage *s = &call->chain.stages[i];
    osw_chain_window *w = &s->window;
    osw_chain_link *link = &call->chain.links[i];
    const Py_ssize_t numbers = call->folded ? 5 : 2;
    if (!PyTuple_Check(one) || PyTuple_Size(one) != numbers + 2)
        return false;
    const bool read = call->folded
                          ? number_at(one, 0, 1, INT32_MAX, &w->stride_y) &&
                                number_at(one, 1, 1, INT32_MAX, &w->stride_x) &&
                                number_at(one, 2, 0, INT32_MAX, &w->top) &&
                                number_at(one, 3, 0, INT32_MAX, &w->left) &&
                                number_at(one, 4, 1, INT32_MAX, &call->groups[i])
                          : number_at(one, 0, 1, 2, &s->stride) &&
                                osw_float_arg(PyTuple_GetItem(one, 1), &call->momentum[i]) == 0;
    osw_activation *activation = &link->norm.activation;
    return read && osw_float_arg(PyTuple_GetItem(one, numbers), &link->eps) == 0 &&
           osw_activation_arg(PyTuple_GetItem(one, numbers + 1), "chain", activation) == 0 &&
           link->eps > 0 && activation->kind <= OSW_HARDSWISH;
}

int osw_chain_read_options(osw_call *call)
{
    osw_chain_call *c = call->job;
    PyObject *options = call->args[0];
    c->per_stage = c->folded ? PER_FOLDED_STAGE : PER_STAGE;
    if (!osw_plain_eager(true) || !PyTuple_Check(options) ||
        PyTuple_Size(options) > OSW_CHAIN_MOST_STAGES)
        return -1;
    c->chain.count = (int)PyTuple_Size(options);
    c->count = 1 + c->per_stage * c->chain.count;
    for (int i = 0; i < c->chain.count; i++)
        if (!read_option(c, i, PyTuple_GetItem(options, i)))
            return -1;
    return 0;
}

/* Whether every element has memory of its own, as far as sizes and strides show. */
static bool has_memory(const osw_tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++)
        last += (t->size[i] - 1) * t->stride[i];
    return t->numel > 0 && last + 1 >= t->numel;
}

static bool read_tensors(osw_call *call)
{
    const osw_chain_call *c = call->job;
    PyObject *tensors = call->args[1];
    if (!PyTuple_Check(tensors) || PyTuple_Size(tensors) != c->count)
        return false;
    for (Py_ssize_t i = 0; i < c->count; i++) {
        PyObject *object = PyTuple_GetItem(tensors, i);
        const bool optional = i > 0 && (i - 1) % c->per_stage != WEIGHT;
        if (!(optional && object == Py_None) &&
            (osw_call_tensor(call, TENSORS + i, object) != 0 ||
             osw_dtype_of(&call->tensors[TENSORS + i]) != OSW_F32))
            return false;
    }
    const osw_tensor *x = &call->tensors[TENSORS];
    return c->any_format ? x->ndim == 4 && has_memory(x) : osw_chain_is_image(x);
}

/* What stage i is by its weight and, in evaluation, its window and groups: without these a weight
 * of one input channel fits images of many, too. */
static bool read_window(const osw_chain_call *call, int i, const osw_tensor *w, osw_chain_stage *s)
{
    osw_chain_window *window = &s->window;
    s->side = w->size[2];
    const bool square = w->size[2] == w->size[3];
    s->depthwise =
        w->size[1] == 1 && s->channels > 1 && w->size[0] == s->channels && (s->side > 1 || !square);
    if (!call->folded)
        return square && s->depthwise == (s->side > 1);
    if (call->groups[i] != (s->depthwise ? s->channels : 1))
        return false;
    window->height = w->size[2];
    window->width = w->size[3];
    s->stride = window->stride_y;
    const bool half = square && window->top == s->side / 2 && window->left == s->side / 2 &&
                      window->stride_y == window->stride_x;
    s->dense = !s->depthwise && !(half && s->side == 1 && s->stride == 1);
    return s->dense || half;
}

/* The convolution of a stage behind an image of these sizes, which become those of its output. */
static bool read_stage(const osw_call *call, int i, int64_t *height, int64_t *width,
                       int64_t *channels)
{
    osw_chain_call *c = call->job;
    const osw_tensor *w = tensor_at(call, i, WEIGHT);
    osw_chain_stage *s = &c->chain.stages[i];
    const osw_chain_window *window = &s->window;
    s->batch = call->tensors[TENSORS].size[0];
    s->height = *height;
    s->width = *width;
    s->channels = *channels;
    if (w->ndim != 4 || w->numel == 0 || !read_window(c, i, w, s) ||
        w->size[1] != (s->depthwise ? 1 : s->channels) || !(s->dense || osw_is_dense(w, 0)))
        return false;
    s->outputs = *channels = w->size[0];
    s->out_height = (*height - 1) / s->stride + 1;
    s->out_width = (*width - 1) / s->stride + 1;
    if (s->dense) { /* osw_chain_holds refuses windows that are larger than the image */
        s->out_height = (*height + 2 * window->top - window->height) / window->stride_y + 1;
        s->out_width = (*width + 2 * window->left - window->width) / window->stride_x + 1;
    }
    *height = s->out_height;
    *width = s->out_width;
    memcpy(c->chain.links[i].weight_step, w->stride, sizeof c->chain.links[i].weight_step);
    s->weight = (const float *)(const void *)w->data;
    c->outputs += s->outputs;
    return true;
}

/* Parameters and statistics of the normalisation of a stage, and the bias of its convolution. */
static bool read_link(const osw_call *call, int i)
{
    osw_chain_call *c = call->job;
    const osw_chain_stage *s = &c->chain.stages[i];
    osw_chain_link *link = &c->chain.links[i];
    for (int role = SCALE; role < c->per_stage; role++) {
        const osw_tensor *t = tensor_at(call, i, role);
        if (t && (t->ndim != 1 || t->size[0] != s->outputs || t->stride[0] != 1))
            return false;
    }
    link->weight = osw_chain_values(call, i, SCALE);
    link->bias = osw_chain_values(call, i, SHIFT);
    link->convolution_bias = c->folded ? osw_chain_values(call, i, BIAS) : NULL;
    const bool statistics = tensor_at(call, i, RUNNING_MEAN) != NULL;
    if ((link->bias && !link->weight) || statistics != (tensor_at(call, i, RUNNING_VAR) != NULL))
        return false;
    return c->folded ? statistics || !link->weight : s->batch * s->out_height * s->out_width > 1;
}

int osw_chain_describe(osw_call *call)
{
    osw_chain_call *c = call->job;
    if (!read_tensors(call))
        return -1;
    const osw_tensor *x = &call->tensors[TENSORS];
    int64_t height = x->size[2], width = x->size[3], channels = x->size[1];
    for (int i = 0; i < c->chain.count; i++)
        if (!read_stage(call, i, &height, &width, &channels) || !read_link(call, i))
            return -1;
    c->chain.stages[0].input = (const float *)(const void *)x->data;
    return osw_chain_holds(&c->chain, c->folded) ? 0 : -1;
}

int osw_chain_describe_any(osw_call *call)
{
    ((osw_chain_call *)call->job)->any_format = true;
    return osw_chain_describe(call);
}

float *osw_chain_make_image(osw_call *call, Py_ssize_t role, const osw_chain_stage *s,
                            bool of_input)
{
    const int64_t size[4] = {s->batch, of_input ? s->channels : s->outputs,
                             of_input ? s->height : s->out_height,
                             of_input ? s->width : s->out_width};
    if (osw_call_make(call, role, TENSORS, OSW_SAME_DTYPE, 4, size, true) != 0)
        return NULL;
    return osw_chain_data(call, role);
}

void osw_chain_place_statistics(osw_chain_call *c, double *statistics)
{
    for (int i = 0; i < c->chain.count; i++) {
        c->chain.links[i].mean = statistics;
        c->chain.links[i].var = statistics + c->chain.stages[i].outputs;
        statistics += 2 * c->chain.stages[i].outputs;
    }
}

PyObject *osw_chain_enter(const osw_entry *entry, bool folded, PyObject *const *args,
                          Py_ssize_t nargs)
{
    osw_chain_call job = {.folded = folded};
    const Py_ssize_t tensors = nargs > 1 && PyTuple_Check(args[1]) ? PyTuple_Size(args[1]) : 0;
    return osw_enter_wide(entry, true, &job, TENSORS + 2 * tensors, args, nargs);
}
