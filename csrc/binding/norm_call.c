/* SPDX-License-Identifier: MIT */
#include "binding/norm_call.h"

#include "binding/activation_arg.h"
#include "core/half.h"

const char *const osw_norm_roles[ROLE_COUNT] = {
    "input",     "grad_output",  "output",      "statistics", "grad_input", "grad_weight",
    "grad_bias", "running_mean", "running_var", "weight",     "bias"};

const osw_norm_role osw_norm_large[OSW_NORM_LARGE] = {INPUT, OUTPUT, GRAD_OUTPUT, GRAD_INPUT};

uint64_t osw_norm_calls[OSW_NORM_COUNT];

int osw_norm_fail(const osw_call *call, int role, const char *problem, long long got)
{
    return osw_fail(call->name, "%s %s, got %lld", call->roles[role], problem, got);
}

bool osw_norm_requires_grad(PyObject *tensor)
{
    PyObject *answer = tensor == Py_None ? NULL : PyObject_GetAttrString(tensor, "requires_grad");
    const bool yes = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return yes;
}

int osw_norm_expect_needed(const osw_call *call, PyObject *needed)
{
    if (PyTuple_Check(needed) && PyTuple_Size(needed) == 3)
        return 0;
    return osw_raise(PyExc_TypeError, "%s: expected a tuple of 3 bools, got %R", call->name,
                     needed);
}

int osw_norm_read_options(const osw_call *call, osw_norm_job *job, PyObject *training,
                          PyObject *eps, PyObject *activation)
{
    if (!PyBool_Check(training))
        return osw_raise(PyExc_TypeError, "%s: training must be bool, got %R", call->name,
                         training);
    if (osw_activation_arg(activation, call->name, &job->norm.activation) != 0)
        return -1;
    job->training = training == Py_True;
    return osw_float_arg(eps, &job->eps);
}

int osw_norm_check_large(const osw_call *call, osw_dtype *dtype)
{
    const osw_tensor *x = &call->tensors[INPUT];
    *dtype = osw_dtype_of(x);
    if (*dtype == OSW_DTYPE_COUNT)
        return osw_fail_dtype(call->name, x);
    if (x->ndim < 2)
        return osw_norm_fail(call, INPUT, "must have at least 2 dimensions", x->ndim);
    for (int i = 1; i < OSW_NORM_LARGE; i++) {
        const osw_norm_role role = osw_norm_large[i];
        const osw_tensor *t = &call->tensors[role];
        if (!call->objects[role])
            continue;
        if (!osw_same_sizes(t, x, -1))
            return osw_norm_fail(call, role, "must have the size of the input", t->numel);
        if (!osw_same_dtype(t, x))
            return osw_norm_fail(call, role, "must have the dtype of the input, not of bits",
                                 t->dtype.bits);
        if (role != GRAD_OUTPUT && !osw_no_overlap(t))
            return osw_norm_fail(call, role, "overlaps itself", t->numel);
    }
    return 0;
}

int osw_norm_check_vectors(const osw_call *call, int64_t channels, bool moves)
{
    const osw_tensor *x = &call->tensors[INPUT], *first = NULL;
    for (osw_norm_role role = GRAD_WEIGHT; role < ROLE_COUNT; role++) {
        const osw_tensor *t = &call->tensors[role];
        const bool running = role == RUNNING_MEAN || role == RUNNING_VAR;
        int64_t count, step;
        if (!call->objects[role])
            continue;
        if (t->numel != channels || (running && t->ndim != 1) || !osw_flatten(t, 0, &count, &step))
            return osw_norm_fail(call, role, "must hold one value per channel", t->numel);
        const bool mixed = x->dtype.bits == 16 && osw_dtype_of(t) == OSW_F32;
        if ((!osw_same_dtype(t, x) && !mixed) || (first && !osw_same_dtype(t, first)))
            return osw_norm_fail(call, role, "has a dtype that does not fit, of bits",
                                 t->dtype.bits);
        if ((running ? moves : role <= GRAD_BIAS) && !osw_no_overlap(t))
            return osw_norm_fail(call, role, "overlaps itself", t->numel);
        first = t;
    }
    return 0;
}

int osw_norm_check_statistics(const osw_call *call, int ndim, const int64_t *size,
                              const char *shape)
{
    const osw_tensor *s = &call->tensors[STATISTICS];
    if (!call->objects[STATISTICS] ||
        (osw_dtype_of(s) == OSW_F64 && osw_is_dense(s, 0) && osw_has_size(s, ndim, size)))
        return 0;
    return osw_fail(call->name, "statistics must be a dense float64 tensor %s, got %lld elements",
                    shape, (long long)s->numel);
}

/* Running statistics that move lie apart from all that the call reads: torch reads the parameters
 * after it has moved the statistics, channel by channel. */
static int check_apart(const osw_call *call)
{
    static const osw_norm_role read[] = {INPUT, RUNNING_VAR, WEIGHT, BIAS};
    for (osw_norm_role role = RUNNING_MEAN; role <= RUNNING_VAR; role++)
        for (size_t i = 0; i < sizeof read / sizeof *read; i++)
            if (call->objects[role] && call->objects[read[i]] && role != read[i] &&
                osw_ranges_meet(&call->tensors[role], &call->tensors[read[i]]))
                return osw_norm_fail(call, role, "shares memory with another tensor",
                                     call->tensors[role].numel);
    return 0;
}

int osw_norm_check_given(const osw_call *call, const osw_norm_job *job)
{
    const osw_tensor *x = &call->tensors[INPUT];
    const int64_t channels = x->size[1] ? x->size[1] : 1;
    if (!job->training) {
        for (osw_norm_role role = RUNNING_MEAN; role <= RUNNING_VAR; role++)
            if (!call->objects[role])
                return osw_norm_fail(call, role, "must be defined in evaluation mode", 0);
        return job->eps < 0
                   ? osw_raise(PyExc_ValueError, "%s: eps must not be negative", call->name)
                   : 0;
    }
    if (x->numel / channels == 1)
        return osw_norm_fail(call, INPUT, "must have more than 1 value per channel when training",
                             1);
    if (!call->objects[RUNNING_MEAN] != !call->objects[RUNNING_VAR])
        return osw_norm_fail(call, RUNNING_MEAN, "and running_var must both be given or neither",
                             call->objects[RUNNING_MEAN] != NULL);
    return job->eps > 0 ? 0
                        : osw_raise(PyExc_ValueError, "%s: eps must be positive during training",
                                    call->name);
}

int osw_norm_check(const osw_call *call, osw_norm_job *job)
{
    const bool moves = job->training && job->moves;
    if (osw_norm_check_large(call, &job->dtype) != 0 ||
        osw_norm_check_vectors(call, call->tensors[INPUT].size[1], moves) != 0)
        return -1;
    return moves ? check_apart(call) : 0;
}

/* Describe `t` in the given form; false if its memory does not allow it. */
static bool describe(const osw_tensor *t, osw_norm_form form, osw_norm_tensor *out)
{
    int64_t positions, step;
    if (!osw_flatten(t, 2, &positions, &step))
        return false;
    const int64_t channels = t->size[1], image = channels * positions;
    if (form == OSW_NORM_PIXELS) {
        if ((channels > 1 && t->stride[1] != 1) || (positions > 1 && step != channels) ||
            (t->size[0] > 1 && t->stride[0] != image))
            return false;
    } else if ((positions > 1 && step != 1) || (channels > 1 && t->stride[1] != positions)) {
        return false;
    }
    *out = (osw_norm_tensor){t->data, t->size[0] > 1 ? t->stride[0] : image};
    return true;
}

static bool describe_all(const osw_call *call, osw_norm_job *job, osw_norm_form form)
{
    osw_norm *n = &job->norm;
    osw_norm_tensor *const places[] = {&n->x, &n->y, &n->dy, &n->dx};
    for (int i = 0; i < OSW_NORM_LARGE; i++) {
        const osw_norm_role role = osw_norm_large[i];
        if (call->objects[role] && !describe(&call->tensors[role], form, places[i]))
            return false;
    }
    job->form = form;
    return true;
}

/* One channel is a plane; if both forms fit, there are no vectors along one position. */
bool osw_norm_choose_form(const osw_call *call, osw_norm_job *job)
{
    const osw_tensor *x = &call->tensors[INPUT];
    osw_norm *n = &job->norm;
    n->images = x->size[0];
    n->channels = x->size[1];
    n->positions = x->numel / (x->size[0] * x->size[1]);
    const osw_norm_form first = n->channels > 1 ? OSW_NORM_PIXELS : OSW_NORM_PLANES;
    const osw_norm_form second = n->channels > 1 ? OSW_NORM_PLANES : OSW_NORM_PIXELS;
    return describe_all(call, job, first) || describe_all(call, job, second);
}

static int64_t step_of(const osw_tensor *t)
{
    int64_t count, step;
    osw_flatten(t, 0, &count, &step);
    return step;
}

static double value_at(const void *data, osw_dtype dtype, int64_t i)
{
    if (dtype == OSW_F32)
        return (double)((const float *)data)[i];
    if (dtype == OSW_F64)
        return ((const double *)data)[i];
    const uint16_t half = ((const uint16_t *)data)[i];
    return (double)(dtype == OSW_BF16 ? osw_float_of_bf16(half) : osw_float_of_f16(half));
}

static void put_value(void *data, osw_dtype dtype, int64_t i, double value)
{
    if (dtype == OSW_F32)
        ((float *)data)[i] = (float)value;
    else if (dtype == OSW_F64)
        ((double *)data)[i] = value;
    else
        ((uint16_t *)data)[i] =
            dtype == OSW_BF16 ? osw_bf16_of_float((float)value) : osw_f16_of_float((float)value);
}

double *osw_norm_read(const osw_call *call, int role, double *to)
{
    const osw_tensor *t = &call->tensors[role];
    if (!call->objects[role])
        return NULL;
    const int64_t step = step_of(t), count = t->numel;
    const osw_dtype dtype = osw_dtype_of(t);
    for (int64_t c = 0; c < count; c++)
        to[c] = value_at(t->data, dtype, c * step);
    return to;
}

void osw_norm_write(const osw_call *call, int role, const double *from)
{
    const osw_tensor *t = &call->tensors[role];
    if (!call->objects[role])
        return;
    const int64_t step = step_of(t), count = t->numel;
    const osw_dtype dtype = osw_dtype_of(t);
    for (int64_t c = 0; c < count; c++)
        put_value(t->data, dtype, c * step, from[c]);
}

osw_norm_vectors osw_norm_read_vectors(const osw_call *call, int64_t channels, double *memory)
{
    const bool backward = call->objects[GRAD_WEIGHT] || call->objects[GRAD_BIAS];
    return (osw_norm_vectors){
        .weight = osw_norm_read(call, WEIGHT, memory),
        .bias = osw_norm_read(call, BIAS, memory + channels),
        .grad_weight = backward ? memory + 2 * channels : NULL,
        .grad_bias = backward ? memory + 3 * channels : NULL,
    };
}

void osw_norm_place(const osw_call *call, osw_norm_job *job, double *memory)
{
    const osw_norm_vectors v = osw_norm_read_vectors(call, job->norm.channels, memory);
    job->weight = v.weight;
    job->bias = v.bias;
    job->grad_weight = v.grad_weight;
    job->grad_bias = v.grad_bias;
}

double *osw_norm_begin(osw_call *call, osw_norm_job *job)
{
    const int64_t channels = job->norm.channels, vectors = (2 + OSW_NORM_VECTORS) * channels;
    const int64_t scratch = osw_norm_prepare(job);
    const bool given = call->objects[STATISTICS];
    double *memory = osw_call_room(call, (size_t)(vectors + scratch) * sizeof *memory);
    if (!memory)
        return NULL;
    job->mean = given ? (double *)call->tensors[STATISTICS].data : memory;
    job->var = given ? job->mean + channels : memory + channels;
    if (!call->backward && !job->training) {
        osw_norm_read(call, RUNNING_MEAN, job->mean);
        osw_norm_read(call, RUNNING_VAR, job->var);
    }
    osw_norm_place(call, job, memory + 2 * channels);
    return memory + vectors;
}

void osw_norm_write_gradients(const osw_call *call, const double *weight, const double *bias)
{
    osw_norm_write(call, GRAD_WEIGHT, weight);
    osw_norm_write(call, GRAD_BIAS, bias);
}

void osw_norm_end(const osw_call *call, const osw_norm_job *job, double *scratch)
{
    osw_norm_write_gradients(call, job->grad_weight, job->grad_bias);
    if (call->backward || !job->training || !job->moves || !call->objects[RUNNING_MEAN])
        return;
    /* That of the gradients, of which a forward has none. */
    double *room = scratch - 2 * job->norm.channels;
    double *mean = osw_norm_read(call, RUNNING_MEAN, room);
    double *var = osw_norm_read(call, RUNNING_VAR, room + job->norm.channels);
    osw_norm_move(job, mean, var);
    osw_norm_write(call, RUNNING_MEAN, mean);
    osw_norm_write(call, RUNNING_VAR, var);
}

int osw_norm_make_like(osw_call *call, int role, int made, bool channels_last)
{
    const osw_tensor *t = &call->tensors[role];
    return osw_call_make(call, made, role, OSW_SAME_DTYPE, t->ndim, t->size, channels_last);
}

int osw_norm_make_gradients(osw_call *call, PyObject *needed, bool channels_last)
{
    static const osw_norm_role made[] = {GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS};
    static const osw_norm_role of[] = {INPUT, WEIGHT, BIAS};
    for (int i = 0; i < 3; i++)
        if (PyTuple_GetItem(needed, i) == Py_True && call->objects[of[i]] &&
            osw_norm_make_like(call, of[i], made[i], of[i] == INPUT && channels_last) != 0)
            return -1;
    return 0;
}

bool osw_norm_is_large(const osw_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT];
    return x->numel * x->itemsize > OSW_GRAIN_BYTES;
}
