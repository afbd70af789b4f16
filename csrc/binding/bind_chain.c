/* SPDX-License-Identifier: MIT */
/* Chains of convolutions, each with a batch normalisation in training and an activation behind it,
 * of float32 tensors in channels_last.
 *
 *     plain_chain(options, tensors) -> (output, statistics, z of each stage)
 *     plain_chain_backward(options, tensors, grad_output, statistics, zs, needed) -> gradients
 *     plain_chain_folded(options, tensors, folded) -> (output, folded)
 *
 * options: per stage (stride, momentum, eps, activation), or of plain_chain_folded (stride_y,
 * stride_x, padding_y, padding_x, groups, eps, activation). tensors: the input, then per stage the
 * weights of the convolution and of the normalisation, its bias, running_mean and running_var, and
 * of plain_chain_folded the bias of the convolution; all but the first of a stage may be None, in
 * plain_chain_folded those of the normalisation together. statistics: float64, per stage the means
 * and the biased variances. The gradients are those of the tensors, None for what `needed`, of as
 * many bools, does not ask for, and for running statistics. folded: in evaluation, an opaque tensor
 * of the weights with their normalisations, which a call makes if it gets None or one of another
 * tier.
 *
 * All return NotImplemented for everything that is not the kernels': other memory formats, sizes
 * or dtypes, what would be an error, calls that torch's dispatcher has to see. */
#include "binding/activation_arg.h"
#include "binding/binding.h"
#include "binding/call.h"
#include "binding/number_arg.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "chain/folded.h"
#include "chain/run.h"
#include "core/isa.h"

#include <string.h>

typedef enum osw_chain_role {
    WEIGHT,
    SCALE,
    SHIFT,
    RUNNING_MEAN,
    RUNNING_VAR,
    PER_STAGE, /* in training */
    BIAS = PER_STAGE,
    PER_FOLDED_STAGE
} osw_chain_role;
enum { MOST_TENSORS = 1 + PER_FOLDED_STAGE * OSW_CHAIN_MOST_STAGES, DL_FLOAT = 2 };

static uint64_t calls[OSW_CHAIN_COUNT];

typedef struct osw_chain_call {
    osw_chain chain;
    bool folded;
    double momentum[OSW_CHAIN_MOST_STAGES];
    int64_t groups[OSW_CHAIN_MOST_STAGES]; /* in evaluation */
    Py_ssize_t per_stage, count;           /* of tensors */
    osw_tensor tensors[MOST_TENSORS];
    bool given[MOST_TENSORS];
    int64_t outputs; /* of all stages */
} osw_chain_call;

static const osw_tensor *tensor_at(const osw_chain_call *call, int stage, osw_chain_role role)
{
    const Py_ssize_t i = 1 + stage * call->per_stage + (Py_ssize_t)role;
    return call->given[i] ? &call->tensors[i] : NULL;
}

static float *values_at(const osw_chain_call *call, int stage, osw_chain_role role)
{
    const osw_tensor *t = tensor_at(call, stage, role);
    return t ? (float *)(void *)t->data : NULL;
}

static bool is_float(const osw_tensor *t)
{
    return t->dtype.code == DL_FLOAT && t->dtype.bits == 32 && t->dtype.lanes == 1;
}

/* Pixels of channels, one behind the other. */
static bool is_pixels(const osw_tensor *t)
{
    int64_t step = 1;
    static const int order[] = {1, 3, 2, 0};
    if (t->ndim != 4 || t->numel == 0 || !is_float(t))
        return false;
    for (int i = 0; i < 4; i++) {
        if (t->size[order[i]] > 1 && t->stride[order[i]] != step)
            return false;
        step *= t->size[order[i]];
    }
    return true;
}

/* The same, of which torch makes more in channels_last: not every image of one pixel. */
static bool is_image(const osw_tensor *t)
{
    return is_pixels(t) && osw_suggests_channels_last(t);
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

static bool read_options(osw_chain_call *call, PyObject *options)
{
    if (!PyTuple_Check(options) || PyTuple_Size(options) > OSW_CHAIN_MOST_STAGES)
        return false;
    call->chain.count = (int)PyTuple_Size(options);
    for (int i = 0; i < call->chain.count; i++)
        if (!read_option(call, i, PyTuple_GetItem(options, i)))
            return false;
    return true;
}

static bool read_tensors(osw_chain_call *call, PyObject *tensors)
{
    call->count = PyTuple_Check(tensors) ? PyTuple_Size(tensors) : 0;
    if (call->count != 1 + call->per_stage * call->chain.count)
        return false;
    for (Py_ssize_t i = 0; i < call->count; i++) {
        PyObject *object = PyTuple_GetItem(tensors, i);
        const bool optional = i > 0 && (i - 1) % call->per_stage != WEIGHT;
        call->given[i] = !(optional && object == Py_None);
        if (call->given[i] &&
            (!osw_tensor_plain(object, &call->tensors[i]) || !is_float(&call->tensors[i])))
            return false;
    }
    return is_image(&call->tensors[0]);
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
static bool read_stage(osw_chain_call *call, int i, int64_t *height, int64_t *width,
                       int64_t *channels)
{
    const osw_tensor *w = tensor_at(call, i, WEIGHT);
    osw_chain_stage *s = &call->chain.stages[i];
    const osw_chain_window *window = &s->window;
    s->batch = call->tensors[0].size[0];
    s->height = *height;
    s->width = *width;
    s->channels = *channels;
    if (w->ndim != 4 || w->numel == 0 || !read_window(call, i, w, s) ||
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
    memcpy(call->chain.links[i].weight_step, w->stride, sizeof call->chain.links[i].weight_step);
    s->weight = (const float *)(const void *)w->data;
    call->outputs += s->outputs;
    return true;
}

/* Parameters and statistics of the normalisation of a stage, and the bias of its convolution. */
static bool read_link(osw_chain_call *call, int i)
{
    const osw_chain_stage *s = &call->chain.stages[i];
    osw_chain_link *link = &call->chain.links[i];
    for (Py_ssize_t role = SCALE; role < call->per_stage; role++) {
        const osw_tensor *t = tensor_at(call, i, (osw_chain_role)role);
        if (t && (t->ndim != 1 || t->size[0] != s->outputs || t->stride[0] != 1))
            return false;
    }
    link->weight = values_at(call, i, SCALE);
    link->bias = values_at(call, i, SHIFT);
    link->convolution_bias = call->folded ? values_at(call, i, BIAS) : NULL;
    const bool statistics = tensor_at(call, i, RUNNING_MEAN) != NULL;
    if ((link->bias && !link->weight) || statistics != (tensor_at(call, i, RUNNING_VAR) != NULL))
        return false;
    return call->folded ? statistics || !link->weight : s->batch * s->out_height * s->out_width > 1;
}

/* Running statistics are written: they lie apart from all else, or are those of another stage. */
static bool lies_apart(const osw_chain_call *call, Py_ssize_t i)
{
    for (Py_ssize_t k = 0; k < call->count; k++) {
        const bool running = k > 0 && (k - 1) % PER_STAGE >= RUNNING_MEAN;
        const bool same = running && k % PER_STAGE == i % PER_STAGE &&
                          call->tensors[k].data == call->tensors[i].data;
        if (k != i && call->given[k] && !same &&
            osw_ranges_meet(&call->tensors[k], &call->tensors[i]))
            return false;
    }
    return true;
}

static bool read_call(osw_chain_call *call, PyObject *options, PyObject *tensors, bool folded)
{
    call->folded = folded;
    call->per_stage = folded ? PER_FOLDED_STAGE : PER_STAGE;
    if (!osw_plain_eager(true) || !read_options(call, options) || !read_tensors(call, tensors))
        return false;
    const osw_tensor *x = &call->tensors[0];
    int64_t height = x->size[2], width = x->size[3], channels = x->size[1];
    for (int i = 0; i < call->chain.count; i++)
        if (!read_stage(call, i, &height, &width, &channels) || !read_link(call, i))
            return false;
    call->chain.stages[0].input = (const float *)(const void *)x->data;
    return osw_chain_holds(&call->chain, folded);
}

/* A new image of the size of a stage's output, or of its input. */
static PyObject *new_image(const osw_chain_stage *s, bool of_input, PyObject *like, float **data)
{
    const int64_t size[4] = {s->batch, of_input ? s->channels : s->outputs,
                             of_input ? s->height : s->out_height,
                             of_input ? s->width : s->out_width};
    osw_tensor made;
    PyObject *tensor = osw_tensor_new(like, OSW_SAME_DTYPE, "chain", 4, size, true, &made);
    if (tensor)
        *data = (float *)(void *)made.data;
    return tensor;
}

/* Steal `item`; -1 if it is NULL. */
static int put(PyObject *tuple, Py_ssize_t i, PyObject *item)
{
    return item && PyTuple_SetItem(tuple, i, item) == 0 ? 0 : -1;
}

static void place_statistics(osw_chain_call *call, double *statistics)
{
    for (int i = 0; i < call->chain.count; i++) {
        call->chain.links[i].mean = statistics;
        call->chain.links[i].var = statistics + call->chain.stages[i].outputs;
        statistics += 2 * call->chain.stages[i].outputs;
    }
}

/* (output, statistics, z of each stage), not yet computed. */
static PyObject *make_results(osw_chain_call *call, PyObject *like)
{
    osw_chain *chain = &call->chain;
    const int64_t size[1] = {2 * call->outputs};
    PyObject *results = PyTuple_New(2 + chain->count);
    osw_tensor statistics;
    int failed = !results || put(results, 0,
                                 new_image(&chain->stages[chain->count - 1], false, like,
                                           &chain->stages[chain->count - 1].normal)) != 0;
    if (!failed)
        failed = put(results, 1,
                     osw_tensor_new(like, OSW_FLOAT64, "chain", 1, size, false, &statistics));
    for (int i = 0; !failed && i < chain->count; i++) {
        failed = put(results, 2 + i,
                     new_image(&chain->stages[i], false, like, &chain->stages[i].output));
        if (i + 1 < chain->count)
            chain->stages[i + 1].input = chain->stages[i].output;
    }
    if (failed)
        Py_CLEAR(results);
    else
        place_statistics(call, (double *)(void *)statistics.data);
    return results;
}

/* The chain, without the GIL. -1 with MemoryError. */
static int run(osw_chain *chain, bool backward)
{
    void *memory = PyMem_Malloc(osw_chain_prepare(chain));
    if (!memory) {
        PyErr_NoMemory();
        return -1;
    }
    osw_chain_choose(chain, backward, calls);
    const osw_running running =
        osw_run_begin(backward ? "conv_chain_backward" : "conv_chain", true);
    (backward ? osw_chain_backward : osw_chain_forward)(chain, memory);
    osw_run_end(running);
    PyMem_Free(memory);
    return 0;
}

/* running += momentum * (batch - running), stage by stage, for the mean and the unbiased variance.
 */
static void update_running(const osw_chain_call *call)
{
    for (int i = 0; i < call->chain.count; i++) {
        const osw_chain_stage *s = &call->chain.stages[i];
        const osw_chain_link *link = &call->chain.links[i];
        float *mean = values_at(call, i, RUNNING_MEAN), *var = values_at(call, i, RUNNING_VAR);
        const double count = (double)osw_chain_pixels(s), m = call->momentum[i];
        for (int64_t c = 0; mean && c < s->outputs; c++) {
            mean[c] = (float)((1 - m) * (double)mean[c] + m * link->mean[c]);
            var[c] = (float)((1 - m) * (double)var[c] + m * (link->var[c] * count / (count - 1)));
        }
    }
}

OSW_ENTRY(plain_chain)
{
    osw_chain_call call = {.count = 0};
    if (nargs != 2 || !read_call(&call, args[0], args[1], false)) {
        PyErr_Clear();
        Py_RETURN_NOTIMPLEMENTED;
    }
    for (Py_ssize_t i = 1; i < call.count; i++)
        if ((i - 1) % PER_STAGE >= RUNNING_MEAN && call.given[i] && !lies_apart(&call, i))
            Py_RETURN_NOTIMPLEMENTED;
    PyObject *results = make_results(&call, PyTuple_GetItem(args[1], 0));
    if (results && run(&call.chain, false) != 0)
        Py_CLEAR(results);
    if (results)
        update_running(&call);
    return osw_or_declined(results);
}

enum { B_OPTIONS, B_TENSORS, B_GRAD, B_STATISTICS, B_ZS, B_NEEDED, B_COUNT };

/* The tensors that a forward has kept. */
static bool read_kept(osw_chain_call *call, PyObject *const *args)
{
    osw_chain *chain = &call->chain;
    const osw_chain_stage *last = &chain->stages[chain->count - 1];
    osw_tensor t;
    if (!osw_tensor_plain(args[B_GRAD], &t) || !is_pixels(&t) || t.size[0] != last->batch ||
        t.size[1] != last->outputs || t.size[2] != last->out_height || t.size[3] != last->out_width)
        return false;
    chain->stages[chain->count - 1].grad = (const float *)(const void *)t.data;
    if (!osw_tensor_plain(args[B_STATISTICS], &t) || t.ndim != 1 || t.itemsize != sizeof(double) ||
        t.size[0] != 2 * call->outputs || t.stride[0] != 1)
        return false;
    place_statistics(call, (double *)(void *)t.data);
    for (int i = 0; i < chain->count; i++) {
        osw_chain_stage *s = &chain->stages[i];
        if (!osw_tensor_plain(PyTuple_GetItem(args[B_ZS], i), &t) || !is_image(&t) ||
            t.size[0] != s->batch || t.size[1] != s->outputs || t.size[2] != s->out_height ||
            t.size[3] != s->out_width)
            return false;
        s->output = (float *)(void *)t.data;
        if (i + 1 < chain->count)
            s[1].input = s->output;
    }
    return true;
}

/* A new gradient of a parameter; None and NULL where it is not needed. */
static PyObject *new_gradient(const osw_chain_call *call, PyObject *tensors, Py_ssize_t i,
                              bool needed, float **data)
{
    const osw_tensor *t = &call->tensors[i];
    osw_tensor made;
    *data = NULL;
    if (!needed || !call->given[i]) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    PyObject *tensor =
        osw_tensor_new(PyTuple_GetItem(tensors, i), OSW_SAME_DTYPE, "chain", t->ndim, t->size,
                       t->ndim == 4 && osw_suggests_channels_last(t), &made);
    if (tensor)
        *data = (float *)(void *)made.data;
    return tensor;
}

/* The gradients of all tensors, not yet computed; `between` gets those between the stages. */
static PyObject *make_gradients(osw_chain_call *call, PyObject *tensors, PyObject *needed,
                                PyObject *between)
{
    osw_chain *chain = &call->chain;
    PyObject *gradients = PyTuple_New(call->count);
    int failed = !gradients;
    for (Py_ssize_t i = 0; !failed && i < call->count; i++) {
        const int stage = (int)(i - 1) / PER_STAGE, role = (int)(i - 1) % PER_STAGE;
        float *data = NULL;
        const bool wanted = (i == 0 || role <= SHIFT) && PyTuple_GetItem(needed, i) == Py_True;
        failed = put(gradients, i, new_gradient(call, tensors, i, wanted, &data));
        if (i == 0)
            chain->stages[0].grad_input = data;
        else if (role == WEIGHT)
            chain->grad_weights[stage] = data;
        else if (role == SCALE)
            chain->links[stage].grad_weight = data;
        else if (role == SHIFT)
            chain->links[stage].grad_bias = data;
    }
    PyObject *like = PyTuple_GetItem(tensors, 0);
    for (int i = 1; !failed && i < chain->count; i++) {
        osw_chain_stage *s = &chain->stages[i];
        failed = put(between, i - 1, new_image(s, true, like, &s->grad_input));
        chain->stages[i - 1].grad = s->grad_input;
    }
    if (failed)
        Py_CLEAR(gradients);
    return gradients;
}

OSW_ENTRY(plain_chain_backward)
{
    osw_chain_call call = {.count = 0};
    if (nargs != B_COUNT || !read_call(&call, args[B_OPTIONS], args[B_TENSORS], false) ||
        !PyTuple_Check(args[B_ZS]) || PyTuple_Size(args[B_ZS]) != call.chain.count ||
        !PyTuple_Check(args[B_NEEDED]) || PyTuple_Size(args[B_NEEDED]) != call.count ||
        !read_kept(&call, args)) {
        PyErr_Clear();
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *between = PyTuple_New(call.chain.count - 1), *gradients = NULL;
    if (between)
        gradients = make_gradients(&call, args[B_TENSORS], args[B_NEEDED], between);
    if (gradients && run(&call.chain, true) != 0)
        Py_CLEAR(gradients);
    Py_XDECREF(between);
    return osw_or_declined(gradients);
}

/* Floats behind the folded weights: copies of all tensors of a stage but its weight, and for each
 * whether it was given. */
static int64_t vector_floats(const osw_chain_call *call)
{
    return (PER_FOLDED_STAGE - SCALE) * (call->chain.count + call->outputs);
}

/* Write these copies, or compare with them: whether they are the same bits. */
static bool vectors_are(const osw_chain_call *call, float *copies, bool write)
{
    bool same = true;
    for (int i = 0; same && i < call->chain.count; i++) {
        const int64_t count = call->chain.stages[i].outputs;
        for (int role = SCALE; same && role < PER_FOLDED_STAGE; role++, copies += 1 + count) {
            const float *values = values_at(call, i, (osw_chain_role)role);
            const size_t bytes = values ? (size_t)count * sizeof(float) : 0;
            if (write) {
                copies[0] = values != NULL;
                if (values)
                    memcpy(copies + 1, values, bytes);
            } else {
                same = (copies[0] != 0) == (values != NULL) &&
                       (!values || memcmp(copies + 1, values, bytes) == 0);
            }
        }
    }
    return same;
}

/* The weights with their normalisations, in a new tensor; NULL with an exception. */
static PyObject *fold(osw_chain_call *call, PyObject *like, float **data)
{
    osw_chain *chain = &call->chain;
    const int64_t floats = osw_chain_folded_floats(chain);
    const int64_t size[1] = {floats + vector_floats(call)};
    const size_t bytes = (size_t)(2 * call->outputs) * sizeof(double);
    osw_tensor made;
    PyObject *folded = osw_tensor_new(like, OSW_SAME_DTYPE, "chain", 1, size, false, &made);
    double *room = PyMem_Malloc(bytes + (size_t)osw_chain_fold_room(chain) * sizeof(float));
    if (!folded || !room) {
        Py_CLEAR(folded);
        PyMem_Free(room);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    place_statistics(call, room);
    for (int i = 0; i < chain->count; i++) {
        if (!tensor_at(call, i, RUNNING_MEAN)) {
            chain->links[i].mean = chain->links[i].var = NULL;
            continue;
        }
        for (int64_t c = 0; c < chain->stages[i].outputs; c++) {
            chain->links[i].mean[c] = (double)values_at(call, i, RUNNING_MEAN)[c];
            chain->links[i].var[c] = (double)values_at(call, i, RUNNING_VAR)[c];
        }
    }
    *data = (float *)(void *)made.data;
    vectors_are(call, *data + floats, true);
    osw_chain_fold(chain, (int)osw_isa_current(), *data, (float *)(room + 2 * call->outputs));
    PyMem_Free(room);
    return folded;
}

/* The weights that an earlier call of the same chain has folded, with the same vectors; else NULL.
 */
static float *folded_before(const osw_chain_call *call, PyObject *given)
{
    osw_tensor t;
    const int64_t floats = osw_chain_folded_floats(&call->chain);
    if (given == Py_None || !osw_tensor_plain(given, &t) || !is_float(&t) || t.ndim != 1 ||
        t.size[0] != floats + vector_floats(call) || t.stride[0] != 1)
        return NULL;
    float *folded = (float *)(void *)t.data;
    const bool same = osw_chain_is_folded(folded, (int)osw_isa_current()) &&
                      vectors_are(call, folded + floats, false);
    return same ? folded : NULL;
}

enum { F_OPTIONS, F_TENSORS, F_FOLDED, F_COUNT };

OSW_ENTRY(plain_chain_folded)
{
    osw_chain_call call = {.count = 0};
    osw_chain *chain = &call.chain;
    if (nargs != F_COUNT || !read_call(&call, args[F_OPTIONS], args[F_TENSORS], true) ||
        !osw_chain_folds(chain)) {
        PyErr_Clear();
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *like = PyTuple_GetItem(args[F_TENSORS], 0), *folded = args[F_FOLDED];
    osw_chain_stage *last = &chain->stages[chain->count - 1];
    float *data = folded_before(&call, folded);
    PyErr_Clear();
    if (!osw_chain_repays(chain, folded != Py_None))
        Py_RETURN_NOTIMPLEMENTED;
    osw_chain_choose_folded(chain, !data, calls);
    if (data)
        Py_INCREF(folded);
    else
        folded = fold(&call, like, &data);
    PyObject *output = folded ? new_image(last, false, like, &last->normal) : NULL;
    if (output) {
        const osw_running running = osw_run_begin("conv_chain", true);
        osw_chain_folded_forward(chain, data);
        osw_run_end(running);
    }
    PyObject *results = output ? PyTuple_Pack(2, output, folded) : NULL;
    Py_XDECREF(output);
    Py_XDECREF(folded);
    return osw_or_declined(results);
}

OSW_ENTRY_NO_ARGS(chain_leads)
{
    return PyBool_FromLong(osw_chain_leads(osw_isa_current()));
}

#define NAME(operation) #operation,
OSW_ENTRY_COUNTS(chain_variants, calls, OSW_CHAIN_VARIANTS(NAME))

PyMethodDef osw_chain_methods[] = {
    OSW_ENTRY_LINE(plain_chain, "plain_chain(options, tensors) -> (output, statistics, z of each "
                                "stage), or NotImplemented"),
    OSW_ENTRY_LINE(plain_chain_backward, "plain_chain_backward(options, tensors, grad_output, "
                                         "statistics, zs, needed) -> gradients of "
                                         "the tensors, or NotImplemented"),
    OSW_ENTRY_LINE(plain_chain_folded,
                   "plain_chain_folded(options, tensors, folded) -> (output, folded), or "
                   "NotImplemented"),
    OSW_ENTRY_NO_ARGS_LINE(chain_leads, "Whether the kernels of the tier in use are fast."),
    OSW_ENTRY_COUNTS_LINE(chain_variants),
    {NULL, NULL, 0, NULL},
};
