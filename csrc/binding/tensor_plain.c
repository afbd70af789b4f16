/* SPDX-License-Identifier: MIT */
#include "binding/tensor_plain.h"

enum { DL_COMPLEX = 5 };

/* torch.Tensor and torch.nn.Parameter, kept for good once they are found. Guarded by the GIL. */
static PyObject *plain_types[2];

PyObject *osw_attribute_of(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *value = module ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    return value;
}

static bool has_plain_type(PyObject *object)
{
    if (!plain_types[1]) {
        plain_types[0] = osw_attribute_of("torch", "Tensor");
        plain_types[1] = osw_attribute_of("torch.nn", "Parameter");
    }
    PyObject *type = (PyObject *)Py_TYPE(object);
    return type && (type == plain_types[0] || type == plain_types[1]);
}

/* What a method without arguments answers; true also for an error, so that the caller keeps off. */
static bool answers_true(PyObject *object, const char *method)
{
    PyObject *answer = PyObject_CallMethod(object, method, NULL);
    const bool is_false = answer == Py_False;
    Py_XDECREF(answer);
    return !is_false;
}

bool osw_tensor_plain(PyObject *object, osw_tensor *out)
{
    const bool plain = has_plain_type(object) && osw_tensor_arg(object, "tensor", out) == 0 &&
                       !answers_true(object, "is_neg") &&
                       (out->dtype.code != DL_COMPLEX || !answers_true(object, "is_conj"));
    PyErr_Clear();
    return plain;
}

/* What watches over operators, or nothing where it answers 0, False or None; found once. Guarded by
 * the GIL. */
static const char *const watchers[] = {"_are_functorch_transforms_active",
                                       "_len_torch_dispatch_stack", "_len_torch_function_stack",
                                       "_get_tracing_state", "_is_any_autocast_enabled"};
enum { AUTOCAST = 4, WATCHER_COUNT = sizeof watchers / sizeof *watchers };
static PyObject *watcher_functions[WATCHER_COUNT], *forward_ad, *level_name;

static bool find_watchers(void)
{
    for (int i = 0; i < WATCHER_COUNT; i++)
        if (!watcher_functions[i])
            watcher_functions[i] = osw_attribute_of("torch._C", watchers[i]);
    forward_ad = PyImport_ImportModule("torch.autograd.forward_ad");
    level_name = PyUnicode_InternFromString("_current_level");
    return watcher_functions[WATCHER_COUNT - 1] && forward_ad && level_name;
}

/* True also where there is no answer, so that the caller keeps off. */
static bool is_watching(int watcher)
{
    PyObject *answer = PyObject_CallObject(watcher_functions[watcher], NULL);
    const int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth != 0;
}

static bool in_forward_ad(void)
{
    PyObject *level = PyObject_GetAttr(forward_ad, level_name);
    const long value = level ? PyLong_AsLong(level) : 0;
    Py_XDECREF(level);
    return value >= 0;
}

bool osw_plain_eager(bool without_autocast)
{
    bool plain = level_name || find_watchers();
    for (int i = 0; plain && i < (without_autocast ? WATCHER_COUNT : AUTOCAST); i++)
        plain = !is_watching(i);
    plain = plain && !in_forward_ad();
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

static PyObject *plain_eager(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyBool_FromLong(osw_plain_eager(false));
}

bool osw_suggests_channels_last(const osw_tensor *t)
{
    if (t->ndim < 4 || t->ndim > 5 || t->stride[1] == 0)
        return false;
    int64_t smallest = 0;
    /* Channels, then space from the last dimension, then the batch. */
    for (int n = 0; n < t->ndim; n++) {
        const int i = n == 0 ? 1 : n == t->ndim - 1 ? 0 : t->ndim - n;
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
    static PyObject *formats[3];
    static const char *const names[] = {"contiguous_format", "channels_last", "channels_last_3d"};
    const int which = channels_last ? ndim - 3 : 0;
    if (!formats[which])
        formats[which] = osw_attribute_of("torch", names[which]);
    return formats[which];
}

static PyObject *plain_tensors(PyObject *module, PyObject *tensors)
{
    (void)module;
    if (!PyTuple_Check(tensors) && !PyList_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "plain_tensors: expected a tuple or list of tensors");
        return NULL;
    }
    const bool is_tuple = PyTuple_Check(tensors);
    const Py_ssize_t count = is_tuple ? PyTuple_Size(tensors) : PyList_Size(tensors);
    bool plain = true;
    for (Py_ssize_t i = 0; plain && i < count; i++) {
        osw_tensor ignored;
        plain = osw_tensor_plain(
            is_tuple ? PyTuple_GetItem(tensors, i) : PyList_GetItem(tensors, i), &ignored);
    }
    return PyBool_FromLong(plain);
}

PyMethodDef osw_tensor_methods[] = {
    {"plain_tensors", plain_tensors, METH_O,
     "Whether kernels may read every tensor of this tuple or list without torch's dispatcher."},
    {"plain_eager", plain_eager, METH_NOARGS,
     "Whether nothing but autograd and autocast watches over operators."},
    {NULL, NULL, 0, NULL},
};
