/* SPDX-License-Identifier: MIT */
/* draw_mask(generator, keep, count, mask): which elements are kept, by the generator's next
 * numbers. apply_mask(input, mask, scale, output): the kept ones times scale, the others times
 * zero. */
#include "binding/binding.h"
#include "binding/tensor_arg.h"
#include "core/parallel.h"
#include "dropout/dropout.h"

#include <string.h>

enum { CODE_FLOAT = 2, CODE_BFLOAT = 4 };

/* What torch.Generator.get_state() holds of a CPU generator: the layout of old releases, which
 * torch keeps for checkpoints; what follows it (normal numbers drawn ahead) stays as it is. */
typedef struct osw_generator_state {
    uint64_t seed;
    int32_t left; /* words of the round that are not used yet, and one */
    int32_t seeded;
    uint64_t next; /* first of them */
    uint64_t words[OSW_TWISTER_WORDS];
} osw_generator_state;

/* 0, or -1 with RuntimeError where the state is not one of a Mersenne Twister. */
static int read_state(const osw_tensor *t, osw_twister *twister)
{
    osw_generator_state state;
    const bool fits = t->itemsize == 1 && t->ndim == 1 && t->numel >= (int64_t)sizeof state &&
                      (t->stride[0] == 1);
    if (fits)
        memcpy(&state, t->data, sizeof state);
    if (!fits || state.left < 1 || state.left > OSW_TWISTER_WORDS ||
        (state.left > 1 && state.next + (uint64_t)state.left - 1 != OSW_TWISTER_WORDS)) {
        PyErr_SetString(PyExc_RuntimeError, "draw_mask: unknown kind of generator state");
        return -1;
    }
    for (int i = 0; i < OSW_TWISTER_WORDS; i++)
        twister->words[i] = (uint32_t)state.words[i];
    twister->next = OSW_TWISTER_WORDS + 1 - state.left;
    return 0;
}

static void write_state(const osw_twister *twister, osw_tensor *t)
{
    osw_generator_state state;
    memcpy(&state, t->data, sizeof state);
    for (int i = 0; i < OSW_TWISTER_WORDS; i++)
        state.words[i] = twister->words[i];
    state.left = OSW_TWISTER_WORDS + 1 - twister->next;
    state.next = (uint64_t)twister->next;
    memcpy(t->data, &state, sizeof state);
}

static bool is_mask(const osw_tensor *mask, int64_t count)
{
    return mask->itemsize == 1 && mask->ndim == 1 && mask->numel == (count + 7) / 8 &&
           (mask->numel <= 1 || mask->stride[0] == 1);
}

/* Draw by the state of the generator, a uint8 tensor, and change that. */
static int draw(PyObject *state, double keep, int64_t count, PyObject *object)
{
    osw_tensor state_tensor, mask;
    osw_twister twister;
    if (osw_tensor_arg(object, "draw_mask", &mask) != 0 ||
        osw_tensor_arg(state, "draw_mask", &state_tensor) != 0)
        return -1;
    if (count < 0 || !is_mask(&mask, count)) {
        PyErr_Format(PyExc_RuntimeError, "draw_mask: a mask of %lld bytes does not fit %lld bits",
                     (long long)mask.numel, (long long)count);
        return -1;
    }
    if (read_state(&state_tensor, &twister) != 0)
        return -1;
    /* v * 2^-53 < keep, where a number of 53 bits and its product with 2^53 are exact. */
    const double limit = keep * 0x1p53;
    const uint64_t threshold = (uint64_t)limit + ((double)(uint64_t)limit < limit);
    osw_dropout.draw_bits(&twister, threshold, (uint8_t *)mask.data, count);
    write_state(&twister, &state_tensor);
    return 0;
}

/* From reading the state to writing it no other Python thread runs. */
static PyObject *draw_mask(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 4) {
        PyErr_Format(PyExc_TypeError, "draw_mask: expected 4 arguments, got %zd", nargs);
        return NULL;
    }
    const double keep = PyFloat_AsDouble(args[1]);
    const long long count = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (!(keep >= 0.0 && keep <= 1.0)) {
        PyErr_Format(PyExc_ValueError, "draw_mask: expected a probability, got %R", args[1]);
        return NULL;
    }
    PyObject *state = PyObject_CallMethod(args[0], "get_state", NULL);
    if (!state)
        return NULL;
    PyObject *done = NULL;
    if (draw(state, keep, count, args[3]) == 0)
        done = PyObject_CallMethod(args[0], "set_state", "O", state);
    Py_DECREF(state);
    Py_XDECREF(done);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

typedef struct osw_apply_job {
    const char *input;
    const uint8_t *mask;
    char *output;
    double scale;
    int64_t count;
    osw_mask_fn *apply;
} osw_apply_job;

/* Parts are counted in bytes of the mask. */
static void apply_part(int64_t begin, int64_t end, void *context)
{
    const osw_apply_job *job = context;
    const int64_t last = 8 * end < job->count ? 8 * end : job->count;
    job->apply(job->input, job->mask, job->scale, job->output, 8 * begin, last);
}

static osw_mask_fn *kernel_for(const osw_tensor *t)
{
    const bool brain = t->dtype.code == CODE_BFLOAT;
    if (!brain && t->dtype.code != CODE_FLOAT)
        return NULL;
    switch (t->itemsize) {
    case 2:
        return brain ? osw_dropout.apply_bf16 : osw_dropout.apply_f16;
    case 4:
        return osw_dropout.apply_f32;
    case 8:
        return osw_dropout.apply_f64;
    default:
        return NULL;
    }
}

/* Without gaps, in any order of the dimensions. */
static bool is_dense(const osw_tensor *t)
{
    int64_t reach = 1;
    for (int i = 0; i < t->ndim; i++)
        reach += (t->size[i] - 1) * t->stride[i];
    return t->numel == 0 || (reach == t->numel && osw_no_overlap(t));
}

static bool same_places(const osw_tensor *a, const osw_tensor *b)
{
    bool same = a->ndim == b->ndim && osw_same_dtype(a, b);
    for (int i = 0; same && i < a->ndim; i++)
        same = a->size[i] == b->size[i] && (a->size[i] <= 1 || a->stride[i] == b->stride[i]);
    return same;
}

static PyObject *apply_mask(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_tensor input, mask, output;
    if (nargs != 4) {
        PyErr_Format(PyExc_TypeError, "apply_mask: expected 4 arguments, got %zd", nargs);
        return NULL;
    }
    if (osw_tensor_arg(args[0], "apply_mask", &input) != 0 ||
        osw_tensor_arg(args[1], "apply_mask", &mask) != 0 ||
        osw_tensor_arg(args[3], "apply_mask", &output) != 0)
        return NULL;
    const double scale = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (!same_places(&input, &output) || !is_dense(&input) || !is_mask(&mask, input.numel)) {
        PyErr_SetString(PyExc_RuntimeError, "apply_mask: expected input and output that are dense "
                                            "and alike, and a mask with a bit an element");
        return NULL;
    }
    osw_apply_job job = {input.data,  (const uint8_t *)mask.data, output.data, scale,
                         input.numel, kernel_for(&input)};
    if (!job.apply) {
        PyErr_Format(PyExc_NotImplementedError,
                     "apply_mask: not implemented for dtype code %d, %d bit", (int)input.dtype.code,
                     (int)input.dtype.bits);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    osw_parallel_for(mask.numel, osw_grain(8 * 2 * input.itemsize), apply_part, &job);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyMethodDef osw_dropout_methods[] = {
    {"draw_mask", OSW_METHOD(draw_mask), METH_FASTCALL, "draw_mask(generator, keep, count, mask)"},
    {"apply_mask", OSW_METHOD(apply_mask), METH_FASTCALL, "apply_mask(input, mask, scale, output)"},
    {NULL, NULL, 0, NULL},
};
