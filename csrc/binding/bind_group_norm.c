/* SPDX-License-Identifier: MIT */
/* group_norm and group_norm_backward: a whole call each, outputs included. NotImplemented means
 * that nothing was done: the memory of a tensor is not a matrix of pixels. */
#include "binding/norm_call.h"
#include "norm/group_run.h"

static int read_numbers(osw_call *call)
{
    osw_group_job *job = call->job;
    job->all.training = true;
    return osw_int_arg(call->name, "groups", call->args[0], 1, INT32_MAX, &job->groups) == 0
               ? osw_float_arg(call->args[1], &job->all.eps)
               : -1;
}

/* That the groups are of as many channels, and that every image has positions. */
static int check(osw_call *call)
{
    osw_group_job *job = call->job;
    const osw_tensor *x = &call->tensors[INPUT];
    if (osw_norm_check(call, &job->all) != 0)
        return -1;
    if (x->size[1] % job->groups != 0)
        return osw_norm_fail(call, INPUT, "has channels that do not divide into the groups",
                             x->size[1]);
    if (x->numel == 0)
        return osw_norm_fail(call, INPUT, "has no elements", 0);
    const int64_t size[] = {x->size[0], job->groups, 2};
    return osw_norm_check_statistics(call, 3, size, "(N, groups, 2)");
}

static int run(osw_call *call)
{
    osw_group_job *job = call->job;
    osw_norm_job *all = &job->all;
    if (!osw_norm_choose_form(call, all) || all->form != OSW_NORM_PIXELS)
        return -1;
    const int64_t channels = all->norm.channels, vectors = OSW_NORM_VECTORS * channels;
    const int64_t scratch = osw_group_prepare(job);
    double *memory = osw_call_room(call, (size_t)(scratch + vectors) * sizeof *memory);
    if (!memory)
        return -1;
    osw_norm_place(call, all, memory);
    job->statistics = (double *)call->tensors[STATISTICS].data;
    osw_norm_choose(all, call->backward, osw_norm_calls);
    OSW_RUN(call->name, osw_norm_is_large(call),
            (call->backward ? osw_group_backward : osw_group_forward)(job, memory + vectors));
    osw_norm_write_gradients(call, all->grad_weight, all->grad_bias);
    return 0;
}

static int make_outputs(osw_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT];
    const int64_t size[] = {x->size[0], ((osw_group_job *)call->job)->groups, 2};
    return osw_norm_make_like(call, INPUT, OUTPUT, osw_suggests_channels_last(x)) == 0
               ? osw_call_make(call, STATISTICS, INPUT, OSW_FLOAT64, 3, size, false)
               : -1;
}

OSW_ENTRY_OF(group_norm, false, (osw_group_job){0}, .name = "group_norm", .roles = osw_norm_roles,
             .arguments = 5, .numbers = read_numbers, OSW_READS(2, 1, INPUT, WEIGHT, BIAS),
             OSW_STEPS(check, make_outputs, run), .result = OUTPUT, .results = 2)

static int read_backward(osw_call *call)
{
    return osw_norm_expect_needed(call, call->args[2]) == 0 ? read_numbers(call) : -1;
}

static int make_gradients(osw_call *call)
{
    return osw_norm_make_gradients(call, call->args[2],
                                   osw_suggests_channels_last(&call->tensors[INPUT]));
}

OSW_ENTRY_OF(group_norm_backward, false, (osw_group_job){0}, .name = "group_norm_backward",
             .roles = osw_norm_roles, .arguments = 8, .backward = true, .numbers = read_backward,
             OSW_READS(3, 3, GRAD_OUTPUT, INPUT, STATISTICS, WEIGHT, BIAS),
             OSW_STEPS(check, make_gradients, run), .result = GRAD_INPUT, .results = 3)

PyMethodDef osw_group_norm_methods[] = {
    OSW_ENTRY_LINE(group_norm,
                   "group_norm(groups, eps, input, weight, bias) -> the output and the statistics "
                   "(N, groups, 2): means and biased variances in float64. NotImplemented unless "
                   "the channels of a position are neighbours, and nothing lies between."),
    OSW_ENTRY_LINE(group_norm_backward,
                   "group_norm_backward(groups, eps, needed, grad_output, input, statistics, "
                   "weight, bias) -> the gradients of input, weight and bias, None if not needed; "
                   "NotImplemented as group_norm."),
    {NULL, NULL, 0, NULL},
};
