/* SPDX-License-Identifier: MIT */
#include "binding/tensor_public.h"

#include "binding/torch_names.h"

enum {
    INT,
    UINT,
    FLOAT,
    BFLOAT = 4,
    COMPLEX,
    BOOL,
    E4M3FN = 10,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0FNU
};

static const struct {
    const char *name;
    osw_dl_dtype dtype;
} dtypes[] = {
    {"torch.float32", {FLOAT, 32, 1}},
    {"torch.float64", {FLOAT, 64, 1}},
    {"torch.float16", {FLOAT, 16, 1}},
    {"torch.bfloat16", {BFLOAT, 16, 1}},
    {"torch.uint8", {UINT, 8, 1}},
    {"torch.int8", {INT, 8, 1}},
    {"torch.int16", {INT, 16, 1}},
    {"torch.int32", {INT, 32, 1}},
    {"torch.int64", {INT, 64, 1}},
    {"torch.bool", {BOOL, 8, 1}},
    {"torch.complex32", {COMPLEX, 32, 1}},
    {"torch.complex64", {COMPLEX, 64, 1}},
    {"torch.complex128", {COMPLEX, 128, 1}},
    {"torch.uint16", {UINT, 16, 1}},
    {"torch.uint32", {UINT, 32, 1}},
    {"torch.uint64", {UINT, 64, 1}},
    {"torch.float8_e4m3fn", {E4M3FN, 8, 1}},
    {"torch.float8_e4m3fnuz", {E4M3FNUZ, 8, 1}},
    {"torch.float8_e5m2", {E5M2, 8, 1}},
    {"torch.float8_e5m2fnuz", {E5M2FNUZ, 8, 1}},
    {"torch.float8_e8m0fnu", {E8M0FNU, 8, 1}},
};

/* Whether str(object.name) is `text`. */
static bool prints_as(PyObject *object, const char *name, const char *text)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    PyObject *printed = value ? PyObject_Str(value) : NULL;
    const bool same = printed && PyUnicode_CompareWithASCIIString(printed, text) == 0;
    Py_XDECREF(printed);
    Py_XDECREF(value);
    return same;
}

static int read_dtype(PyObject *object, osw_dl_dtype *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (prints_as(object, "dtype", dtypes[i].name)) {
            *dtype = dtypes[i].dtype;
            return 0;
        }
    return -1;
}

/* What object.method(), a tuple of ints, returns; the number of them, or -1. */
static int read_ints(PyObject *object, const char *method, int64_t *values)
{
    PyObject *tuple = PyObject_CallMethod(object, method, NULL);
    const Py_ssize_t length = tuple && PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    int count = length <= OSW_MAX_DIMS ? (int)length : OSW_MAX_DIMS + 1;
    for (int i = 0; i < count && count <= OSW_MAX_DIMS; i++)
        if (!osw_exact_int(PyTuple_GetItem(tuple, i), 0, INT64_MAX, &values[i]))
            count = -1;
    Py_XDECREF(tuple);
    return count;
}

bool osw_is_exact_tensor(PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    return type == osw_torch(OSW_TORCH_TENSOR) || type == osw_torch(OSW_TORCH_PARAMETER);
}

int osw_tensor_public(PyObject *object, osw_tensor *out, osw_dl_tensor *borrowed)
{
    if (!osw_is_exact_tensor(object) || !prints_as(object, "layout", "torch.strided") ||
        read_dtype(object, &borrowed->dtype) != 0)
        return -1;
    const int ndim = read_ints(object, "size", out->size);
    if (ndim < 0 || read_ints(object, "stride", out->stride) != ndim)
        return -1;
    PyObject *device = PyObject_GetAttrString(object, "device");
    borrowed->device.type = device && prints_as(device, "type", "cpu") ? OSW_DL_CPU : 0;
    Py_XDECREF(device);
    PyObject *address = PyObject_CallMethod(object, "data_ptr", NULL);
    borrowed->data = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    borrowed->ndim = ndim;
    borrowed->shape = out->size;
    borrowed->strides = out->stride;
    borrowed->byte_offset = 0;
    return PyErr_Occurred() ? -1 : 0;
}
