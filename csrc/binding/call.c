/* SPDX-License-Identifier: MIT */
#include "binding/call.h"

#include "binding/profile.h"

#include <stdarg.h>

PyObject *osw_counts(size_t count, const char *const *names, const uint64_t *calls)
{
    PyObject *counts = PyDict_New();
    for (size_t i = 0; counts && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(calls[i]);
        if (!number || PyDict_SetItemString(counts, names[i], number) != 0)
            Py_CLEAR(counts);
        Py_XDECREF(number);
    }
    return counts;
}

int osw_fail(const char *name, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *text = PyUnicode_FromFormatV(format, values);
    va_end(values);
    if (text)
        PyErr_Format(PyExc_RuntimeError, "%s: %U", name, text);
    Py_XDECREF(text);
    return -1;
}

int osw_call_fail(const osw_call *call, int role, const char *problem, long long got,
                  long long wanted)
{
    return osw_fail(call->name, "%s %s, got %lld, expected %lld", call->roles[role], problem, got,
                    wanted);
}

int osw_call_tensor(osw_call *call, int role, PyObject *object)
{
    osw_tensor *t = &call->tensors[role];
    call->objects[role] = object;
    if (call->plain)
        return osw_tensor_plain(object, t) ? 0 : -1;
    return osw_tensor_arg(object, call->name, t);
}

int osw_call_tensors(osw_call *call, int first, int count, PyObject *const *args)
{
    for (int i = 0; i < count; i++)
        if (osw_call_tensor(call, first + i, args[i]) != 0)
            return -1;
    return 0;
}

int osw_call_make(osw_call *call, int role, int like, osw_new_dtype dtype, int ndim,
                  const int64_t *size, bool channels_last)
{
    PyObject *made = osw_tensor_new(call->objects[like], dtype, call->name, ndim, size,
                                    channels_last, &call->tensors[role]);
    call->objects[role] = call->made[role] = made;
    return made ? 0 : -1;
}

int osw_call_unchanged(const osw_call *call)
{
    return osw_tensors_unchanged(call->name, call->tensors, OSW_MAX_ROLES);
}

PyObject *osw_call_made(const osw_call *call, int role)
{
    return Py_NewRef(call->made[role]);
}

PyObject *osw_call_tuple(const osw_call *call, int first, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *made = call->made[first + i];
        PyTuple_SetItem(tuple, i, Py_NewRef(made ? made : Py_None));
    }
    return tuple;
}

PyObject *osw_call_end(osw_call *call, PyObject *result)
{
    for (int i = 0; i < OSW_MAX_ROLES; i++)
        Py_XDECREF(call->made[i]);
    if (result || PyErr_Occurred())
        return result;
    Py_RETURN_NOTIMPLEMENTED;
}

void *osw_room(size_t bytes)
{
    void *room = PyMem_Malloc(bytes);
    return room ? room : PyErr_NoMemory();
}

osw_running osw_run_begin(const char *name, bool much)
{
    PyObject *range = osw_profile_begin(name);
    return (osw_running){range, much ? PyEval_SaveThread() : NULL};
}

void osw_run_end(osw_running running)
{
    if (running.thread)
        PyEval_RestoreThread(running.thread);
    osw_profile_end(running.range);
}
