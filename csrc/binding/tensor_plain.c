/* SPDX-License-Identifier: MIT */
#include "binding/tensor_plain.h"

#include "binding/call.h"
#include "binding/tensor_public.h"
#include "binding/torch_names.h"

enum { DL_COMPLEX = 5 };

/* What a method of Tensor without arguments answers; true also for an error, so that the caller
 * keeps off. */
static bool answers_true(PyObject *object, osw_torch_name method)
{
    PyObject *function = osw_torch(method);
    PyObject *answer = function ? PyObject_CallFunctionObjArgs(function, object, NULL) : NULL;
    const bool is_false = answer == Py_False;
    Py_XDECREF(answer);
    return !is_false;
}

bool osw_tensor_plain(PyObject *object, osw_tensor *out)
{
    const bool plain = osw_is_exact_tensor(object) && osw_tensor_arg(object, "tensor", out) == 0 &&
                       !answers_true(object, OSW_TORCH_IS_NEG) &&
                       (out->dtype.code != DL_COMPLEX || !answers_true(object, OSW_TORCH_IS_CONJ));
    PyErr_Clear();
    out->object = NULL; /* no subclass and no mode: allocating runs no code of the caller's */
    return plain;
}

/* Whether something watches over operators: nothing does if the function answers 0, False or None.
 * True also if there is no function or no answer, so that the caller keeps off. */
static bool is_watching(osw_torch_name watcher, PyObject *argument)
{
    PyObject *function = osw_torch(watcher);
    PyObject *answer = function ? PyObject_CallFunctionObjArgs(function, argument, NULL) : NULL;
    const int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth != 0;
}

/* True if each of these modes is torch's own choice of the device of new tensors: of
 * torch.set_default_device or of `with torch.device(...)`. A subclass is another mode. */
static bool only_devices(long count)
{
    PyObject *mode_at = osw_torch(OSW_TORCH_FUNCTION_MODE_AT);
    PyObject *device_context = osw_torch(OSW_TORCH_DEVICE_CONTEXT);
    bool only = count >= 0 && mode_at && device_context;
    for (long i = 0; only && i < count; i++) {
        PyObject *index = PyLong_FromLong(i);
        PyObject *mode = index ? PyObject_CallFunctionObjArgs(mode_at, index, NULL) : NULL;
        only = mode && (PyObject *)Py_TYPE(mode) == device_context;
        Py_XDECREF(mode);
        Py_XDECREF(index);
    }
    return only;
}

/* Whether a mode sees calls of functions; true also if there is no answer. */
static bool in_function_mode(void)
{
    PyObject *length = osw_torch(OSW_TORCH_FUNCTION_STACK);
    PyObject *answer = length ? PyObject_CallFunctionObjArgs(length, NULL) : NULL;
    const long count = answer ? PyLong_AsLong(answer) : -1;
    Py_XDECREF(answer);
    if (osw_recording() && count == 1) /* the one that records */
        return false;
    return count != 0 && !only_devices(count);
}

/* A level of 0 or more. */
static bool in_forward_ad(void)
{
    static PyObject *name;
    PyObject *module = osw_torch(OSW_TORCH_FORWARD_AD);
    if (!name)
        name = PyUnicode_InternFromString("_current_level");
    PyObject *level = module && name ? PyObject_GetAttr(module, name) : NULL;
    const long value = level ? PyLong_AsLong(level) : 0;
    Py_XDECREF(level);
    return value >= 0;
}

static bool in_autocast(void)
{
    static PyObject *cpu;
    if (osw_torch(OSW_TORCH_ANY_AUTOCAST))
        return is_watching(OSW_TORCH_ANY_AUTOCAST, NULL);
    if (!cpu)
        cpu = PyUnicode_InternFromString("cpu");
    return !cpu || is_watching(OSW_TORCH_AUTOCAST, cpu);
}

bool osw_plain_eager(bool without_autocast)
{
    static const osw_torch_name watchers[] = {OSW_TORCH_TRANSFORMS, OSW_TORCH_DISPATCH_STACK,
                                              OSW_TORCH_TRACING_STATE};
    bool plain = true;
    for (size_t i = 0; plain && i < sizeof watchers / sizeof *watchers; i++)
        plain = !is_watching(watchers[i], NULL);
    plain =
        plain && !in_function_mode() && !in_forward_ad() && !(without_autocast && in_autocast());
    PyErr_Clear();
    return plain;
}

PyObject *osw_or_declined(PyObject *result)
{
    if (result || PyErr_ExceptionMatches(PyExc_MemoryError))
        return result;
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
}

OSW_ENTRY_NO_ARGS(plain_eager)
{
    return PyBool_FromLong(osw_plain_eager(false));
}

OSW_ENTRY_NO_ARGS(plain_eager_without_autocast)
{
    return PyBool_FromLong(osw_plain_eager(true));
}

bool osw_suggests_channels_last(const osw_tensor *t)
{
    if (t->ndim < 4 || t->ndim > 5 || t->stride[1] == 0)
        return false;
    int64_t smallest = 0;
    for (int n = 0; n < t->ndim; n++) {
        const int i = osw_channels_last_at(t->ndim, n);
        if (t->size[i] == 0 || t->stride[i] < smallest)
            return false;
        if (i == 0 && smallest == t->stride[1])
            return false;
        smallest = t->stride[i] * (t->size[i] > 1 ? t->size[i] : 1);
    }
    return true;
}

PyObject *osw_memory_format(int ndim, bool channels_last)
{
    PyObject *format = osw_torch(!channels_last ? OSW_TORCH_CONTIGUOUS
                                 : ndim == 4    ? OSW_TORCH_CHANNELS_LAST
                                                : OSW_TORCH_CHANNELS_LAST_3D);
    if (!format)
        PyErr_SetString(PyExc_RuntimeError, "opswap: this torch lacks a memory format");
    return format;
}

static PyObject *plain_tensors(PyObject *Py_UNUSED(module), PyObject *tensors)
{
    if (!PyTuple_Check(tensors) && !PyList_Check(tensors))
        return PyErr_Format(PyExc_TypeError, "plain_tensors: expected a tuple or list of tensors");
    const bool is_tuple = PyTuple_Check(tensors);
    const Py_ssize_t count = is_tuple ? PyTuple_Size(tensors) : PyList_Size(tensors);
    bool plain = true;
    for (Py_ssize_t i = 0; plain && i < count; i++) {
        osw_tensor ignored;
        PyObject *item = is_tuple ? PyTuple_GetItem(tensors, i) : PyList_GetItem(tensors, i);
        plain = item && osw_tensor_plain(item, &ignored);
    }
    return PyBool_FromLong(plain);
}

PyMethodDef osw_tensor_methods[] = {
    {"plain_tensors", plain_tensors, METH_O,
     "Whether kernels may read every tensor of this tuple or list without torch's dispatcher."},
    OSW_ENTRY_NO_ARGS_LINE(plain_eager,
                           "Whether nothing but autograd and autocast watches over operators."),
    OSW_ENTRY_NO_ARGS_LINE(plain_eager_without_autocast,
                           "Whether nothing but autograd watches over operators."),
    {NULL, NULL, 0, NULL},
};
