/* SPDX-License-Identifier: MIT */
#include "binding/profile.h"

#include "binding/torch_names.h"

#include <stdbool.h>
#include <stdio.h>

/* torch keeps this in a variable of Python, which costs less to read than a call of torch. */
static bool is_profiling(void)
{
    static PyObject *name;
    PyObject *profiler = osw_torch(OSW_TORCH_PROFILER);
    if (!name)
        name = PyUnicode_InternFromString("_is_profiler_enabled");
    if (!profiler || !name)
        return false;
    return PyDict_GetItem(PyModule_GetDict(profiler), name) == Py_True;
}

static PyObject *begin(const char *name)
{
    char text[64];
    const int collects = PyGC_Disable(); /* a collection could run finalizers of users */
    snprintf(text, sizeof text, "opswap.%s", name);
    PyObject *type = osw_torch(OSW_TORCH_RECORD_FUNCTION);
    PyObject *range = type ? PyObject_CallFunction(type, "s", text) : NULL;
    PyObject *entered = range ? PyObject_CallMethod(range, "__enter__", NULL) : NULL;
    if (!entered)
        Py_CLEAR(range);
    Py_XDECREF(entered);
    PyErr_Clear();
    if (collects)
        PyGC_Enable();
    return range;
}

PyObject *osw_profile_begin(const char *name)
{
    return is_profiling() ? begin(name) : NULL;
}

void osw_profile_end(PyObject *range)
{
    PyObject *kind, *value, *trace;
    if (!range)
        return;
    PyErr_Fetch(&kind, &value, &trace);
    const int collects = PyGC_Disable();
    PyObject *left = PyObject_CallMethod(range, "__exit__", "OOO", Py_None, Py_None, Py_None);
    Py_XDECREF(left);
    Py_DECREF(range);
    if (collects)
        PyGC_Enable();
    PyErr_Restore(kind, value, trace);
}
