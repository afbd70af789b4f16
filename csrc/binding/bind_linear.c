/* SPDX-License-Identifier: MIT */
/* grouped_linear(input, weight, bias, sections, output) -> output and grouped_linear_backward(
 * grad_output, input, weight, sections, grad_input, grad_weight, grad_bias) -> the three. What is
 * written is a tensor of the caller, or True for a new one; a gradient that is None is not wanted.
 * sections: outputs of every group, or None where all have as many. Both return NotImplemented
 * where the memory of a tensor that is read does not fit: the caller makes it contiguous and calls
 * again. plain_grouped_linear and plain_grouped_linear_backward take the same arguments and return
 * NotImplemented for everything that the caller should look at more closely: what would be an
 * error, calls that torch's dispatcher has to see, tiers on which the library may be faster.
 * linear_variants(): the kernels and how often each was called. */
#include "binding/binding.h"
#include "binding/linear_run.h"
#include "binding/tensor_arg.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "binding/variant_counts.h"
#include "core/isa.h"

#include <string.h>

enum { CODE_FLOAT = 2, CODE_BFLOAT = 4 };

typedef enum osw_role {
    INPUT,
    WEIGHT,
    BIAS,
    OUTPUT,
    GRAD_OUTPUT,
    GRAD_INPUT,
    GRAD_WEIGHT,
    GRAD_BIAS,
    ROLE_COUNT
} osw_role;

static const char *const role_names[] = {"input",       "weight",     "bias",        "output",
                                         "grad_output", "grad_input", "grad_weight", "grad_bias"};

typedef struct osw_linear_call {
    const char *name;
    bool plain;                    /* every tensor must be one that osw_tensor_plain accepts */
    PyObject *objects[ROLE_COUNT]; /* new references, or NULL: not given */
    osw_tensor tensors[ROLE_COUNT];
    bool listed; /* outputs by group are given */
    Py_ssize_t listed_groups;
    int64_t *first; /* owned */
    osw_linear_dtype dtype;
    osw_linear linear;
} osw_linear_call;

static bool is_written(osw_role role)
{
    return role == OUTPUT || role > GRAD_OUTPUT;
}

static bool is_new(const osw_linear_call *call, osw_role role)
{
    return call->objects[role] == Py_True;
}

/* A tensor; None where the role may be left out, True where it is to be made. */
static int parse(osw_linear_call *call, osw_role role, PyObject *object)
{
    if (object == Py_None && (role == BIAS || role > GRAD_OUTPUT))
        return 0;
    Py_INCREF(object);
    call->objects[role] = object;
    if (is_written(role) && object == Py_True)
        return 0;
    if (!call->plain)
        return osw_tensor_arg(object, call->name, &call->tensors[role]);
    if (osw_tensor_plain(object, &call->tensors[role]))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s: %s is no plain tensor", call->name, role_names[role]);
    return -1;
}

static int fail(const osw_linear_call *call, osw_role role, const char *problem, long long got,
                long long wanted)
{
    PyErr_Format(PyExc_RuntimeError, "%s: %s %s, got %lld, expected %lld", call->name,
                 role_names[role], problem, got, wanted);
    return -1;
}

static bool find_dtype(const osw_dl_dtype *dtype, osw_linear_dtype *found)
{
    static const osw_dl_dtype dtypes[] = {[OSW_LINEAR_f32] = {CODE_FLOAT, 32, 1},
                                          [OSW_LINEAR_f64] = {CODE_FLOAT, 64, 1},
                                          [OSW_LINEAR_bf16] = {CODE_BFLOAT, 16, 1},
                                          [OSW_LINEAR_f16] = {CODE_FLOAT, 16, 1}};
    for (int i = 0; i < (int)(sizeof dtypes / sizeof *dtypes); i++) {
        *found = (osw_linear_dtype)i;
        if (dtype->code == dtypes[i].code && dtype->bits == dtypes[i].bits &&
            dtype->lanes == dtypes[i].lanes)
            return true;
    }
    return false;
}

static int check_dtypes(osw_linear_call *call)
{
    const osw_dl_dtype *dtype = &call->tensors[WEIGHT].dtype;
    if (!find_dtype(dtype, &call->dtype))
        return fail(call, WEIGHT, "must be float32, float64, bfloat16 or float16, bits",
                    dtype->bits, 32);
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->objects[i] && !is_new(call, (osw_role)i) &&
            !osw_same_dtype(&call->tensors[i], &call->tensors[WEIGHT]))
            return fail(call, (osw_role)i, "has another dtype than weight",
                        call->tensors[i].dtype.bits, dtype->bits);
    return 0;
}

/* The numbers of a call: the outputs of every group, behind a place for the first prefix sum. */
static int parse_sections(osw_linear_call *call, PyObject *sections)
{
    call->listed = sections != Py_None;
    if (!call->listed)
        return 0;
    call->listed_groups = PyTuple_Check(sections) ? PyTuple_Size(sections) : -1;
    if (call->listed_groups < 0) {
        PyErr_Format(PyExc_TypeError, "%s: sections must be None or a tuple of ints, got %R",
                     call->name, sections);
        return -1;
    }
    call->first = PyMem_Calloc((size_t)call->listed_groups + 1, sizeof *call->first);
    if (!call->first) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t g = 0; g < call->listed_groups; g++)
        if (osw_int_arg(call->name, "sections", PyTuple_GetItem(sections, g), 0, INT64_MAX,
                        &call->first[g + 1]) != 0)
            return -1;
    return 0;
}

/* first[g + 1] = first[g] + outputs of group g, by the sections, or in equal shares of `total`. */
static int fill_first(osw_linear_call *call, int64_t total)
{
    const int64_t groups = call->linear.groups;
    if (!call->listed) {
        call->first = PyMem_Malloc((size_t)(groups + 1) * sizeof *call->first);
        if (!call->first) {
            PyErr_NoMemory();
            return -1;
        }
        for (int64_t g = 0; g <= groups; g++)
            call->first[g] = g * (total / groups);
        return 0;
    }
    int64_t *first = call->first;
    for (int64_t g = 0; g < groups; g++) {
        if (first[g + 1] > total - first[g])
            return fail(call, WEIGHT, "has too few rows for the sections, from group", total, g);
        first[g + 1] += first[g];
    }
    return first[groups] == total
               ? 0
               : fail(call, WEIGHT, "has more rows than the sections", total, first[groups]);
}

/* t is (N, *rows), or rows where N is negative; `rows` are the weight's sizes without the last. */
static bool fits_weight(const osw_tensor *t, const osw_tensor *weight, int64_t rows)
{
    const int lead = rows >= 0;
    bool fits = t->ndim == weight->ndim - 1 + lead && (!lead || t->size[0] == rows);
    for (int i = 0; fits && i < weight->ndim - 1; i++)
        fits = t->size[lead + i] == weight->size[i];
    return fits;
}

static bool fits(const osw_linear_call *call, osw_role role)
{
    const osw_tensor *t = &call->tensors[role], *x = &call->tensors[INPUT];
    const osw_tensor *w = &call->tensors[WEIGHT];
    switch (role) {
    case INPUT:
    case GRAD_INPUT:
        return t->ndim == 3 && memcmp(t->size, x->size, 3 * sizeof *t->size) == 0;
    case BIAS:
    case GRAD_BIAS:
        return fits_weight(t, w, -1);
    case OUTPUT:
    case GRAD_OUTPUT:
        return fits_weight(t, w, x->size[0]);
    default:
        return t->ndim == w->ndim && t->numel == w->numel &&
               t->size[t->ndim - 1] == call->linear.in_features;
    }
}

/* Everything against the input and the weight, which is (G, out, in), or (T, in) with sections. */
static int check_sizes(const osw_linear_call *call)
{
    const osw_tensor *w = &call->tensors[WEIGHT];
    if (call->listed ? w->ndim != 2 : w->ndim != 3 || w->size[0] != call->linear.groups)
        return fail(call, WEIGHT, "does not fit the groups", w->size[0], call->linear.groups);
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->objects[i] && !is_new(call, (osw_role)i) && !fits(call, (osw_role)i))
            return fail(call, (osw_role)i, "does not fit input and weight, in elements",
                        call->tensors[i].numel, w->numel);
    return 0;
}

/* Every tensor that is read can be read in place. */
static bool is_readable(const osw_linear_call *call)
{
    const osw_tensor *t = call->tensors;
    return osw_is_dense(&t[INPUT], 2) && osw_is_dense(&t[WEIGHT], 0) &&
           (!call->objects[BIAS] || osw_is_dense(&t[BIAS], 0)) &&
           (!call->objects[GRAD_OUTPUT] || osw_is_dense(&t[GRAD_OUTPUT], 1));
}

/* Make what is to be made: gradients with the sizes of what they belong to, the output and the
 * gradient of the bias after the weight without its last dimension. */
static int make_outputs(osw_linear_call *call)
{
    const osw_tensor *weight = &call->tensors[WEIGHT], *input = &call->tensors[INPUT];
    for (int i = 0; i < ROLE_COUNT; i++) {
        if (!is_new(call, (osw_role)i))
            continue;
        const osw_tensor *like = i == GRAD_INPUT ? input : weight;
        int64_t size[OSW_MAX_DIMS + 1];
        int ndim = 0;
        if (i == OUTPUT)
            size[ndim++] = input->size[0];
        for (int d = 0; d < like->ndim - (i == OUTPUT || i == GRAD_BIAS); d++)
            size[ndim++] = like->size[d];
        PyObject *made = osw_tensor_new(call->objects[INPUT], OSW_SAME_DTYPE, call->name, ndim,
                                        size, false, &call->tensors[i]);
        if (!made)
            return -1;
        Py_DECREF(call->objects[i]);
        call->objects[i] = made;
    }
    return 0;
}

/* Where all tensors lie. */
static void describe(osw_linear_call *call)
{
    const osw_tensor *t = call->tensors;
    osw_linear *l = &call->linear;
    l->input = (osw_linear_rows){t[INPUT].data, t[INPUT].stride[0], t[INPUT].stride[1]};
    l->weight = t[WEIGHT].data;
    l->bias = t[BIAS].data;
    l->output = (osw_linear_rows){t[OUTPUT].data, l->first[l->groups], 0};
    l->grad_output = (osw_linear_rows){t[GRAD_OUTPUT].data, t[GRAD_OUTPUT].stride[0], 0};
    l->grad_input =
        (osw_linear_rows){t[GRAD_INPUT].data, l->groups * l->in_features, l->in_features};
    l->grad_weight = t[GRAD_WEIGHT].data;
    l->grad_bias = t[GRAD_BIAS].data;
}

/* What was written: the output, or the three gradients. */
static PyObject *results(const osw_linear_call *call)
{
    if (call->objects[OUTPUT]) {
        Py_INCREF(call->objects[OUTPUT]);
        return call->objects[OUTPUT];
    }
    PyObject *tuple = PyTuple_New(3);
    for (int i = 0; tuple && i < 3; i++) {
        PyObject *object = call->objects[GRAD_INPUT + i];
        object = object ? object : Py_None;
        Py_INCREF(object);
        PyTuple_SetItem(tuple, i, object);
    }
    return tuple;
}

static PyObject *execute_checked(osw_linear_call *call)
{
    if (!is_readable(call))
        Py_RETURN_NOTIMPLEMENTED;
    if (make_outputs(call) != 0 ||
        osw_tensors_unchanged(call->name, call->tensors, ROLE_COUNT) != 0)
        return NULL;
    describe(call);
    return osw_linear_run(call->name, &call->linear, call->dtype) == 0 ? results(call) : NULL;
}

/* Sizes from input and weight, then everything against them. */
static PyObject *prepare(osw_linear_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT], *w = &call->tensors[WEIGHT];
    osw_linear *l = &call->linear;
    if (x->ndim != 3 || x->numel == 0 || w->numel == 0) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s: expected an input (N, groups, in_features) and a weight with elements",
                     call->name);
        return NULL;
    }
    l->rows = x->size[0], l->groups = x->size[1], l->in_features = x->size[2];
    if (call->listed && call->listed_groups != l->groups) {
        PyErr_Format(PyExc_TypeError,
                     "%s: sections must be None or a tuple of %lld ints, got %zd of them",
                     call->name, (long long)l->groups, call->listed_groups);
        return NULL;
    }
    if (check_dtypes(call) != 0 || check_sizes(call) != 0 ||
        fill_first(call, w->numel / l->in_features) != 0)
        return NULL;
    l->first = call->first;
    return execute_checked(call);
}

/* The sections, which are numbers, before the tensors. */
static int parse_all(osw_linear_call *call, const osw_role *roles, Py_ssize_t count,
                     PyObject *const *args)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (roles[i] == ROLE_COUNT && parse_sections(call, args[i]) != 0)
            return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (roles[i] != ROLE_COUNT && parse(call, roles[i], args[i]) != 0)
            return -1;
    for (int i = 0; i < ROLE_COUNT; i++) {
        const bool given = call->objects[i] && !is_new(call, (osw_role)i);
        if (is_written((osw_role)i) && given && !osw_is_dense(&call->tensors[i], 0)) {
            PyErr_Format(PyExc_RuntimeError, "%s: %s must be contiguous", call->name,
                         role_names[i]);
            return -1;
        }
    }
    return 0;
}

/* roles: of the arguments; ROLE_COUNT stands for the sections. */
static PyObject *run_call(const char *name, bool plain, const osw_role *roles, Py_ssize_t count,
                          PyObject *const *args, Py_ssize_t nargs)
{
    if (!osw_expect(name, nargs, count))
        return NULL;
    osw_linear_call call = {.name = name, .plain = plain};
    PyObject *result = NULL;
    if (parse_all(&call, roles, count, args) == 0)
        result = prepare(&call);
    PyMem_Free(call.first);
    for (int i = 0; i < ROLE_COUNT; i++)
        Py_XDECREF(call.objects[i]);
    return result;
}

static PyObject *run_plain(const char *name, const osw_role *roles, Py_ssize_t count,
                           PyObject *const *args, Py_ssize_t nargs)
{
    if (!osw_linear_leads(osw_isa_current()) || !osw_plain_eager(true))
        Py_RETURN_NOTIMPLEMENTED;
    return osw_or_declined(run_call(name, true, roles, count, args, nargs));
}

static const osw_role forward_roles[] = {INPUT, WEIGHT, BIAS, ROLE_COUNT, OUTPUT};
static const osw_role backward_roles[] = {GRAD_OUTPUT, INPUT,       WEIGHT,   ROLE_COUNT,
                                          GRAD_INPUT,  GRAD_WEIGHT, GRAD_BIAS};

#define COUNT(roles) (Py_ssize_t)(sizeof(roles) / sizeof *(roles))

static PyObject *grouped_linear(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    return run_call("grouped_linear", false, forward_roles, COUNT(forward_roles), args, nargs);
}

static PyObject *plain_grouped_linear(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    return run_plain("grouped_linear", forward_roles, COUNT(forward_roles), args, nargs);
}

static PyObject *grouped_linear_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    return run_call("grouped_linear_backward", false, backward_roles, COUNT(backward_roles), args,
                    nargs);
}

static PyObject *plain_grouped_linear_backward(PyObject *module, PyObject *const *args,
                                               Py_ssize_t nargs)
{
    (void)module;
    return run_plain("grouped_linear_backward", backward_roles, COUNT(backward_roles), args, nargs);
}

#define NAME(operation, dtype) #operation "_" #dtype,

static PyObject *linear_variants(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {OSW_LINEAR_VARIANTS(NAME)};
    (void)module, (void)unused;
    return osw_variant_counts(OSW_LINEAR_COUNT, names, osw_linear_calls);
}

static PyObject *linear_leads(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyBool_FromLong(osw_linear_leads(osw_isa_current()));
}

PyMethodDef osw_linear_methods[] = {
    {"grouped_linear", OSW_METHOD(grouped_linear), METH_FASTCALL,
     "grouped_linear(input, weight, bias, sections, output)"},
    {"grouped_linear_backward", OSW_METHOD(grouped_linear_backward), METH_FASTCALL,
     "grouped_linear_backward(grad_output, input, weight, sections, grad_input, grad_weight, "
     "grad_bias)"},
    {"plain_grouped_linear", OSW_METHOD(plain_grouped_linear), METH_FASTCALL,
     "As grouped_linear, or NotImplemented where the caller has to look more closely."},
    {"plain_grouped_linear_backward", OSW_METHOD(plain_grouped_linear_backward), METH_FASTCALL,
     "As grouped_linear_backward, or NotImplemented where the caller has to look more closely."},
    {"linear_leads", linear_leads, METH_NOARGS,
     "Whether products that torch computes as well go to the kernels of the tier in use."},
    {"linear_variants", linear_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
