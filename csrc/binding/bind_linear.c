/* SPDX-License-Identifier: MIT */
/* grouped_linear(input, weight, bias, sections) -> output and grouped_linear_backward(grad_output,
 * input, weight, sections, wants_input, wants_weight, wants_bias) -> the three gradients, None for
 * one that is not wanted. sections: outputs of every group, or None if all have as many. Both
 * return NotImplemented if the memory of a tensor does not fit: the caller makes it contiguous
 * and calls again. plain_grouped_linear and plain_grouped_linear_backward have the same arguments
 * and return NotImplemented for everything that the caller should look at more closely: what would
 * be an error, calls that torch's dispatcher has to see, tiers on which the library may be faster.
 * linear_variants(): the kernels and how often each was called. */
#include "binding/layer.h"
#include "core/isa.h"

static uint64_t calls[OSW_LINEAR_COUNT];

int osw_layer_run_linear(osw_call *call, osw_linear_job *job)
{
    char *parts = osw_call_room(call, osw_linear_plan(job, calls));
    if (!parts)
        return -1;
    OSW_RUN(call->name, job->cost > OSW_GRAIN_PRODUCTS, osw_linear_run(job, parts));
    return 0;
}

typedef struct osw_grouped_call {
    osw_linear_job job;
    Py_ssize_t sections; /* how many are listed; -1: all groups have as many outputs */
    int64_t *first;      /* outputs of every group, behind a place for the first prefix sum */
} osw_grouped_call;

static int read_sections(osw_call *call)
{
    osw_grouped_call *grouped = call->job;
    PyObject *object = call->args[3];
    grouped->sections = -1;
    if (call->plain && (!osw_linear_leads(osw_isa_current()) || !osw_plain_eager(true)))
        return -1;
    if (object == Py_None)
        return 0;
    if (!PyTuple_Check(object))
        return osw_raise(PyExc_TypeError, "%s: sections must be None or a tuple of ints, got %R",
                         call->name, object);
    grouped->sections = PyTuple_Size(object);
    int64_t *first = osw_call_room(call, (size_t)(grouped->sections + 1) * sizeof *first);
    if (!first)
        return -1;
    first[0] = 0;
    for (Py_ssize_t g = 0; g < grouped->sections; g++)
        if (osw_int_arg(call->name, "sections", PyTuple_GetItem(object, g), 0, INT64_MAX,
                        &first[g + 1]) != 0)
            return -1;
    grouped->first = first;
    return 0;
}

/* first[g + 1] = first[g] + outputs of group g, in equal shares of `total`. */
static int fill_equal(osw_call *call, osw_grouped_call *grouped, int64_t total)
{
    const int64_t groups = grouped->job.linear.groups;
    grouped->first = osw_call_room(call, (size_t)(groups + 1) * sizeof *grouped->first);
    for (int64_t g = 0; grouped->first && g <= groups; g++)
        grouped->first[g] = g * (total / groups);
    return grouped->first ? 0 : -1;
}

/* The same, by the sections. */
static int fill_listed(osw_call *call, osw_grouped_call *grouped, int64_t total)
{
    const int64_t groups = grouped->job.linear.groups;
    int64_t *first = grouped->first;
    for (int64_t g = 0; g < groups; g++) {
        if (first[g + 1] > total - first[g])
            return osw_call_fail(call, WEIGHT, "has too few rows for the sections, from group",
                                 total, g);
        first[g + 1] += first[g];
    }
    return first[groups] == total ? 0
                                  : osw_call_fail(call, WEIGHT, "has more rows than the sections",
                                                  total, first[groups]);
}

static int check_dtypes(const osw_call *call, osw_linear_job *job)
{
    const int bits = call->tensors[WEIGHT].dtype.bits;
    job->dtype = osw_dtype_of(&call->tensors[WEIGHT]);
    return job->dtype == OSW_DTYPE_COUNT
               ? osw_call_fail(call, WEIGHT, "must be float32, float64, bfloat16 or float16, bits",
                               bits, 32)
               : osw_layer_check_dtypes(call, WEIGHT);
}

/* t is (N, *rows), or rows if N is negative; `rows` are the weight's sizes without the last. */
static bool fits_weight(const osw_tensor *t, const osw_tensor *weight, int64_t rows)
{
    const int lead = rows >= 0;
    bool fits = t->ndim == weight->ndim - 1 + lead && (!lead || t->size[0] == rows);
    for (int i = 0; fits && i < weight->ndim - 1; i++)
        fits = t->size[lead + i] == weight->size[i];
    return fits;
}

static int check_sizes(const osw_call *call, const osw_linear *l, bool listed)
{
    const osw_tensor *t = call->tensors, *w = &t[WEIGHT];
    if (listed ? w->ndim != 2 : w->ndim != 3 || w->size[0] != l->groups)
        return osw_call_fail(call, WEIGHT, "does not fit the groups", w->size[0], l->groups);
    const bool fits[] = {
        [WEIGHT] = w->size[w->ndim - 1] == l->in_features,
        [BIAS] = !call->objects[BIAS] || fits_weight(&t[BIAS], w, -1),
        [GRAD_OUTPUT] =
            !call->objects[GRAD_OUTPUT] || fits_weight(&t[GRAD_OUTPUT], w, t[INPUT].size[0]),
        [INPUT] = true,
    };
    for (int i = 0; i <= BIAS; i++)
        if (!fits[i])
            return osw_call_fail(call, i, "does not fit input and weight, in elements", t[i].numel,
                                 w->numel);
    return 0;
}

/* Every tensor can be read in place. */
static bool is_readable(const osw_call *call)
{
    const osw_tensor *t = call->tensors;
    return osw_is_dense(&t[INPUT], 2) && osw_is_dense(&t[WEIGHT], 0) &&
           (!call->objects[BIAS] || osw_is_dense(&t[BIAS], 0)) &&
           (!call->objects[GRAD_OUTPUT] || osw_is_dense(&t[GRAD_OUTPUT], 1));
}

/* Sizes from input and weight, then everything against them; declined if a tensor cannot be read in
 * place. */
static int check(osw_call *call)
{
    osw_grouped_call *grouped = call->job;
    const osw_tensor *x = &call->tensors[INPUT], *w = &call->tensors[WEIGHT];
    osw_linear *l = &grouped->job.linear;
    const bool listed = grouped->sections >= 0;
    if (x->ndim != 3 || x->numel == 0 || w->numel == 0)
        return osw_fail(call->name, "expected an input (N, groups, in_features) and a weight with "
                                    "elements");
    l->rows = x->size[0], l->groups = x->size[1], l->in_features = x->size[2];
    if (listed && grouped->sections != l->groups)
        return osw_raise(PyExc_TypeError,
                         "%s: sections must be None or a tuple of %lld ints, got %zd of them",
                         call->name, (long long)l->groups, grouped->sections);
    if (check_dtypes(call, &grouped->job) != 0 || check_sizes(call, l, listed) != 0 ||
        (listed ? fill_listed : fill_equal)(call, grouped, w->numel / l->in_features) != 0)
        return -1;
    l->first = grouped->first;
    return is_readable(call) ? 0 : -1;
}

/* Where all tensors lie. */
static int run(osw_call *call)
{
    osw_grouped_call *grouped = call->job;
    const osw_tensor *t = call->tensors;
    osw_linear *l = &grouped->job.linear;
    l->input = (osw_linear_rows){t[INPUT].data, t[INPUT].stride[0], t[INPUT].stride[1]};
    l->weight = t[WEIGHT].data;
    l->bias = t[BIAS].data;
    l->output = (osw_linear_rows){t[OUTPUT].data, l->first[l->groups], 0};
    l->grad_output = (osw_linear_rows){t[GRAD_OUTPUT].data, t[GRAD_OUTPUT].stride[0], 0};
    l->grad_input =
        (osw_linear_rows){t[GRAD_INPUT].data, l->groups * l->in_features, l->in_features};
    l->grad_weight = t[GRAD_WEIGHT].data;
    l->grad_bias = t[GRAD_BIAS].data;
    return osw_layer_run_linear(call, &grouped->job);
}

/* (N, *sizes of the weight without the last) */
static int make_output(osw_call *call)
{
    const osw_tensor *w = &call->tensors[WEIGHT];
    int64_t size[OSW_MAX_DIMS] = {call->tensors[INPUT].size[0]};
    for (int i = 0; i < w->ndim - 1; i++)
        size[1 + i] = w->size[i];
    return osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, w->ndim, size, false);
}

static int make_gradients(osw_call *call)
{
    return osw_layer_gradients(call, call->args + 4, false, false, call->tensors[WEIGHT].ndim - 1);
}

OSW_ENTRIES_OF(grouped_linear, (osw_grouped_call){0}, .name = "grouped_linear", OSW_LAYER_FORWARD,
               .arguments = 4, .numbers = read_sections, OSW_STEPS(check, make_output, run))

OSW_ENTRIES_OF(grouped_linear_backward, (osw_grouped_call){0}, .name = "grouped_linear_backward",
               OSW_LAYER_BACKWARD, .arguments = 7, .numbers = read_sections,
               OSW_STEPS(check, make_gradients, run))

OSW_ENTRY_NO_ARGS(linear_leads)
{
    return PyBool_FromLong(osw_linear_leads(osw_isa_current()));
}

OSW_ENTRY_COUNTS(linear_variants, calls, OSW_LINEAR_VARIANTS(OSW_VARIANT_2))

PyMethodDef osw_linear_methods[] = {
    OSW_ENTRY_LINE(grouped_linear, "grouped_linear(input, weight, bias, sections)"),
    OSW_ENTRY_LINE(grouped_linear_backward, "grouped_linear_backward(grad_output, input, weight, "
                                            "sections, wants_input, wants_weight, wants_bias)"),
    OSW_ENTRY_LINE(plain_grouped_linear,
                   "As grouped_linear, or NotImplemented if the caller has to look more closely."),
    OSW_ENTRY_LINE(
        plain_grouped_linear_backward,
        "As grouped_linear_backward, or NotImplemented if the caller has to look more closely."),
    OSW_ENTRY_NO_ARGS_LINE(
        linear_leads,
        "Whether products that torch computes as well go to the kernels of the tier in use."),
    OSW_ENTRY_COUNTS_LINE(linear_variants),
    {NULL, NULL, 0, NULL},
};
