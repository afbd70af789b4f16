/* SPDX-License-Identifier: MIT */
/* describe_shuffle(tensors, groups, sections, inverse): what the public functions of the family
 * would work out in Python, for ordinary calls, in one step. */
#include "binding/call.h"

/* What all tensors of a call have in common. */
typedef struct osw_row {
    osw_tensor first;
    int64_t channels;
    bool channels_last;
} osw_row;

static bool read_row(PyObject *tensors, osw_row *row)
{
    const Py_ssize_t count = PyTuple_Size(tensors);
    row->channels = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        osw_tensor other, *t = i ? &other : &row->first;
        if (!osw_tensor_plain(PyTuple_GetItem(tensors, i), t) || t->ndim < 2 ||
            !osw_same_dtype(&row->first, t) || !osw_same_sizes(&row->first, t, 1) ||
            __builtin_add_overflow(row->channels, t->size[1], &row->channels))
            return false;
        row->channels_last = osw_suggests_channels_last(t) && (i == 0 || row->channels_last);
    }
    return count > 0 && row->channels > 0;
}

/* Channels of every output as torch.chunk sizes them; channels and chunks are positive. */
static PyObject *chunk_sizes(int64_t channels, int64_t chunks)
{
    if (chunks > channels) /* also keeps the sums below 2^63 */
        chunks = channels;
    const int64_t size = (channels + chunks - 1) / chunks;
    const int64_t count = (channels + size - 1) / size;
    PyObject *sizes = PyTuple_New(count);
    for (int64_t i = 0; sizes && i < count; i++) {
        const int64_t rest = channels - i * size;
        PyObject *value = PyLong_FromLongLong(rest < size ? rest : size);
        if (!value || PyTuple_SetItem(sizes, i, value) != 0)
            Py_CLEAR(sizes);
    }
    return sizes;
}

/* A positive int; 0 for all else. */
static int64_t positive(PyObject *number)
{
    int64_t value;
    return osw_exact_int(number, 1, INT64_MAX, &value) ? value : 0;
}

/* The channels of every output, from a number of chunks or a sequence of sizes. NULL without an
 * exception for what is neither, or does not add up. */
static PyObject *output_sizes(PyObject *sections, int64_t channels)
{
    const int64_t chunks = positive(sections);
    if (chunks)
        return chunk_sizes(channels, chunks);
    if (!PyTuple_CheckExact(sections) && !PyList_CheckExact(sections))
        return NULL;
    PyObject *sizes = PySequence_Tuple(sections);
    for (Py_ssize_t i = 0; sizes && i < PyTuple_Size(sizes); i++) {
        const int64_t size = positive(PyTuple_GetItem(sizes, i));
        channels -= size;
        if (!size || channels < 0)
            Py_CLEAR(sizes);
    }
    if (channels)
        Py_CLEAR(sizes);
    return sizes;
}

OSW_ENTRY(describe_shuffle)
{
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError,
                            "describe_shuffle: expected (tensors, groups, sections, "
                            "inverse)");
    osw_row row;
    int64_t groups = positive(args[1]);
    if (!PyTuple_CheckExact(args[0]) || !groups || !read_row(args[0], &row) ||
        row.channels % groups)
        Py_RETURN_NONE;
    if (args[3] == Py_True)
        groups = row.channels / groups;
    PyObject *format = osw_memory_format(row.first.ndim, row.channels_last);
    if (!format)
        return NULL;
    PyObject *sizes = output_sizes(args[2], row.channels);
    if (!sizes && !PyErr_Occurred())
        Py_RETURN_NONE;
    return sizes ? Py_BuildValue("(LNO)", (long long)groups, sizes, format) : NULL;
}

PyMethodDef osw_shuffle_methods[] = {
    OSW_ENTRY_LINE(
        describe_shuffle,
        "describe_shuffle(tensors, groups, sections, inverse) -> (groups of the permutation, "
        "channels of every output, memory format), or None if the call is not an ordinary one"),
    {NULL, NULL, 0, NULL},
};
