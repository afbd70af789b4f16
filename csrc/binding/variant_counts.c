/* SPDX-License-Identifier: MIT */
#include "binding/variant_counts.h"

PyObject *osw_variant_counts(int count, const char *const *names, const uint64_t *calls)
{
    PyObject *counts = PyDict_New();
    for (int i = 0; counts && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(calls[i]);
        if (!number || PyDict_SetItemString(counts, names[i], number) != 0)
            Py_CLEAR(counts);
        Py_XDECREF(number);
    }
    return counts;
}
