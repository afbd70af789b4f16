/* SPDX-License-Identifier: MIT */
/* layer_norm and layer_norm_backward over the last dimension: a whole call each, outputs included.
 * NotImplemented means that nothing was done: a tensor is not dense. layer_norm_variants(): the
 * kernels and how often each was called. */
#include "binding/norm_call.h"
#include "layer_norm/run.h"

static uint64_t calls[OSW_LAYER_NORM_COUNT];

static int read_eps(osw_call *call)
{
    osw_layer_norm_job *job = call->job;
    return osw_float_arg(call->args[0], &job->norm.eps);
}

static int check(osw_call *call)
{
    osw_layer_norm_job *job = call->job;
    const osw_tensor *x = &call->tensors[INPUT];
    if (osw_norm_check_large(call, &job->dtype) != 0)
        return -1;
    if (x->numel == 0)
        return osw_norm_fail(call, INPUT, "has no elements", 0);
    job->norm.channels = x->size[x->ndim - 1];
    job->rows = x->numel / job->norm.channels;
    for (osw_norm_role role = WEIGHT; role <= BIAS; role++)
        if (call->objects[role] && call->tensors[role].ndim != 1)
            return osw_norm_fail(call, role, "must have one dimension", call->tensors[role].ndim);
    return osw_norm_check_vectors(call, job->norm.channels, false);
}

/* (*, 2), for the input (*, C). */
static void size_of_statistics(const osw_call *call, int64_t *size)
{
    const osw_tensor *x = &call->tensors[INPUT];
    for (int i = 0; i < x->ndim; i++)
        size[i] = i == x->ndim - 1 ? 2 : x->size[i];
}

static bool all_dense(const osw_call *call)
{
    bool dense = true;
    for (int i = 0; i < OSW_NORM_LARGE; i++)
        dense = dense && (!call->objects[osw_norm_large[i]] ||
                          osw_is_dense(&call->tensors[osw_norm_large[i]], 0));
    return dense;
}

static int run(osw_call *call)
{
    osw_layer_norm_job *job = call->job;
    const osw_tensor *t = call->tensors;
    if (!all_dense(call))
        return -1;
    job->norm.x = t[INPUT].data;
    job->norm.y = t[OUTPUT].data;
    job->norm.dy = t[GRAD_OUTPUT].data;
    job->norm.dx = t[GRAD_INPUT].data;
    job->norm.statistics = (double *)t[STATISTICS].data;
    const int64_t channels = job->norm.channels;
    double *memory = osw_call_room(call, (size_t)(OSW_NORM_VECTORS * channels) * sizeof *memory);
    if (!memory)
        return -1;
    const osw_norm_vectors vectors = osw_norm_read_vectors(call, channels, memory);
    job->weight = vectors.weight;
    job->bias = vectors.bias;
    job->grad_weight = vectors.grad_weight;
    job->grad_bias = vectors.grad_bias;
    char *scratch = osw_call_room(call, osw_layer_norm_plan(job, call->backward, calls));
    if (!scratch)
        return -1;
    OSW_RUN(call->name, osw_norm_is_large(call),
            (call->backward ? osw_layer_norm_backward : osw_layer_norm_forward)(job, scratch));
    osw_norm_write_gradients(call, job->grad_weight, job->grad_bias);
    return 0;
}

static int make_outputs(osw_call *call)
{
    int64_t size[OSW_MAX_DIMS];
    size_of_statistics(call, size);
    return osw_norm_make_like(call, INPUT, OUTPUT, false) == 0
               ? osw_call_make(call, STATISTICS, INPUT, OSW_FLOAT64, call->tensors[INPUT].ndim,
                               size, false)
               : -1;
}

OSW_ENTRY_OF(layer_norm, false, (osw_layer_norm_job){0}, .name = "layer_norm",
             .roles = osw_norm_roles, .arguments = 4, .numbers = read_eps,
             OSW_READS(1, 1, INPUT, WEIGHT, BIAS), OSW_STEPS(check, make_outputs, run),
             .result = OUTPUT, .results = 2)

static int read_backward(osw_call *call)
{
    return osw_norm_expect_needed(call, call->args[1]) == 0 ? read_eps(call) : -1;
}

static int make_gradients(osw_call *call)
{
    int64_t size[OSW_MAX_DIMS];
    size_of_statistics(call, size);
    return osw_norm_check_statistics(call, call->tensors[INPUT].ndim, size, "(*, 2)") == 0
               ? osw_norm_make_gradients(call, call->args[1], false)
               : -1;
}

OSW_ENTRY_OF(layer_norm_backward, false, (osw_layer_norm_job){0}, .name = "layer_norm_backward",
             .roles = osw_norm_roles, .arguments = 7, .backward = true, .numbers = read_backward,
             OSW_READS(2, 3, GRAD_OUTPUT, INPUT, STATISTICS, WEIGHT, BIAS),
             OSW_STEPS(check, make_gradients, run), .result = GRAD_INPUT, .results = 3)

OSW_ENTRY_COUNTS(layer_norm_variants, calls, OSW_LAYER_NORM_VARIANTS(OSW_VARIANT_2))

PyMethodDef osw_layer_norm_methods[] = {
    OSW_ENTRY_LINE(
        layer_norm,
        "layer_norm(eps, input, weight, bias) -> the output and the statistics (*, 2): means and "
        "inverse deviations in float64. NotImplemented unless the input is dense."),
    OSW_ENTRY_LINE(layer_norm_backward,
                   "layer_norm_backward(eps, needed, grad_output, input, statistics, weight, bias) "
                   "-> the gradients of input, weight and bias, None where not needed; "
                   "NotImplemented as layer_norm."),
    OSW_ENTRY_COUNTS_LINE(layer_norm_variants),
    {NULL, NULL, 0, NULL},
};
