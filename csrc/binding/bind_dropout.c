/* SPDX-License-Identifier: MIT */
/* draw_mask(generator, keep, count, mask): which elements are kept, by the generator's next
 * numbers. apply_mask(input, mask, scale, output): the kept ones times scale, the others times
 * zero. */
#include "binding/call.h"
#include "binding/profile.h"
#include "dropout/run.h"

#include <string.h>

/* What torch.Generator.get_state() holds of a CPU generator: the layout of old releases, which
 * torch keeps for checkpoints; what follows it (normal numbers drawn ahead) stays as it is. */
typedef struct osw_generator_state {
    uint64_t seed;
    int32_t left; /* words of the round that are not used yet, and one */
    int32_t seeded;
    uint64_t next; /* first of them */
    uint64_t words[OSW_TWISTER_WORDS];
} osw_generator_state;

static bool holds_state(const osw_tensor *t)
{
    return t->itemsize == 1 && t->ndim == 1 && t->stride[0] == 1 &&
           t->numel >= (int64_t)sizeof(osw_generator_state);
}

/* 0, or -1 with RuntimeError if the state is not one of a Mersenne Twister. */
static int read_state(const osw_tensor *t, osw_twister *twister)
{
    osw_generator_state state;
    const bool fits = holds_state(t);
    if (fits)
        memcpy(&state, t->data, sizeof state);
    if (!fits || state.left < 1 || state.left > OSW_TWISTER_WORDS ||
        (state.left > 1 && state.next + (uint64_t)state.left - 1 != OSW_TWISTER_WORDS))
        return osw_fail("draw_mask", "unknown kind of generator state");
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

/* What one drawing reads and writes. */
typedef struct osw_drawing {
    PyObject *generator, *mask_object;
    PyObject *state; /* owned: what the generator's get_state() returned last */
    osw_tensor state_tensor, mask;
    uint64_t threshold;
    int64_t count;
} osw_drawing;

/* Ask the generator for its state, and describe it and the mask: get_state() can be any code. */
static int ask_state(osw_drawing *drawing)
{
    Py_XDECREF(drawing->state);
    drawing->state = PyObject_CallMethod(drawing->generator, "get_state", NULL);
    if (!drawing->state ||
        osw_tensor_arg(drawing->state, "draw_mask", &drawing->state_tensor) != 0 ||
        osw_tensor_arg(drawing->mask_object, "draw_mask", &drawing->mask) != 0)
        return -1;
    if (is_mask(&drawing->mask, drawing->count))
        return 0;
    return osw_fail("draw_mask", "a mask of %lld bytes does not fit %lld bits",
                    (long long)drawing->mask.numel, (long long)drawing->count);
}

/* Draw from the state, and return whether the generator still has it: 1 if so, 0 if other code
 * else drew meanwhile, -1 with an exception. The state behind the draw goes to `twister`. */
static int draw_once(osw_drawing *drawing, bool keep_lock, osw_twister *twister)
{
    if (read_state(&drawing->state_tensor, twister) != 0)
        return -1;
    osw_draw_fn *kernel = osw_dropout.draw;
    uint8_t *mask = (uint8_t *)drawing->mask.data;
    PyThreadState *thread = keep_lock ? NULL : PyEval_SaveThread();
    osw_dropout_draw(kernel, twister, drawing->threshold, mask, drawing->count);
    if (thread)
        PyEval_RestoreThread(thread);
    PyObject *before = drawing->state;
    const osw_tensor old = drawing->state_tensor;
    Py_INCREF(before);
    const int asked = ask_state(drawing);
    const osw_tensor *now = &drawing->state_tensor;
    const bool same = asked == 0 && now->numel == old.numel &&
                      memcmp(now->data, old.data, (size_t)old.numel) == 0;
    Py_DECREF(before);
    return asked != 0 ? -1 : same;
}

/* Threads of Python are kept out by its lock, which large draws let go of at first. A thread that
 * is inside torch without that lock holds the generator's own one, for which get_state() waits: so
 * the state is read again behind the draw, and the draw done again if it differs. */
static int draw(osw_drawing *drawing)
{
    enum { WITHOUT_LOCK = 2, MOST = 100, LARGE = 1 << 16 };
    osw_twister twister;
    int drawn = ask_state(drawing) == 0 ? 0 : -1;
    for (int i = 0; i < MOST && drawn == 0; i++)
        drawn = draw_once(drawing, i >= WITHOUT_LOCK || drawing->count < LARGE, &twister);
    if (drawn < 0)
        return -1;
    if (drawn == 0 && !holds_state(&drawing->state_tensor))
        return osw_fail("draw_mask", "the kind of generator state changes");
    write_state(&twister, &drawing->state_tensor);
    PyObject *done = PyObject_CallMethod(drawing->generator, "set_state", "O", drawing->state);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

OSW_ENTRY(draw_mask)
{
    osw_drawing drawing = {.generator = NULL};
    double keep;
    if (!osw_expect("draw_mask", nargs, 4) || osw_float_arg(args[1], &keep) != 0 ||
        osw_int_arg("draw_mask", "count", args[2], 0, INT64_MAX - 7, &drawing.count) != 0)
        return NULL;
    if (!(keep >= 0.0 && keep <= 1.0))
        return PyErr_Format(PyExc_ValueError, "draw_mask: expected a probability, got %R", args[1]);
    /* v * 2^-53 < keep, where a number of 53 bits and its product with 2^53 are exact. */
    const double limit = keep * 0x1p53;
    drawing.threshold = (uint64_t)limit + ((double)(uint64_t)limit < limit);
    drawing.generator = args[0];
    drawing.mask_object = args[3];
    PyObject *range = osw_profile_begin("dropout_mask");
    const int drawn = draw(&drawing);
    osw_profile_end(range);
    Py_XDECREF(drawing.state);
    if (drawn != 0)
        return NULL;
    Py_RETURN_NONE;
}

/* NULL if there is none for the dtype. */
static osw_mask_fn *kernel_for(const osw_tensor *t)
{
    const osw_dtype dtype = osw_dtype_of(t);
    return dtype == OSW_DTYPE_COUNT ? NULL : osw_dropout.apply[dtype];
}

/* Without gaps, in any order of the dimensions. */
static bool is_dense(const osw_tensor *t)
{
    uint64_t reach = 1; /* wraps for sizes that the second condition refuses */
    for (int i = 0; i < t->ndim; i++)
        reach += (uint64_t)(t->size[i] - 1) * (uint64_t)t->stride[i];
    return t->numel == 0 || (reach == (uint64_t)t->numel && osw_no_overlap(t));
}

static bool same_places(const osw_tensor *a, const osw_tensor *b)
{
    bool same = osw_same_sizes(a, b, -1) && osw_same_dtype(a, b);
    for (int i = 0; same && i < a->ndim; i++)
        same = a->size[i] <= 1 || a->stride[i] == b->stride[i];
    return same;
}

OSW_ENTRY(apply_mask)
{
    osw_tensor input, mask, output;
    double scale;
    if (!osw_expect("apply_mask", nargs, 4) || osw_float_arg(args[2], &scale) != 0 ||
        osw_tensor_arg(args[0], "apply_mask", &input) != 0 ||
        osw_tensor_arg(args[1], "apply_mask", &mask) != 0 ||
        osw_tensor_arg(args[3], "apply_mask", &output) != 0)
        return NULL;
    if (!same_places(&input, &output) || !is_dense(&input) || !is_mask(&mask, input.numel)) {
        osw_fail("apply_mask",
                 "expected input and output that are dense and alike, and a mask with "
                 "a bit per element");
        return NULL;
    }
    const osw_dropout_job job = {
        .input = input.data,
        .mask = (const uint8_t *)mask.data,
        .output = output.data,
        .scale = scale,
        .count = input.numel,
        .element_bytes = input.itemsize,
        .apply = kernel_for(&input),
    };
    if (!job.apply) {
        osw_fail_dtype("apply_mask", &input);
        return NULL;
    }
    OSW_RUN("dropout", true, osw_dropout_apply(&job));
    Py_RETURN_NONE;
}

PyMethodDef osw_dropout_methods[] = {
    OSW_ENTRY_LINE(draw_mask, "draw_mask(generator, keep, count, mask)"),
    OSW_ENTRY_LINE(apply_mask, "apply_mask(input, mask, scale, output)"),
    {NULL, NULL, 0, NULL},
};
