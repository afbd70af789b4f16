/* SPDX-License-Identifier: MIT */
/* new_shuffled(inputs, groups, sections, wanted, channels_last): cat, shuffle and split into new
 * tensors. channels_variants(): the kernels and how often each was called. */
#include "binding/call.h"
#include "channels/plan.h"

static const char NAME[] = "shuffle_channels";

static uint64_t calls[OSW_CHANNELS_COUNT];

/* How the channels of every tensor can be walked. */
typedef enum osw_form { FORM_PIXELS, FORM_PLANES, FORM_COUNT } osw_form;

typedef struct osw_shuffling {
    osw_tensor *inputs; /* the first has the batch, plane and dtype of all */
    Py_ssize_t input_count;
    osw_tensor *outputs; /* data NULL for one that is not wanted */
    Py_ssize_t output_count;
    osw_segment *segments; /* of inputs, then of outputs */
    int64_t groups;
    int64_t channels;
} osw_shuffling;

static int64_t plane_size(const osw_tensor *t)
{
    int64_t size = 1;
    for (int i = 2; i < t->ndim; i++)
        size *= t->size[i];
    return size;
}

static bool is_width(int64_t bytes)
{
    return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
}

static int parse_input(osw_shuffling *s, Py_ssize_t index, PyObject *object)
{
    osw_tensor *t = &s->inputs[index];
    const osw_tensor *model = s->inputs;
    if (osw_tensor_arg(object, NAME, t) != 0)
        return -1;
    if (t->ndim < 2)
        return osw_fail(NAME, "expected at least 2 dimensions, got %d", t->ndim);
    if (!osw_same_sizes(t, model, 1) || !osw_same_dtype(t, model))
        return osw_fail(NAME,
                        "input %zd of size %s, %d bit, does not fit input 0 of size %s, %d bit",
                        index, osw_print_sizes(t->ndim, t->size).text, (int)t->dtype.bits,
                        osw_print_sizes(model->ndim, model->size).text, (int)model->dtype.bits);
    if (!is_width(t->itemsize)) {
        PyErr_Format(PyExc_TypeError, "%s: elements of %d bits are not supported", NAME,
                     (int)t->dtype.bits);
        return -1;
    }
    if (__builtin_add_overflow(s->channels, t->size[1], &s->channels))
        return osw_fail(NAME, "inputs have more than 2^63 channels");
    return 0;
}

/* The numbers of a call: the channels of every output, none negative, into its size. */
static int parse_sections(osw_shuffling *s, PyObject *sections)
{
    for (Py_ssize_t i = 0; i < s->output_count; i++) {
        PyObject *item = PyTuple_GetItem(sections, i);
        if (!PyLong_Check(item)) {
            PyErr_Format(PyExc_TypeError, "%s: section %zd must be an int, got %R", NAME, i, item);
            return -1;
        }
        if (osw_int_arg(NAME, "channels of a section", item, 0, INT64_MAX,
                        &s->outputs[i].size[1]) != 0)
            return -1;
    }
    return 0;
}

static int check_channels(const osw_shuffling *s)
{
    int64_t channels = 0;
    bool fits = true;
    for (Py_ssize_t i = 0; fits && i < s->output_count; i++)
        fits = !__builtin_add_overflow(channels, s->outputs[i].size[1], &channels);
    if (!fits || channels != s->channels)
        return osw_fail(NAME, "inputs have %lld channels, outputs %s%lld", (long long)s->channels,
                        fits ? "" : "2^64 more than ", (long long)channels);
    if (s->groups <= 0 || s->channels % s->groups)
        return osw_fail(NAME, "%lld channels cannot be split into %lld groups",
                        (long long)s->channels, (long long)s->groups);
    return 0;
}

/* Describe `t` in the given form; false if its memory does not allow it. A tensor without memory,
 * as an output that is not wanted, constrains nothing. */
static bool fill_segment(const osw_tensor *t, osw_form form, osw_segment *segment)
{
    int64_t count, step;
    *segment = (osw_segment){.channels = t->size[1]};
    if (!t->data)
        return true;
    if (!osw_flatten(t, 2, &count, &step))
        return false;
    const bool neighbours = t->size[1] <= 1 || t->stride[1] == 1;
    if (form == FORM_PIXELS ? !neighbours : count > 1 && step != 1)
        return false;
    if (count == 1)
        step = t->size[0] > 1 ? t->stride[0] : 0;
    segment->base = t->data;
    segment->channel_step = (t->size[1] <= 1 ? 1 : t->stride[1]) * t->itemsize;
    segment->image_step = t->stride[0] * t->itemsize;
    segment->pixel_step = step * t->itemsize;
    return true;
}

/* Inputs and outputs lie one after another. */
static bool fill_segments(const osw_shuffling *s, osw_form form)
{
    for (Py_ssize_t i = 0; i < s->input_count + s->output_count; i++)
        if (!fill_segment(&s->inputs[i], form, &s->segments[i]))
            return false;
    return true;
}

static int execute(const osw_shuffling *s, osw_form form)
{
    const osw_tensor *t = s->inputs;
    const osw_shuffle shuffle = {
        .inputs = {s->segments, s->input_count},
        .outputs = {s->segments + s->input_count, s->output_count},
        .groups = s->groups,
        .channels = s->channels,
        .element_bytes = t->itemsize,
    };
    const int64_t plane = plane_size(t);
    void *scratch = osw_room(osw_plan_bytes(&shuffle));
    if (!scratch)
        return -1;
    osw_plan plan;
    if (form == FORM_PIXELS)
        osw_plan_pixels(&plan, &shuffle, t->size[0], plane, scratch);
    else
        osw_plan_planes(&plan, &shuffle, t->size[0], plane * t->itemsize, scratch);
    calls[plan.transpose_id] += plan.run_count > 0;
    calls[plan.move_id] += plan.move_count > 0;
    const int64_t bytes = t->size[0] * s->channels * plane * t->itemsize;
    const osw_running running = osw_run_begin("channel_shuffle", bytes > OSW_GRAIN_BYTES);
    osw_plan_execute(&plan);
    osw_run_end(running);
    PyMem_Free(scratch);
    return 0;
}

/* Pixels first: if both forms fit, whole pixels are the longer pieces. -1 without an exception if
 * an input fits neither form of the outputs. */
static int run(const osw_shuffling *s)
{
    const osw_tensor *t = s->inputs;
    if (s->channels == 0 || t->size[0] == 0 || plane_size(t) == 0)
        return 0;
    if (osw_tensors_unchanged(NAME, s->inputs, s->input_count) != 0)
        return -1;
    for (osw_form form = FORM_PIXELS; form < FORM_COUNT; form++)
        if (fill_segments(s, form))
            return execute(s, form);
    return -1;
}

/* A tuple of new tensors, one for every section that is wanted (None: all). */
static PyObject *make_outputs(osw_shuffling *s, PyObject *like, PyObject *wanted,
                              bool channels_last)
{
    PyObject *made = PyList_New(0);
    for (Py_ssize_t i = 0; made && i < s->output_count; i++) {
        osw_tensor *t = &s->outputs[i];
        const int64_t channels = t->size[1];
        const int makes = wanted == Py_None ? 1 : PyObject_IsTrue(PyTuple_GetItem(wanted, i));
        *t = *s->inputs;
        t->data = NULL;
        t->size[1] = channels;
        if (makes < 0)
            Py_CLEAR(made);
        if (makes <= 0)
            continue;
        PyObject *tensor =
            osw_tensor_new(like, OSW_SAME_DTYPE, NAME, t->ndim, t->size, channels_last, t);
        if (!tensor || PyList_Append(made, tensor) != 0)
            Py_CLEAR(made);
        Py_XDECREF(tensor);
    }
    PyObject *outputs = made ? PyList_AsTuple(made) : NULL;
    Py_XDECREF(made);
    return outputs;
}

/* Numbers first, then the inputs; every output without memory. */
static int parse(osw_shuffling *s, PyObject *inputs, PyObject *groups, PyObject *sections)
{
    if (osw_int_arg(NAME, "groups", groups, INT64_MIN, INT64_MAX, &s->groups) != 0 ||
        parse_sections(s, sections) != 0)
        return -1;
    for (Py_ssize_t i = 0; i < s->input_count; i++)
        if (parse_input(s, i, PyTuple_GetItem(inputs, i)) != 0)
            return -1;
    return check_channels(s);
}

static PyObject *shuffle(osw_shuffling *s, PyObject *const *args)
{
    const int channels_last = PyObject_IsTrue(args[4]);
    if (channels_last < 0 || parse(s, args[0], args[1], args[2]) != 0)
        return NULL;
    PyObject *outputs = make_outputs(s, PyTuple_GetItem(args[0], 0), args[3], channels_last);
    if (!outputs || run(s) == 0)
        return outputs;
    Py_DECREF(outputs);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

OSW_ENTRY(new_shuffled)
{
    if (nargs != 5 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[2]) ||
        PyTuple_Size(args[0]) == 0 ||
        (args[3] != Py_None &&
         (!PyTuple_Check(args[3]) || PyTuple_Size(args[3]) != PyTuple_Size(args[2])))) {
        PyErr_SetString(PyExc_TypeError,
                        "new_shuffled: expected (inputs, groups, sections, wanted, channels_last)");
        return NULL;
    }
    osw_shuffling s = {.input_count = PyTuple_Size(args[0]), .output_count = PyTuple_Size(args[2])};
    const size_t tensors = (size_t)(s.input_count + s.output_count);
    s.inputs = PyMem_Calloc(tensors, sizeof(osw_tensor) + sizeof(osw_segment));
    if (!s.inputs)
        return PyErr_NoMemory();
    s.outputs = s.inputs + s.input_count;
    s.segments = (osw_segment *)(s.inputs + tensors);
    PyObject *result = shuffle(&s, args);
    PyMem_Free(s.inputs);
    return result;
}

#define VARIANT_NAME(index, name) [index] = name,
OSW_ENTRY_COUNTS(channels_variants, calls, OSW_CHANNELS_VARIANTS(VARIANT_NAME))

PyMethodDef osw_channels_methods[] = {
    OSW_ENTRY_LINE(new_shuffled, "new_shuffled(inputs, groups, sections, wanted, channels_last) -> "
                                 "tuple of new tensors, or None if an input must be dense first"),
    OSW_ENTRY_COUNTS_LINE(channels_variants),
    {NULL, NULL, 0, NULL},
};
