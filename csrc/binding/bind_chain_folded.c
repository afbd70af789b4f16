/* SPDX-License-Identifier: MIT */
/* plain_chain_folded(options, tensors, folded) -> (output, folded): a chain as in bind_chain.c, in
 * evaluation, with its normalisations folded into the weights.
 *
 * options: per stage (stride_y, stride_x, padding_y, padding_x, groups, eps, activation). tensors:
 * as there, and behind those of a stage the bias of the convolution; those of the normalisation may
 * be None together. folded: an opaque tensor of the weights with their normalisations, which a call
 * makes if it gets None or one of another tier.
 *
 * chain_folded_fits(options, tensors, folded) -> True if plain_chain_folded supports these but for
 * the input's memory format.
 *
 * prepare_chain(options, tensors, folded) -> what run_prepared_chain(prepared, input) needs for the
 * output of a call with these arguments, if the input is of the same kind. The memory of the
 * tensors is kept; whether they still have it, the caller has to see. */
#include "binding/chain_call.h"
#include "core/isa.h"

#include <string.h>

/* Floats behind the folded weights: copies of all tensors of a stage but its weight, and for each
 * whether it was given. */
static int64_t vector_floats(const osw_chain_call *c)
{
    return (PER_FOLDED_STAGE - SCALE) * (c->chain.count + c->outputs);
}

/* Write these copies, or compare with them: whether they are the same bits. */
static bool vectors_are(const osw_call *call, float *copies, bool write)
{
    const osw_chain *chain = &((osw_chain_call *)call->job)->chain;
    bool same = true;
    for (int i = 0; same && i < chain->count; i++) {
        const int64_t count = chain->stages[i].outputs;
        for (int role = SCALE; same && role < PER_FOLDED_STAGE; role++, copies += 1 + count) {
            const float *values = osw_chain_values(call, i, role);
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

/* The running statistics in double, into `room`. */
static void read_statistics(const osw_call *call, double *room)
{
    osw_chain *chain = &((osw_chain_call *)call->job)->chain;
    osw_chain_place_statistics(call->job, room);
    for (int i = 0; i < chain->count; i++) {
        osw_chain_link *link = &chain->links[i];
        const float *mean = osw_chain_values(call, i, RUNNING_MEAN);
        const float *var = osw_chain_values(call, i, RUNNING_VAR);
        for (int64_t c = 0; mean && c < chain->stages[i].outputs; c++) {
            link->mean[c] = (double)mean[c];
            link->var[c] = (double)var[c];
        }
        if (!mean)
            link->mean = link->var = NULL;
    }
}

/* The weights with their normalisations, in a new tensor. */
static int fold(osw_call *call)
{
    osw_chain_call *c = call->job;
    const int64_t floats = osw_chain_folded_floats(&c->chain);
    const int64_t size[1] = {floats + vector_floats(c)};
    const size_t bytes = (size_t)(2 * c->outputs) * sizeof(double);
    if (osw_call_make(call, FOLDED, TENSORS, OSW_SAME_DTYPE, 1, size, false) != 0)
        return -1;
    double *room =
        osw_call_room(call, bytes + (size_t)osw_chain_fold_room(&c->chain) * sizeof(float));
    if (!room)
        return -1;
    c->weights = osw_chain_data(call, FOLDED);
    read_statistics(call, room);
    vectors_are(call, c->weights + floats, true);
    osw_chain_fold(&c->chain, (int)osw_isa_current(), c->weights, (float *)(room + 2 * c->outputs));
    return 0;
}

/* The weights that an earlier call of the same chain has folded, with the same vectors; else NULL.
 */
static float *folded_before(osw_call *call, PyObject *given)
{
    const osw_chain_call *c = call->job;
    const int64_t floats = osw_chain_folded_floats(&c->chain);
    const int64_t size[] = {floats + vector_floats(c)};
    const osw_tensor *t = &call->tensors[FOLDED];
    if (given == Py_None || osw_call_tensor(call, FOLDED, given) != 0 ||
        osw_dtype_of(t) != OSW_F32 || !osw_has_size(t, 1, size) || t->stride[0] != 1)
        return NULL;
    float *folded = (float *)(void *)t->data;
    const bool same = osw_chain_is_folded(folded, (int)osw_isa_current()) &&
                      vectors_are(call, folded + floats, false);
    return same ? folded : NULL;
}

enum { F_OPTIONS, F_TENSORS, F_FOLDED, F_COUNT };

/* The folded weights, those of an earlier call if they still hold, and the output. */
static int make_folded(osw_call *call)
{
    osw_chain_call *c = call->job;
    PyObject *given = call->args[F_FOLDED];
    osw_chain_stage *last = &c->chain.stages[c->chain.count - 1];
    if (!osw_chain_folds(&c->chain))
        return -1;
    c->weights = folded_before(call, given);
    if (!osw_chain_repays(&c->chain, given != Py_None))
        return -1;
    osw_chain_choose_folded(&c->chain, !c->weights, osw_chain_calls);
    if (c->weights)
        call->made[FOLDED] = Py_NewRef(given);
    else if (fold(call) != 0)
        return -1;
    last->normal = osw_chain_make_image(call, OUTPUT, last, false);
    return last->normal ? 0 : -1;
}

static int run_folded(osw_call *call)
{
    osw_chain_call *c = call->job;
    OSW_RUN(call->name, true, osw_chain_folded_forward(&c->chain, c->weights));
    return 0;
}

OSW_CHAIN_ENTRY(plain_chain_folded, true, .called = "plain_chain_folded", .name = "conv_chain",
                .arguments = F_COUNT, OSW_STEPS(osw_chain_describe, make_folded, run_folded),
                .result = OUTPUT, .results = 2)

static int check_folds(osw_call *call)
{
    const osw_chain *chain = &((osw_chain_call *)call->job)->chain;
    const bool kept = call->args[F_FOLDED] != Py_None;
    return osw_chain_folds(chain) && osw_chain_repays(chain, kept) ? 0 : -1;
}

OSW_CHAIN_ENTRY(chain_folded_fits, true, .name = "conv_chain", .arguments = F_COUNT,
                OSW_STEPS(osw_chain_describe_any, check_folds), .give = osw_call_true)

/* --- prepared --------------------------------------------------------------------------------- */

/* A vector that was folded, and the copy of it behind the folded weights. */
typedef struct osw_folded_vector {
    const float *values, *copy;
    size_t bytes;
} osw_folded_vector;

enum { MOST_VECTORS = OSW_CHAIN_MOST_STAGES * (PER_FOLDED_STAGE - SCALE) };

typedef struct osw_prepared_chain {
    osw_chain chain;
    const float *weights; /* folded */
    int64_t size[4], out_size[4];
    int vectors;
    osw_folded_vector vector[MOST_VECTORS];
    PyObject *tensors, *folded; /* owned: those behind the input, and the folded weights */
} osw_prepared_chain;

static const char prepared_name[] = "opswap.prepared_chain";

static void free_prepared(PyObject *capsule)
{
    osw_prepared_chain *prepared = PyCapsule_GetPointer(capsule, prepared_name);
    if (!prepared)
        return;
    Py_XDECREF(prepared->tensors);
    Py_XDECREF(prepared->folded);
    PyMem_Free(prepared);
}

static void list_vectors(const osw_call *call, osw_prepared_chain *prepared, const float *copies)
{
    for (int i = 0; i < prepared->chain.count; i++) {
        const int64_t count = prepared->chain.stages[i].outputs;
        for (int role = SCALE; role < PER_FOLDED_STAGE; role++, copies += 1 + count) {
            const float *values = osw_chain_values(call, i, role);
            if (values)
                prepared->vector[prepared->vectors++] =
                    (osw_folded_vector){values, copies + 1, (size_t)count * sizeof *values};
        }
    }
}

static int prepare(osw_call *call)
{
    osw_chain_call *c = call->job;
    const osw_chain_stage *last = &c->chain.stages[c->chain.count - 1];
    const osw_tensor *x = &call->tensors[TENSORS];
    c->weights = folded_before(call, call->args[F_FOLDED]);
    if (!c->weights || !osw_chain_folds(&c->chain))
        return -1;
    osw_prepared_chain *prepared = PyMem_Calloc(1, sizeof *prepared);
    if (!prepared) {
        PyErr_NoMemory();
        return -1;
    }
    prepared->chain = c->chain;
    prepared->weights = c->weights;
    memcpy(prepared->size, x->size, sizeof prepared->size);
    memcpy(prepared->out_size,
           (int64_t[]){last->batch, last->outputs, last->out_height, last->out_width},
           sizeof prepared->out_size);
    list_vectors(call, prepared, c->weights + osw_chain_folded_floats(&c->chain));
    PyObject *capsule = PyCapsule_New(prepared, prepared_name, free_prepared);
    if (!capsule) {
        PyMem_Free(prepared);
        return -1;
    }
    prepared->tensors = PyTuple_GetSlice(call->args[F_TENSORS], 1, c->count);
    prepared->folded = Py_NewRef(call->args[F_FOLDED]);
    call->made[OUTPUT] = capsule;
    return prepared->tensors ? 0 : -1;
}

OSW_CHAIN_ENTRY(prepare_chain, true, .name = "conv_chain", .arguments = F_COUNT,
                OSW_STEPS(osw_chain_describe, prepare), .result = OUTPUT, .results = 1)

/* Whether the folded weights are those of the kernels in use, and the vectors have the same bits.
 */
static bool still_holds(const osw_prepared_chain *prepared)
{
    bool same = osw_chain_is_folded(prepared->weights, (int)osw_isa_current());
    for (int i = 0; same && i < prepared->vectors; i++) {
        const osw_folded_vector *v = &prepared->vector[i];
        same = memcmp(v->values, v->copy, v->bytes) == 0;
    }
    return same;
}

OSW_ENTRY(run_prepared_chain)
{
    const osw_prepared_chain *prepared = nargs == 2 && PyCapsule_CheckExact(args[0])
                                             ? PyCapsule_GetPointer(args[0], prepared_name)
                                             : NULL;
    if (!prepared)
        return PyErr_Format(PyExc_TypeError,
                            "run_prepared_chain: expected a prepared chain and a tensor");
    osw_tensor x, y;
    if (!osw_tensor_plain(args[1], &x) || osw_dtype_of(&x) != OSW_F32 ||
        !osw_has_size(&x, 4, prepared->size) || !osw_chain_is_image(&x) || !still_holds(prepared))
        return Py_NewRef(Py_NotImplemented);
    PyObject *output =
        osw_tensor_new(args[1], OSW_SAME_DTYPE, "conv_chain", 4, prepared->out_size, true, &y);
    if (!output)
        return NULL;
    osw_chain chain = prepared->chain;
    chain.stages[0].input = (const float *)(const void *)x.data;
    chain.stages[chain.count - 1].normal = (float *)(void *)y.data;
    osw_chain_choose_folded(&chain, false, osw_chain_calls);
    OSW_RUN("conv_chain", true, osw_chain_folded_forward(&chain, prepared->weights));
    return output;
}

PyMethodDef osw_chain_folded_methods[] = {
    OSW_ENTRY_LINE(
        plain_chain_folded,
        "plain_chain_folded(options, tensors, folded) -> (output, folded), or NotImplemented"),
    OSW_ENTRY_LINE(chain_folded_fits,
                   "chain_folded_fits(options, tensors, folded) -> True if plain_chain_folded "
                   "supports these but for the input's memory format, or NotImplemented"),
    OSW_ENTRY_LINE(prepare_chain, "prepare_chain(options, tensors, folded) -> what "
                                  "run_prepared_chain needs, or NotImplemented"),
    OSW_ENTRY_LINE(run_prepared_chain,
                   "run_prepared_chain(prepared, input) -> output, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
