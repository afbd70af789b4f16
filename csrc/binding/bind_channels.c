/* SPDX-License-Identifier: MIT */
/* new_shuffled(inputs, groups, sections, wanted, channels_last): cat, shuffle and split into new
 * tensors. channels_variants(): the kernels and how often each was called. */
#include "binding/call.h"
#include "channels/plan.h"

#include <string.h>

static uint64_t calls[OSW_CHANNELS_COUNT];

/* How the channels of every tensor can be walked. */
typedef enum osw_form { FORM_PIXELS, FORM_PLANES, FORM_COUNT } osw_form;

/* The roles are the inputs, of which the first has the batch, plane and dtype of all; then the
 * outputs. */
typedef struct osw_shuffling {
    Py_ssize_t inputs, outputs;
    osw_segment *segments; /* of all; of outputs the channels are known from the start */
    bool *wanted;          /* outputs */
    int64_t groups, channels;
    bool channels_last;
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

/* A flag, of any object that has a truth. */
static int read_flag(PyObject *object, bool *flag)
{
    const int truth = PyObject_IsTrue(object);
    *flag = truth > 0;
    return truth < 0 ? -1 : 0;
}

/* The channels of an output, not negative. */
static int read_section(const osw_call *call, Py_ssize_t i, PyObject *item, int64_t *channels)
{
    if (PyLong_Check(item))
        return osw_int_arg(call->name, "channels of a section", item, 0, INT64_MAX, channels);
    return osw_raise(PyExc_TypeError, "%s: section %zd must be an int, got %R", call->name, i,
                     item);
}

enum { A_INPUTS, A_GROUPS, A_SECTIONS, A_WANTED, A_LAST, A_COUNT };

static int read_numbers(osw_call *call)
{
    osw_shuffling *s = call->job;
    PyObject *sections = call->args[A_SECTIONS], *wanted = call->args[A_WANTED];
    const size_t segments = (size_t)(s->inputs + s->outputs) * sizeof *s->segments;
    s->segments = osw_call_room(call, segments + (size_t)s->outputs);
    if (!s->segments)
        return -1;
    s->wanted = (bool *)((char *)s->segments + segments);
    if (osw_int_arg(call->name, "groups", call->args[A_GROUPS], INT64_MIN, INT64_MAX, &s->groups) !=
            0 ||
        read_flag(call->args[A_LAST], &s->channels_last) != 0)
        return -1;
    for (Py_ssize_t i = 0; i < s->outputs; i++) {
        s->wanted[i] = true;
        if (read_section(call, i, PyTuple_GetItem(sections, i),
                         &s->segments[s->inputs + i].channels) != 0 ||
            (wanted != Py_None && read_flag(PyTuple_GetItem(wanted, i), &s->wanted[i]) != 0))
            return -1;
    }
    return 0;
}

static int read_input(osw_call *call, Py_ssize_t i, PyObject *object)
{
    osw_shuffling *s = call->job;
    const osw_tensor *t = &call->tensors[i], *model = call->tensors;
    if (osw_call_tensor(call, i, object) != 0)
        return -1;
    if (t->ndim < 2)
        return osw_fail(call->name, "expected at least 2 dimensions, got %d", t->ndim);
    if (!osw_same_sizes(t, model, 1) || !osw_same_dtype(t, model))
        return osw_fail(call->name,
                        "input %zd of size %s, %d bit, does not fit input 0 of size %s, %d bit", i,
                        osw_print_sizes(t->ndim, t->size).text, (int)t->dtype.bits,
                        osw_print_sizes(model->ndim, model->size).text, (int)model->dtype.bits);
    if (!is_width(t->itemsize))
        return osw_raise(PyExc_TypeError, "%s: elements of %d bits are not supported", call->name,
                         (int)t->dtype.bits);
    s->segments[i].channels = t->size[1];
    if (__builtin_add_overflow(s->channels, t->size[1], &s->channels))
        return osw_fail(call->name, "inputs have more than 2^63 channels");
    return 0;
}

static int read_inputs(osw_call *call)
{
    osw_shuffling *s = call->job;
    for (Py_ssize_t i = 0; i < s->inputs; i++)
        if (read_input(call, i, PyTuple_GetItem(call->args[A_INPUTS], i)) != 0)
            return -1;
    int64_t channels = 0;
    bool fits = true;
    for (Py_ssize_t i = 0; fits && i < s->outputs; i++)
        fits = !__builtin_add_overflow(channels, s->segments[s->inputs + i].channels, &channels);
    if (!fits || channels != s->channels)
        return osw_fail(call->name, "inputs have %lld channels, outputs %s%lld",
                        (long long)s->channels, fits ? "" : "2^64 more than ", (long long)channels);
    if (s->groups <= 0 || s->channels % s->groups)
        return osw_fail(call->name, "%lld channels cannot be split into %lld groups",
                        (long long)s->channels, (long long)s->groups);
    return 0;
}

static int make_outputs(osw_call *call)
{
    const osw_shuffling *s = call->job;
    const osw_tensor *t = call->tensors;
    int64_t size[OSW_MAX_DIMS];
    memcpy(size, t->size, sizeof size);
    for (Py_ssize_t i = s->inputs; i < s->inputs + s->outputs; i++) {
        size[1] = s->segments[i].channels;
        if (s->wanted[i - s->inputs] &&
            osw_call_make(call, i, 0, OSW_SAME_DTYPE, t->ndim, size, s->channels_last) != 0)
            return -1;
    }
    return 0;
}

/* Describe the tensor at `role` in the given form; false if its memory does not allow it. Without
 * memory, as an output that is not wanted, it constrains nothing. */
static bool fill_segment(const osw_call *call, Py_ssize_t role, osw_form form, osw_segment *segment)
{
    int64_t count, step;
    const osw_tensor *t = &call->tensors[role];
    *segment = (osw_segment){.channels = segment->channels};
    if (!call->objects[role] || !t->data)
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

static int execute(osw_call *call, osw_form form)
{
    const osw_shuffling *s = call->job;
    const osw_tensor *t = call->tensors;
    const osw_shuffle shuffle = {
        .inputs = {s->segments, s->inputs},
        .outputs = {s->segments + s->inputs, s->outputs},
        .groups = s->groups,
        .channels = s->channels,
        .element_bytes = t->itemsize,
    };
    const int64_t plane = plane_size(t);
    void *scratch = osw_call_room(call, osw_plan_bytes(&shuffle));
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
    OSW_RUN("channel_shuffle", bytes > OSW_GRAIN_BYTES, osw_plan_execute(&plan));
    return 0;
}

/* Pixels first: if both forms fit, whole pixels are the longer pieces. Declined if an input fits
 * neither form of the outputs. */
static int run(osw_call *call)
{
    const osw_shuffling *s = call->job;
    if (s->channels == 0 || call->tensors->size[0] == 0 || plane_size(call->tensors) == 0)
        return 0;
    for (osw_form form = FORM_PIXELS; form < FORM_COUNT; form++) {
        bool fits = true;
        for (Py_ssize_t i = 0; fits && i < s->inputs + s->outputs; i++)
            fits = fill_segment(call, i, form, &s->segments[i]);
        if (fits)
            return execute(call, form);
    }
    return -1;
}

/* A tuple of the outputs that were made. */
static PyObject *give(const osw_call *call)
{
    const osw_shuffling *s = call->job;
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < s->outputs; i++)
        count += s->wanted[i];
    PyObject *outputs = PyTuple_New(count);
    for (Py_ssize_t i = s->inputs, k = 0; outputs && i < s->inputs + s->outputs; i++)
        if (call->made[i])
            PyTuple_SetItem(outputs, k++, osw_call_made(call, i));
    return outputs;
}

OSW_ENTRY(new_shuffled)
{
    static const osw_entry entry = {.called = "new_shuffled",
                                    .name = "shuffle_channels",
                                    .arguments = A_COUNT,
                                    .numbers = read_numbers,
                                    OSW_STEPS(read_inputs, make_outputs, run),
                                    .give = give};
    if (nargs != A_COUNT || !PyTuple_Check(args[A_INPUTS]) || !PyTuple_Check(args[A_SECTIONS]) ||
        PyTuple_Size(args[A_INPUTS]) == 0 ||
        (args[A_WANTED] != Py_None &&
         (!PyTuple_Check(args[A_WANTED]) ||
          PyTuple_Size(args[A_WANTED]) != PyTuple_Size(args[A_SECTIONS]))))
        return PyErr_Format(
            PyExc_TypeError,
            "new_shuffled: expected (inputs, groups, sections, wanted, channels_last)");
    osw_shuffling s = {.inputs = PyTuple_Size(args[A_INPUTS]),
                       .outputs = PyTuple_Size(args[A_SECTIONS])};
    return osw_enter_wide(&entry, false, &s, s.inputs + s.outputs, args, nargs);
}

/* --- memory formats --------------------------------------------------------------------------- */

enum { FROM, TO, IN_LAST = 1, IN_COUNT };

static int read_format(osw_call *call)
{
    return read_flag(call->args[IN_LAST], call->job);
}

/* A batch of images that is not empty. */
static int make_copy(osw_call *call)
{
    const bool *to_last = call->job;
    const osw_tensor *t = &call->tensors[FROM];
    if (t->ndim != 4 || t->numel == 0 || !is_width(t->itemsize))
        return -1;
    return osw_call_make(call, TO, FROM, OSW_SAME_DTYPE, 4, t->size, *to_last);
}

/* Declined if the planes of the input, or its pixels, do not lie as the other format's do. */
static int run_format(osw_call *call)
{
    const bool *to_last = call->job;
    const osw_tensor *t = call->tensors;
    const int planes = *to_last ? FROM : TO, pixels = *to_last ? TO : FROM;
    const int64_t channels = t->size[1], pixel_bytes = channels * t->itemsize;
    osw_segment from = {.channels = channels}, to = {.channels = channels};
    if (!fill_segment(call, planes, FORM_PLANES, &from) ||
        !fill_segment(call, pixels, FORM_PIXELS, &to) ||
        (plane_size(t) > 1 && to.pixel_step != pixel_bytes))
        return -1;
    osw_stream *streams = osw_call_room(call, (size_t)channels * sizeof *streams);
    if (!streams)
        return -1;
    osw_plan plan;
    osw_run run;
    osw_plan_format(&plan, &run, streams, &from, &to, t->size[0], plane_size(t), t->itemsize,
                    *to_last);
    calls[plan.transpose_id]++;
    OSW_RUN("memory_format", t->numel * t->itemsize > OSW_GRAIN_BYTES, osw_plan_execute(&plan));
    return 0;
}

OSW_ENTRY(new_format)
{
    static const osw_entry entry = {.called = "new_format",
                                    .name = "memory_format",
                                    .arguments = IN_COUNT,
                                    .numbers = read_format,
                                    OSW_READS(0, 1, FROM),
                                    OSW_STEPS(make_copy, run_format),
                                    .result = TO,
                                    .results = 1};
    bool to_last = false;
    return osw_enter(&entry, true, &to_last, args, nargs);
}

#define VARIANT_NAME(index, name) [index] = name,
OSW_ENTRY_COUNTS(channels_variants, calls, OSW_CHANNELS_VARIANTS(VARIANT_NAME))

PyMethodDef osw_channels_methods[] = {
    OSW_ENTRY_LINE(new_shuffled,
                   "new_shuffled(inputs, groups, sections, wanted, channels_last) -> tuple of new "
                   "tensors, or NotImplemented if an input must be dense first"),
    OSW_ENTRY_LINE(
        new_format,
        "new_format(input, channels_last) -> images in the other memory format, or NotImplemented"),
    OSW_ENTRY_COUNTS_LINE(channels_variants),
    {NULL, NULL, 0, NULL},
};
