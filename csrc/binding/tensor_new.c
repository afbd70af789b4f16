/* SPDX-License-Identifier: MIT */
#include "binding/tensor_new.h"

#include "binding/torch_names.h"

/* Strides in elements, the last dimension innermost, or the channels if they come last. False if
 * the tensor could not have so many elements. */
static bool dense_strides(int ndim, const int64_t *size, bool channels_last, int64_t *stride)
{
    int64_t step = 1;
    bool fits = true;
    for (int n = 0; n < ndim; n++) {
        const int i = channels_last ? osw_channels_last_at(ndim, n) : ndim - 1 - n;
        stride[i] = step;
        fits =
            fits && size[i] >= 0 && !__builtin_mul_overflow(step, size[i] > 0 ? size[i] : 1, &step);
    }
    return fits;
}

PyObject *osw_tuple_of(int count, const int64_t *values)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (!value || PyTuple_SetItem(tuple, i, value) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Strides of one element, or of none, may be any. */
static bool is_as_asked(const osw_tensor *made, const osw_tensor *asked)
{
    bool same = made->ndim == asked->ndim && osw_same_dtype(made, asked);
    for (int i = 0; same && i < asked->ndim; i++)
        same = made->size[i] == asked->size[i] &&
               (asked->size[i] <= 1 || made->numel == 0 || made->stride[i] == asked->stride[i]);
    return same;
}

static void fail_asked(const char *name, const osw_tensor *made, const osw_tensor *asked)
{
    PyErr_Format(PyExc_RuntimeError,
                 "%s: new_empty_strided made a tensor of size %s, strides %s, %d bit, "
                 "expected size %s, strides %s, %d bit",
                 name, osw_print_sizes(made->ndim, made->size).text,
                 osw_print_sizes(made->ndim, made->stride).text, (int)made->dtype.bits,
                 osw_print_sizes(asked->ndim, asked->size).text,
                 osw_print_sizes(asked->ndim, asked->stride).text, (int)asked->dtype.bits);
}

static const struct {
    osw_torch_name name;
    osw_dl_dtype dtype;
} dtypes[] = {
    [OSW_UINT8] = {OSW_TORCH_UINT8, {1, 8, 1}},
    [OSW_INT32] = {OSW_TORCH_INT32, {0, 32, 1}},
    [OSW_FLOAT64] = {OSW_TORCH_FLOAT64, {2, 64, 1}},
};

/* {"dtype": ...}, NULL with an exception. */
static PyObject *keywords_for(osw_new_dtype dtype)
{
    static PyObject *kept[sizeof dtypes / sizeof *dtypes];
    if (kept[dtype])
        return kept[dtype];
    PyObject *value = osw_torch(dtypes[dtype].name), *keywords = PyDict_New();
    if (!value)
        PyErr_SetString(PyExc_RuntimeError, "opswap: this torch lacks uint8, int32 or float64");
    if (!value || !keywords || PyDict_SetItemString(keywords, "dtype", value) != 0)
        Py_CLEAR(keywords);
    return kept[dtype] = keywords;
}

/* What a subclass returns may be anything. */
static PyObject *call_torch(PyObject *like, osw_new_dtype dtype, const osw_tensor *asked)
{
    PyObject *make = osw_torch(OSW_TORCH_NEW_EMPTY_STRIDED), *tensor = NULL;
    PyObject *keywords = dtype == OSW_SAME_DTYPE ? NULL : keywords_for(dtype);
    if (!make)
        PyErr_SetString(PyExc_RuntimeError, "opswap: this torch lacks Tensor.new_empty_strided");
    if (!make || (!keywords && dtype != OSW_SAME_DTYPE))
        return NULL;
    PyObject *sizes = osw_tuple_of(asked->ndim, asked->size);
    PyObject *steps = osw_tuple_of(asked->ndim, asked->stride);
    PyObject *arguments = sizes && steps ? PyTuple_Pack(3, like, sizes, steps) : NULL;
    if (arguments)
        tensor = PyObject_Call(make, arguments, keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(steps);
    Py_XDECREF(sizes);
    return tensor;
}

PyObject *osw_tensor_new(PyObject *like, osw_new_dtype dtype, const char *name, int ndim,
                         const int64_t *size, bool channels_last, osw_tensor *out)
{
    osw_tensor asked = {.ndim = ndim};
    if (ndim > OSW_MAX_DIMS || (channels_last && (ndim < 4 || ndim > 5)))
        return PyErr_Format(PyExc_RuntimeError, "%s: no new tensor has %d dimensions%s", name, ndim,
                            channels_last ? " in channels_last" : "");
    for (int i = 0; i < ndim; i++)
        asked.size[i] = size[i];
    if (!dense_strides(ndim, size, channels_last, asked.stride))
        return PyErr_Format(PyExc_RuntimeError, "%s: no new tensor has the size %s", name,
                            osw_print_sizes(ndim, size).text);
    osw_tensor model;
    if (osw_tensor_arg(like, name, &model) != 0)
        return NULL;
    asked.dtype = dtype == OSW_SAME_DTYPE ? model.dtype : dtypes[dtype].dtype;
    PyObject *tensor = call_torch(like, dtype, &asked);
    if (!tensor)
        return NULL;
    if (osw_tensor_arg(tensor, name, out) != 0) {
        Py_DECREF(tensor);
        return NULL;
    }
    if (is_as_asked(out, &asked))
        return tensor;
    fail_asked(name, out, &asked);
    Py_DECREF(tensor);
    return NULL;
}
