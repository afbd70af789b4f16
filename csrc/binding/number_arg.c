/* SPDX-License-Identifier: MIT */
#include "binding/number_arg.h"

#include <stdarg.h>

int osw_raise(PyObject *kind, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyErr_FormatV(kind, format, values);
    va_end(values);
    return -1;
}

bool osw_expect(const char *name, Py_ssize_t nargs, Py_ssize_t wanted)
{
    if (nargs == wanted)
        return true;
    PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd", name, wanted, nargs);
    return false;
}

/* An int within [low, high]; an error quotes `quoted`. */
static int read_int(const char *name, const char *what, PyObject *object, PyObject *quoted,
                    int64_t low, int64_t high, int64_t *value)
{
    *value = PyLong_AsLongLong(object);
    const bool failed = *value == -1 && PyErr_Occurred();
    if (failed && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (!failed && *value >= low && *value <= high)
        return 0;
    PyErr_Clear();
    return osw_raise(PyExc_RuntimeError, "%s: %s must be from %lld to %lld, got %R", name, what,
                     (long long)low, (long long)high, quoted);
}

int osw_int_arg(const char *name, const char *what, PyObject *object, int64_t low, int64_t high,
                int64_t *value)
{
    return read_int(name, what, object, object, low, high, value);
}

int osw_ints_arg(const char *name, const char *what, PyObject *tuple, int count, int64_t low,
                 int64_t high, int64_t *values)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count)
        return osw_raise(PyExc_TypeError, "%s: %s must be a tuple of %d ints, got %R", name, what,
                         count, tuple);
    for (int i = 0; i < count; i++)
        if (read_int(name, what, PyTuple_GetItem(tuple, i), tuple, low, high, &values[i]) != 0)
            return -1;
    return 0;
}

int osw_float_arg(PyObject *object, double *value)
{
    *value = PyFloat_AsDouble(object);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

bool osw_exact_int(PyObject *object, int64_t low, int64_t high, int64_t *value)
{
    if (!PyLong_CheckExact(object))
        return false;
    *value = PyLong_AsLongLong(object);
    if (*value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return *value >= low && *value <= high;
}

bool osw_exact_sides(PyObject *object, int count, bool of_one, int64_t low, int64_t *sides)
{
    const bool is_tuple = PyTuple_Check(object), is_list = PyList_Check(object);
    const Py_ssize_t length = is_tuple ? PyTuple_Size(object) : is_list ? PyList_Size(object) : 1;
    bool fits = length == count || (length == 1 && (of_one || !(is_tuple || is_list)));
    for (int i = 0; fits && i < count; i++) {
        const Py_ssize_t at = length == 1 ? 0 : i;
        PyObject *side = is_tuple  ? PyTuple_GetItem(object, at)
                         : is_list ? PyList_GetItem(object, at)
                                   : object;
        fits = osw_exact_int(side, low, INT32_MAX, &sides[i]);
    }
    return fits;
}

bool osw_plain_sides(PyObject *object, int count, int64_t low, int64_t *sides)
{
    return (PyLong_CheckExact(object) || PyTuple_CheckExact(object) || PyList_CheckExact(object)) &&
           osw_exact_sides(object, count, false, low, sides);
}
