/* SPDX-License-Identifier: MIT */
/* shuffle_channels(inputs, outputs, groups): cat, shuffle and split into tensors that the caller
 * made. new_shuffled(inputs, groups, sections, wanted, channels_last): the same into new tensors.
 * channels_variants(): the kernels and how often each was called. */
#include "binding/binding.h"
#include "binding/profile.h"
#include "binding/tensor_arg.h"
#include "binding/tensor_new.h"
#include "binding/variant_counts.h"
#include "channels/channels.h"
#include "channels/plan.h"
#include "core/parallel.h"

#include <string.h>

static const char NAME[] = "shuffle_channels";

static uint64_t calls[OSW_CHANNELS_COUNT];

/* How the channels of every tensor can be walked. */
typedef enum osw_form { FORM_PIXELS, FORM_PLANES, FORM_COUNT } osw_form;

typedef struct osw_call {
    osw_tensor *inputs;
    osw_tensor *outputs; /* data NULL and size[1] set for an output that is None */
    osw_segment *segments;
    bool *readable; /* an input's memory suits the form at hand */
    Py_ssize_t input_count;
    Py_ssize_t output_count;
    int64_t groups;
    int64_t channels;
    osw_tensor *model; /* the first input: batch, plane and dtype of all */
} osw_call;

static int64_t plane_size(const osw_tensor *t)
{
    int64_t size = 1;
    for (int i = 2; i < t->ndim; i++)
        size *= t->size[i];
    return size;
}

static void put_dims(char *text, size_t length, const osw_tensor *t)
{
    size_t used = 0;
    for (int i = 0; i < t->ndim && used < length; i++)
        used += (size_t)snprintf(text + used, length - used, i ? ", %lld" : "%lld",
                                 (long long)t->size[i]);
}

static int check_like(const osw_tensor *model, const osw_tensor *t, const char *role,
                      Py_ssize_t index)
{
    bool same = t->ndim == model->ndim && t->size[0] == model->size[0] && osw_same_dtype(t, model);
    for (int i = 2; same && i < model->ndim; i++)
        same = t->size[i] == model->size[i];
    if (same)
        return 0;
    char want[256], got[256];
    put_dims(want, sizeof want, model);
    put_dims(got, sizeof got, t);
    PyErr_Format(PyExc_RuntimeError,
                 "%s: %s %zd of size (%s), %d bit, does not fit input 0 of size (%s), %d bit", NAME,
                 role, index, got, (int)t->dtype.bits, want, (int)model->dtype.bits);
    return -1;
}

static bool is_width(int64_t bytes)
{
    return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
}

/* Parse the inputs, and add up their channels. */
static int parse_inputs(PyObject *tuple, osw_call *call)
{
    for (Py_ssize_t i = 0; i < call->input_count; i++) {
        osw_tensor *t = &call->inputs[i];
        if (osw_tensor_arg(PyTuple_GetItem(tuple, i), NAME, t) != 0)
            return -1;
        if (t->ndim < 2) {
            PyErr_Format(PyExc_RuntimeError, "%s: expected at least 2 dimensions, got %d", NAME,
                         t->ndim);
            return -1;
        }
        if (check_like(call->model, t, "input", i) != 0)
            return -1;
        if (!is_width(t->itemsize)) {
            PyErr_Format(PyExc_TypeError, "%s: elements of %d bits are not supported", NAME,
                         (int)t->dtype.bits);
            return -1;
        }
        if (__builtin_add_overflow(call->channels, t->size[1], &call->channels)) {
            PyErr_Format(PyExc_RuntimeError, "%s: inputs have more than 2^63 channels", NAME);
            return -1;
        }
    }
    return 0;
}

/* An output without memory, of `channels` channels. */
static void leave_out(const osw_call *call, int64_t channels, osw_tensor *t)
{
    *t = *call->model;
    t->data = NULL;
    t->object = NULL;
    t->size[1] = channels;
}

/* The numbers of a call: the channels of every output that is given by them, none negative, into
 * its size. */
static int parse_channels(PyObject *tuple, osw_call *call)
{
    for (Py_ssize_t i = 0; i < call->output_count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (PyLong_Check(item) && osw_int_arg(NAME, "channels of a section", item, 0, INT64_MAX,
                                              &call->outputs[i].size[1]) != 0)
            return -1;
    }
    return 0;
}

static int check_channels(const osw_call *call)
{
    int64_t channels = 0;
    bool fits = true;
    for (Py_ssize_t i = 0; fits && i < call->output_count; i++)
        fits = !__builtin_add_overflow(channels, call->outputs[i].size[1], &channels);
    if (fits && channels == call->channels)
        return 0;
    PyErr_Format(PyExc_RuntimeError, "%s: inputs have %lld channels, outputs %s%lld", NAME,
                 (long long)call->channels, fits ? "" : "2^64 more than ", (long long)channels);
    return -1;
}

/* Parse the outputs: tensors, or the number of channels of an output that is not wanted. */
static int parse_outputs(PyObject *tuple, osw_call *call)
{
    for (Py_ssize_t i = 0; i < call->output_count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        osw_tensor *t = &call->outputs[i];
        if (PyLong_Check(item)) {
            leave_out(call, t->size[1], t);
        } else if (osw_tensor_arg(item, NAME, t) != 0) {
            return -1;
        } else if (check_like(call->model, t, "output", i) != 0) {
            return -1;
        } else if (t->data && !osw_no_overlap(t)) {
            PyErr_Format(PyExc_RuntimeError, "%s: output %zd overlaps itself", NAME, i);
            return -1;
        }
    }
    return check_channels(call);
}

static int check_groups(const osw_call *call)
{
    if (call->groups > 0 && call->channels % call->groups == 0)
        return 0;
    PyErr_Format(PyExc_RuntimeError, "%s: %lld channels cannot be split into %lld groups", NAME,
                 (long long)call->channels, (long long)call->groups);
    return -1;
}

/* Describe `t` in the given form; false if its memory does not allow it. */
static bool fill_segment(const osw_tensor *t, osw_form form, osw_segment *segment)
{
    int64_t count, step;
    if (!osw_flatten(t, 2, &count, &step))
        return false;
    const bool neighbours = t->size[1] <= 1 || t->stride[1] == 1;
    if (form == FORM_PIXELS ? !neighbours : count > 1 && step != 1)
        return false;
    if (count == 1)
        step = t->size[0] > 1 ? t->stride[0] : 0;
    *segment = (osw_segment){
        .base = t->data,
        .channels = t->size[1],
        .channel_step = (t->size[1] <= 1 ? 1 : t->stride[1]) * t->itemsize,
        .image_step = t->stride[0] * t->itemsize,
        .pixel_step = step * t->itemsize,
    };
    return true;
}

/* An output that is not wanted, or has no channels, constrains nothing. */
static bool fill_output(const osw_tensor *t, osw_form form, osw_segment *segment)
{
    *segment = (osw_segment){.channels = t->size[1], .image_step = 0, .pixel_step = 0};
    return !t->data || fill_segment(t, form, segment);
}

static bool fill_outputs(const osw_call *call, osw_form form)
{
    for (Py_ssize_t i = 0; i < call->output_count; i++)
        if (!fill_output(&call->outputs[i], form, &call->segments[call->input_count + i]))
            return false;
    return true;
}

static Py_ssize_t fill_inputs(const osw_call *call, osw_form form)
{
    Py_ssize_t unreadable = 0;
    for (Py_ssize_t i = 0; i < call->input_count; i++) {
        const osw_tensor *t = &call->inputs[i];
        call->segments[i] = (osw_segment){.channels = t->size[1]};
        call->readable[i] = !t->data || fill_segment(t, form, &call->segments[i]);
        unreadable += !call->readable[i];
    }
    return unreadable;
}

static PyObject *unreadable_indices(const osw_call *call, Py_ssize_t unreadable)
{
    PyObject *indices = PyTuple_New(unreadable);
    for (Py_ssize_t i = 0, n = 0; indices && i < call->input_count; i++)
        if (!call->readable[i])
            PyTuple_SetItem(indices, n++, PyLong_FromSsize_t(i));
    return indices;
}

static void count_calls(const osw_plan *plan)
{
    calls[plan->transpose_id] += plan->run_count > 0;
    calls[plan->move_id] += plan->move_count > 0;
}

static PyObject *execute(const osw_call *call, osw_form form)
{
    const osw_tensor *t = call->model;
    const osw_shuffle shuffle = {
        .inputs = {call->segments, call->input_count},
        .outputs = {call->segments + call->input_count, call->output_count},
        .groups = call->groups,
        .channels = call->channels,
        .element_bytes = t->itemsize,
    };
    const int64_t plane = plane_size(t);
    void *scratch = PyMem_Malloc(osw_plan_bytes(&shuffle));
    if (!scratch)
        return PyErr_NoMemory();
    osw_plan plan;
    if (form == FORM_PIXELS)
        osw_plan_pixels(&plan, &shuffle, t->size[0], plane, scratch);
    else
        osw_plan_planes(&plan, &shuffle, t->size[0], plane * t->itemsize, scratch);
    count_calls(&plan);
    const int64_t bytes = t->size[0] * call->channels * plane * t->itemsize;
    PyObject *range = osw_profile_begin("channel_shuffle");
    PyThreadState *state = bytes > OSW_GRAIN_BYTES ? PyEval_SaveThread() : NULL;
    osw_plan_execute(&plan);
    if (state)
        PyEval_RestoreThread(state);
    osw_profile_end(range);
    PyMem_Free(scratch);
    Py_RETURN_NONE;
}

/* Pixels first: where both forms fit, whole pixels are the longer pieces. Inputs that fit neither
 * form of the outputs are named for the caller to copy. */
static PyObject *choose_form(const osw_call *call)
{
    PyObject *indices = NULL;
    for (osw_form form = FORM_PIXELS; form < FORM_COUNT; form++) {
        if (!fill_outputs(call, form))
            continue;
        const Py_ssize_t unreadable = fill_inputs(call, form);
        if (unreadable == 0) {
            Py_XDECREF(indices);
            return execute(call, form);
        }
        Py_XDECREF(indices);
        indices = unreadable_indices(call, unreadable);
        if (!indices)
            return NULL;
    }
    if (!indices)
        PyErr_Format(PyExc_RuntimeError, "%s: outputs must be dense, in one memory format", NAME);
    return indices;
}

/* Memory for what the call knows of its tensors, freed by the caller. NULL with an exception. */
static void *start_call(osw_call *call, PyObject *inputs, PyObject *outputs, PyObject *groups)
{
    *call = (osw_call){.input_count = PyTuple_Size(inputs), .output_count = PyTuple_Size(outputs)};
    if (osw_int_arg(NAME, "groups", groups, INT64_MIN, INT64_MAX, &call->groups) != 0)
        return NULL;
    const size_t tensors = (size_t)(call->input_count + call->output_count);
    char *memory = PyMem_Calloc(tensors, sizeof(osw_tensor) + sizeof(osw_segment) + sizeof(bool));
    if (!memory)
        return PyErr_NoMemory();
    call->inputs = call->model = (osw_tensor *)memory;
    call->outputs = call->inputs + call->input_count;
    call->segments = (osw_segment *)(call->inputs + tensors);
    call->readable = (bool *)(call->segments + tensors);
    return memory;
}

static bool nothing_to_move(const osw_call *call)
{
    return call->channels == 0 || call->model->size[0] == 0 || plane_size(call->model) == 0;
}

static PyObject *shuffle_parsed(PyObject *inputs, PyObject *outputs, osw_call *call)
{
    if (parse_channels(outputs, call) != 0 || parse_inputs(inputs, call) != 0 ||
        parse_outputs(outputs, call) != 0 || check_groups(call) != 0)
        return NULL;
    if (nothing_to_move(call))
        Py_RETURN_NONE;
    return choose_form(call);
}

static PyObject *shuffle_channels(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 3 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) ||
        PyTuple_Size(args[0]) == 0) {
        PyErr_Format(PyExc_TypeError, "%s: expected (inputs, outputs, groups)", NAME);
        return NULL;
    }
    osw_call call;
    void *memory = start_call(&call, args[0], args[1], args[2]);
    PyObject *result = memory ? shuffle_parsed(args[0], args[1], &call) : NULL;
    PyMem_Free(memory);
    return result;
}

/* The sections, as outputs without memory. */
static int leave_all_out(PyObject *sections, osw_call *call)
{
    for (Py_ssize_t i = 0; i < call->output_count; i++) {
        if (!PyLong_Check(PyTuple_GetItem(sections, i))) {
            PyErr_Format(PyExc_TypeError, "%s: section %zd must be an int, got %R", NAME, i,
                         PyTuple_GetItem(sections, i));
            return -1;
        }
        leave_out(call, call->outputs[i].size[1], &call->outputs[i]);
    }
    return check_channels(call);
}

/* A tuple of new tensors, one for every section that is wanted (NULL: all). */
static PyObject *make_outputs(PyObject *like, PyObject *wanted, bool channels_last, osw_call *call)
{
    PyObject *made = PyList_New(0);
    for (Py_ssize_t i = 0; made && i < call->output_count; i++) {
        osw_tensor *t = &call->outputs[i];
        const int makes = wanted ? PyObject_IsTrue(PyTuple_GetItem(wanted, i)) : 1;
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

static PyObject *shuffle_into_new(PyObject *const *args, osw_call *call)
{
    PyObject *wanted = args[3] == Py_None ? NULL : args[3];
    const int channels_last = PyObject_IsTrue(args[4]);
    if (channels_last < 0 || parse_channels(args[2], call) != 0 ||
        parse_inputs(args[0], call) != 0 || leave_all_out(args[2], call) != 0 ||
        check_groups(call) != 0)
        return NULL;
    PyObject *outputs = make_outputs(PyTuple_GetItem(args[0], 0), wanted, channels_last, call);
    if (!outputs || nothing_to_move(call))
        return outputs;
    PyObject *unreadable = osw_tensors_unchanged(NAME, call->inputs, call->input_count) == 0
                               ? choose_form(call)
                               : NULL;
    if (unreadable == Py_None) {
        Py_DECREF(unreadable);
        return outputs;
    }
    Py_DECREF(outputs);
    if (!unreadable)
        return NULL;
    Py_DECREF(unreadable);
    Py_RETURN_NONE;
}

static PyObject *new_shuffled(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 5 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[2]) ||
        PyTuple_Size(args[0]) == 0 ||
        (args[3] != Py_None &&
         (!PyTuple_Check(args[3]) || PyTuple_Size(args[3]) != PyTuple_Size(args[2])))) {
        PyErr_SetString(PyExc_TypeError,
                        "new_shuffled: expected (inputs, groups, sections, wanted, channels_last)");
        return NULL;
    }
    osw_call call;
    void *memory = start_call(&call, args[0], args[2], args[1]);
    PyObject *result = memory ? shuffle_into_new(args, &call) : NULL;
    PyMem_Free(memory);
    return result;
}

#define OSW_VARIANT_NAME(index, name) [index] = name,

static PyObject *channels_variants(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {OSW_CHANNELS_VARIANTS(OSW_VARIANT_NAME)};
    (void)module, (void)unused;
    return osw_variant_counts(OSW_CHANNELS_COUNT, names, calls);
}

PyMethodDef osw_channels_methods[] = {
    {"shuffle_channels", OSW_METHOD(shuffle_channels), METH_FASTCALL,
     "shuffle_channels(inputs, outputs, groups) -> None, or the indices of inputs that must be "
     "dense first"},
    {"new_shuffled", OSW_METHOD(new_shuffled), METH_FASTCALL,
     "new_shuffled(inputs, groups, sections, wanted, channels_last) -> tuple of new tensors, or "
     "None where an input must be dense first"},
    {"channels_variants", channels_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
