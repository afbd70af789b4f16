/* SPDX-License-Identifier: MIT */
/* Chains of convolutions, each with a batch normalisation in training and an activation behind it,
 * of float32 tensors in channels_last.
 *
 *     plain_chain(options, tensors) -> (output, statistics, z of each stage)
 *     plain_chain_backward(options, tensors, grad_output, statistics, zs, needed) -> gradients
 *
 * options: per stage (stride, momentum, eps, activation). tensors: the input, then per stage the
 * weights of the convolution and of the normalisation, its bias, running_mean and running_var; all
 * but the first of a stage may be None. statistics: float64, per stage the means and the biased
 * variances. The gradients are those of the tensors, None for what `needed`, of as many bools, does
 * not ask for, and for running statistics.
 *
 *     chain_fits(options, tensors) -> True if plain_chain supports them but for the input's format
 *
 * All return NotImplemented for everything that is not the kernels': other memory formats, sizes
 * or dtypes, what would be an error, calls that torch's dispatcher has to see. */
#include "binding/chain_call.h"
#include "core/isa.h"

/* Running statistics are written: they lie apart from all else, or are those of another stage. */
static bool lies_apart(const osw_call *call, Py_ssize_t i)
{
    const Py_ssize_t count = ((osw_chain_call *)call->job)->count;
    const osw_tensor *written = &call->tensors[TENSORS + i];
    for (Py_ssize_t k = 0; k < count; k++) {
        const bool running = k > 0 && (k - 1) % PER_STAGE >= RUNNING_MEAN;
        const bool same = running && k % PER_STAGE == i % PER_STAGE &&
                          osw_chain_data(call, TENSORS + k) == written->data;
        if (k != i && call->objects[TENSORS + k] && !same &&
            osw_ranges_meet(&call->tensors[TENSORS + k], written))
            return false;
    }
    return true;
}

/* What a stage writes is what the next one reads. */
static void place_z(osw_chain *chain, int i, float *z)
{
    chain->stages[i].output = z;
    if (i + 1 < chain->count)
        chain->stages[i + 1].input = z;
}

/* Output, statistics and z of each stage. */
static int make_results(osw_call *call)
{
    osw_chain_call *c = call->job;
    osw_chain_stage *last = &c->chain.stages[c->chain.count - 1];
    const int64_t size[1] = {2 * c->outputs};
    for (Py_ssize_t i = 1; i < c->count; i++)
        if ((i - 1) % PER_STAGE >= RUNNING_MEAN && call->objects[TENSORS + i] &&
            !lies_apart(call, i))
            return -1;
    last->normal = osw_chain_make_image(call, OUTPUT, last, false);
    if (!last->normal || osw_call_make(call, STATISTICS, TENSORS, OSW_FLOAT64, 1, size, false) != 0)
        return -1;
    osw_chain_place_statistics(c, osw_chain_data(call, STATISTICS));
    for (int i = 0; i < c->chain.count; i++) {
        float *z = osw_chain_make_image(call, ZS + i, &c->chain.stages[i], false);
        if (!z)
            return -1;
        place_z(&c->chain, i, z);
    }
    return 0;
}

static int run(osw_call *call)
{
    osw_chain *chain = &((osw_chain_call *)call->job)->chain;
    void *memory = osw_call_room(call, osw_chain_prepare(chain));
    if (!memory)
        return -1;
    osw_chain_choose(chain, call->backward, osw_chain_calls);
    OSW_RUN(call->name, true,
            (call->backward ? osw_chain_backward : osw_chain_forward)(chain, memory));
    return 0;
}

/* running += momentum * (batch - running), stage by stage, for the mean and the unbiased variance.
 */
static int run_forward(osw_call *call)
{
    const osw_chain_call *c = call->job;
    if (run(call) != 0)
        return -1;
    for (int i = 0; i < c->chain.count; i++) {
        const osw_chain_stage *s = &c->chain.stages[i];
        const osw_chain_link *link = &c->chain.links[i];
        float *mean = osw_chain_values(call, i, RUNNING_MEAN),
              *var = osw_chain_values(call, i, RUNNING_VAR);
        const double count = (double)osw_chain_pixels(s), m = c->momentum[i];
        for (int64_t k = 0; mean && k < s->outputs; k++) {
            mean[k] = (float)((1 - m) * (double)mean[k] + m * link->mean[k]);
            var[k] = (float)((1 - m) * (double)var[k] + m * (link->var[k] * count / (count - 1)));
        }
    }
    return 0;
}

static PyObject *give_results(const osw_call *call)
{
    return osw_call_tuple(call, OUTPUT, 2 + ((osw_chain_call *)call->job)->chain.count);
}

OSW_CHAIN_ENTRY(plain_chain, false, .name = "conv_chain", .arguments = 2,
                OSW_STEPS(osw_chain_describe, make_results, run_forward), .give = give_results)

OSW_CHAIN_ENTRY(chain_fits, false, .name = "conv_chain", .arguments = 2,
                OSW_STEPS(osw_chain_describe_any), .give = osw_call_true)

enum { B_OPTIONS, B_TENSORS, B_GRAD, B_STATISTICS, B_ZS, B_NEEDED, B_COUNT };

/* An image of the size of a stage's output. */
static bool is_output(const osw_tensor *t, const osw_chain_stage *s)
{
    const int64_t size[] = {s->batch, s->outputs, s->out_height, s->out_width};
    return osw_dtype_of(t) == OSW_F32 && osw_has_size(t, 4, size) && osw_is_pixels(t);
}

/* The tensors that a forward has kept. */
static int read_kept(osw_call *call)
{
    osw_chain_call *c = call->job;
    osw_chain *chain = &c->chain;
    osw_chain_stage *last = &chain->stages[chain->count - 1];
    const osw_tensor *t = call->tensors;
    const int64_t size[] = {2 * c->outputs};
    PyObject *zs = call->args[B_ZS], *needed = call->args[B_NEEDED];
    if (!PyTuple_Check(zs) || PyTuple_Size(zs) != chain->count || !PyTuple_Check(needed) ||
        PyTuple_Size(needed) != c->count ||
        osw_call_tensor(call, GRAD_OUTPUT, call->args[B_GRAD]) != 0 ||
        !is_output(&t[GRAD_OUTPUT], last) ||
        osw_call_tensor(call, STATISTICS, call->args[B_STATISTICS]) != 0 ||
        osw_dtype_of(&t[STATISTICS]) != OSW_F64 || !osw_has_size(&t[STATISTICS], 1, size) ||
        t[STATISTICS].stride[0] != 1)
        return -1;
    last->grad = osw_chain_data(call, GRAD_OUTPUT);
    osw_chain_place_statistics(c, osw_chain_data(call, STATISTICS));
    for (int i = 0; i < chain->count; i++) {
        if (osw_call_tensor(call, ZS + i, PyTuple_GetItem(zs, i)) != 0 ||
            !is_output(&t[ZS + i], &chain->stages[i]) || !osw_chain_is_image(&t[ZS + i]))
            return -1;
        place_z(chain, i, osw_chain_data(call, ZS + i));
    }
    return 0;
}

/* The gradients of the tensors that need one, and those between the stages. */
static int make_gradients(osw_call *call)
{
    osw_chain_call *c = call->job;
    osw_chain *chain = &c->chain;
    const Py_ssize_t gradients = TENSORS + c->count;
    for (Py_ssize_t i = 0; i < c->count; i++) {
        const osw_tensor *t = &call->tensors[TENSORS + i];
        const bool learns = i == 0 || (i - 1) % PER_STAGE <= SHIFT;
        if (learns && call->objects[TENSORS + i] &&
            PyTuple_GetItem(call->args[B_NEEDED], i) == Py_True &&
            osw_call_make(call, gradients + i, TENSORS + i, OSW_SAME_DTYPE, t->ndim, t->size,
                          t->ndim == 4 && osw_suggests_channels_last(t)) != 0)
            return -1;
    }
    chain->stages[0].grad_input = osw_chain_data(call, gradients);
    for (int i = 0; i < chain->count; i++) {
        osw_chain_stage *s = &chain->stages[i];
        const Py_ssize_t first = c->count + osw_chain_place(call, i, 0);
        chain->grad_weights[i] = osw_chain_data(call, first + WEIGHT);
        chain->links[i].grad_weight = osw_chain_data(call, first + SCALE);
        chain->links[i].grad_bias = osw_chain_data(call, first + SHIFT);
        if (i == 0)
            continue;
        s->grad_input = osw_chain_make_image(call, BETWEEN + i - 1, s, true);
        s[-1].grad = s->grad_input;
        if (!s->grad_input)
            return -1;
    }
    return 0;
}

static PyObject *give_gradients(const osw_call *call)
{
    const Py_ssize_t count = ((osw_chain_call *)call->job)->count;
    return osw_call_tuple(call, TENSORS + count, count);
}

OSW_CHAIN_ENTRY(plain_chain_backward, false, .name = "conv_chain_backward", .arguments = B_COUNT,
                .backward = true, OSW_STEPS(osw_chain_describe, read_kept, make_gradients, run),
                .give = give_gradients)

OSW_ENTRY_NO_ARGS(chain_leads)
{
    return PyBool_FromLong(osw_chain_leads(osw_isa_current()));
}

#define NAME(operation) #operation,
OSW_ENTRY_COUNTS(chain_variants, osw_chain_calls, OSW_CHAIN_VARIANTS(NAME))

PyMethodDef osw_chain_methods[] = {
    OSW_ENTRY_LINE(plain_chain, "plain_chain(options, tensors) -> (output, statistics, z of each "
                                "stage), or NotImplemented"),
    OSW_ENTRY_LINE(plain_chain_backward,
                   "plain_chain_backward(options, tensors, grad_output, statistics, zs, needed) -> "
                   "gradients of the tensors, or NotImplemented"),
    OSW_ENTRY_LINE(chain_fits, "chain_fits(options, tensors) -> True if plain_chain supports these "
                               "but for the input's memory format, or NotImplemented"),
    OSW_ENTRY_NO_ARGS_LINE(chain_leads, "Whether the kernels of the tier in use are fast."),
    OSW_ENTRY_COUNTS_LINE(chain_variants),
    {NULL, NULL, 0, NULL},
};
