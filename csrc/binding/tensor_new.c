/* SPDX-License-Identifier: MIT */
#include "binding/tensor_new.h"

#include "binding/tensor_plain.h"

/* Strides in elements, the last dimension innermost, or the channels where they come last. */
static void dense_strides(int ndim, const int64_t *size, bool channels_last, int64_t *stride)
{
    int64_t step = 1;
    if (channels_last) {
        stride[1] = 1;
        step = size[1] > 0 ? size[1] : 1;
    }
    for (int i = ndim - 1; i >= 0; i--) {
        if (channels_last && i == 1)
            continue;
        stride[i] = step;
        step *= size[i] > 0 ? size[i] : 1;
    }
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

PyObject *osw_tensor_new(PyObject *like, const char *name, int ndim, const int64_t *size,
                         bool channels_last, osw_tensor *out)
{
    int64_t strides[OSW_MAX_DIMS];
    dense_strides(ndim, size, channels_last, strides);
    PyObject *sizes = osw_tuple_of(ndim, size);
    PyObject *steps = osw_tuple_of(ndim, strides);
    PyObject *make = PyObject_GetAttrString(like, "new_empty_strided");
    PyObject *tensor = NULL;
    if (sizes && steps && make)
        tensor = PyObject_CallFunctionObjArgs(make, sizes, steps, NULL);
    if (tensor && osw_tensor_arg(tensor, name, out) != 0)
        Py_CLEAR(tensor);
    Py_XDECREF(make);
    Py_XDECREF(steps);
    Py_XDECREF(sizes);
    return tensor;
}

PyObject *osw_tensor_donor(PyObject **kept, const char *cast)
{
    if (*kept)
        return *kept;
    PyObject *make = osw_attribute_of("torch", "empty");
    PyObject *empty = make ? PyObject_CallFunction(make, "i", 0) : NULL;
    *kept = empty ? PyObject_CallMethod(empty, cast, NULL) : NULL;
    Py_XDECREF(empty);
    Py_XDECREF(make);
    return *kept;
}
