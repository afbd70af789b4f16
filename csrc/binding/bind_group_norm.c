/* SPDX-License-Identifier: MIT */
/* group_norm and group_norm_backward: a whole call each, outputs included. NotImplemented means
 * that nothing was done: the memory of a tensor is not a matrix of pixels. */
#include "binding/norm_call.h"
#include "norm/group_run.h"

enum { VECTORS = 4 }; /* weight, bias, grad_weight, grad_bias */

/* groups and eps. */
static int read_options(const osw_call *call, osw_group_job *job, PyObject *groups, PyObject *eps)
{
    return osw_int_arg(call->name, "groups", groups, 1, INT32_MAX, &job->groups) == 0
               ? osw_float_arg(eps, &job->all.eps)
               : -1;
}

/* That the groups are of as many channels, and that every image has positions. */
static int check_groups(const osw_call *call, const osw_group_job *job)
{
    const osw_tensor *x = &call->tensors[INPUT];
    if (x->size[1] % job->groups != 0)
        return osw_norm_fail(call, INPUT, "has channels that do not divide into the groups",
                             x->size[1]);
    return x->numel == 0 ? osw_norm_fail(call, INPUT, "has no elements", 0) : 0;
}

static int check_statistics(const osw_call *call, const osw_group_job *job)
{
    const osw_tensor *x = &call->tensors[INPUT], *s = &call->tensors[STATISTICS];
    const int64_t size[] = {x->size[0], job->groups, 2};
    const osw_dtype dtype = osw_dtype_of_dlpack(s->dtype.code, s->dtype.bits, s->dtype.lanes);
    bool fits = s->ndim == 3 && dtype == OSW_F64 && osw_is_dense(s, 0);
    for (int i = 0; fits && i < 3; i++)
        fits = s->size[i] == size[i];
    return fits ? 0
                : osw_norm_fail(call, STATISTICS, "must be a dense float64 tensor (N, groups, 2)",
                                s->numel);
}

static void place_vectors(const osw_call *call, osw_norm_job *all, double *memory)
{
    const int64_t channels = all->norm.channels;
    all->weight = osw_norm_read(call, WEIGHT, memory);
    all->bias = osw_norm_read(call, BIAS, memory + channels);
    if (call->objects[GRAD_WEIGHT] || call->objects[GRAD_BIAS]) {
        all->grad_weight = memory + 2 * channels;
        all->grad_bias = memory + 3 * channels;
    }
}

static int run(const osw_call *call, osw_group_job *job, bool backward)
{
    const osw_tensor *x = &call->tensors[INPUT];
    osw_norm_job *all = &job->all;
    if (osw_call_unchanged(call) != 0)
        return -1;
    if (!osw_norm_choose_form(call, all) || all->form != OSW_NORM_PIXELS)
        return -1;
    const int64_t scratch = osw_group_prepare(job), vectors = VECTORS * all->norm.channels;
    double *memory = osw_room((size_t)(scratch + vectors) * sizeof *memory);
    if (!memory)
        return -1;
    place_vectors(call, all, memory);
    job->statistics = (double *)call->tensors[STATISTICS].data;
    osw_norm_choose(all, backward, osw_norm_calls);
    const osw_running running = osw_run_begin(call->name, x->numel * x->itemsize > OSW_GRAIN_BYTES);
    (backward ? osw_group_backward : osw_group_forward)(job, memory + vectors);
    osw_run_end(running);
    if (backward) {
        osw_norm_write(call, GRAD_WEIGHT, all->grad_weight);
        osw_norm_write(call, GRAD_BIAS, all->grad_bias);
    }
    PyMem_Free(memory);
    return 0;
}

enum { F_GROUPS, F_EPS, F_INPUT, F_WEIGHT, F_BIAS, F_COUNT };

static int parse_forward(osw_call *call, osw_group_job *job, PyObject *const *args)
{
    if (read_options(call, job, args[F_GROUPS], args[F_EPS]) != 0 ||
        osw_call_tensor(call, INPUT, args[F_INPUT]) != 0 ||
        osw_norm_optional(call, WEIGHT, args[F_WEIGHT]) != 0 ||
        osw_norm_optional(call, BIAS, args[F_BIAS]) != 0)
        return -1;
    return osw_norm_check(call, &job->all) == 0 ? check_groups(call, job) : -1;
}

OSW_ENTRY(group_norm)
{
    osw_call call = {.name = "group_norm", .roles = osw_norm_roles};
    osw_group_job job = {.all = {.training = true}};
    PyObject *results = NULL;
    if (!osw_expect(call.name, nargs, F_COUNT))
        return NULL;
    if (parse_forward(&call, &job, args) == 0) {
        const int64_t size[3] = {call.tensors[INPUT].size[0], job.groups, 2};
        if (osw_norm_make_like(&call, INPUT, OUTPUT) == 0 &&
            osw_call_make(&call, STATISTICS, INPUT, OSW_FLOAT64, 3, size, false) == 0 &&
            run(&call, &job, false) == 0)
            results = PyTuple_Pack(2, call.made[OUTPUT], call.made[STATISTICS]);
    }
    return osw_call_end(&call, results);
}

enum { B_GROUPS, B_EPS, B_NEEDED, B_GRAD, B_INPUT, B_STATISTICS, B_WEIGHT, B_BIAS, B_COUNT };

static int parse_backward(osw_call *call, osw_group_job *job, PyObject *const *args)
{
    if (read_options(call, job, args[B_GROUPS], args[B_EPS]) != 0 ||
        osw_call_tensor(call, GRAD_OUTPUT, args[B_GRAD]) != 0 ||
        osw_call_tensor(call, INPUT, args[B_INPUT]) != 0 ||
        osw_norm_optional(call, WEIGHT, args[B_WEIGHT]) != 0 ||
        osw_norm_optional(call, BIAS, args[B_BIAS]) != 0 || osw_norm_check(call, &job->all) != 0 ||
        check_groups(call, job) != 0)
        return -1;
    /* Behind the checks of a batch normalisation, whose statistics have another size. */
    if (osw_call_tensor(call, STATISTICS, args[B_STATISTICS]) != 0)
        return -1;
    return check_statistics(call, job);
}

OSW_ENTRY(group_norm_backward)
{
    osw_call call = {.name = "group_norm_backward", .roles = osw_norm_roles};
    osw_group_job job = {.all = {.training = true}};
    PyObject *results = NULL;
    if (!osw_expect(call.name, nargs, B_COUNT) || !osw_norm_expect_needed(&call, args[B_NEEDED]))
        return NULL;
    if (parse_backward(&call, &job, args) == 0 &&
        osw_norm_make_gradients(&call, args[B_NEEDED]) == 0 && run(&call, &job, true) == 0)
        results = osw_norm_gradients(&call);
    return osw_call_end(&call, results);
}

PyMethodDef osw_group_norm_methods[] = {
    OSW_ENTRY_LINE(group_norm,
                   "group_norm(groups, eps, input, weight, bias) -> the output and the statistics "
                   "(N, groups, 2): means and biased variances in float64. NotImplemented unless "
                   "the channels of a position are neighbours, and nothing lies between."),
    OSW_ENTRY_LINE(group_norm_backward,
                   "group_norm_backward(groups, eps, needed, grad_output, input, statistics, "
                   "weight, bias) -> the gradients of input, weight and bias, None if not "
                   "needed; NotImplemented as group_norm."),
    {NULL, NULL, 0, NULL},
};
