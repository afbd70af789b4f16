/* SPDX-License-Identifier: MIT */
/* What decides about a call of a module, in the form that is compared in the next call.
 *
 * unaltered(modules, seals): compares the dictionaries of modules with what they held before.
 *
 * A seal is (class, kinds, names, values), the last three with one of each for every entry of the
 * module's dictionary in its order. Objects are compared by identity alone, so that no code of a
 * user runs meanwhile. Seals of modules of one kind share what they can: most of the time is spent
 * on waiting for memory.
 *
 * tensor_kinds(tensors): what a tensor may get with other memory and still be the same object. */
#include "binding/binding.h"
#include "binding/tensor_arg.h"

#include <stdbool.h>

enum { CLASS, KINDS, NAMES, VALUES, SEAL_SIZE };

/* What an entry is compared with: its value; nothing; an empty dictionary; a dictionary of these
 * names and values, one after the other; of these names and the numbers of seals, or None. */
enum { SAME = 'v', ANY = 'a', EMPTY = 'e', TENSORS = 't', MODULES = 'm' };

/* The modules of all seals; NULL: not found yet. A seal comes before those below it. */
typedef struct osw_modules {
    PyObject **at; /* borrowed */
    Py_ssize_t current, count;
} osw_modules;

/* Whether a module may stand for the seal of this number, which is compared later. */
static bool is_below(osw_modules *modules, PyObject *module, PyObject *number)
{
    const Py_ssize_t i = PyLong_Check(number) ? PyLong_AsSsize_t(number) : -1;
    if (i <= modules->current || i >= modules->count) {
        PyErr_Clear();
        return false;
    }
    modules->at[i] = module;
    return true;
}

/* Whether the dictionary holds these names and values; `below`: modules of these seals. */
static bool holds(PyObject *dict, PyObject *pairs, osw_modules *below)
{
    if (!PyDict_Check(dict) || !PyTuple_Check(pairs))
        return false;
    if (2 * PyDict_Size(dict) != PyTuple_Size(pairs))
        return false;
    PyObject *name, *value;
    bool same = true;
    for (Py_ssize_t place = 0, i = 0; same && PyDict_Next(dict, &place, &name, &value); i += 2) {
        PyObject *expected = PyTuple_GetItem(pairs, i + 1);
        same = name == PyTuple_GetItem(pairs, i);
        if (same && below && expected != Py_None)
            same = is_below(below, value, expected);
        else if (same)
            same = value == expected;
    }
    return same;
}

static bool is_as(PyObject *value, char kind, PyObject *expected, osw_modules *modules)
{
    switch (kind) {
    case SAME:
        return value == expected;
    case EMPTY:
        return PyDict_Check(value) && PyDict_Size(value) == 0;
    case TENSORS:
        return holds(value, expected, NULL);
    case MODULES:
        return holds(value, expected, modules);
    default:
        return false;
    }
}

/* The entries of a seal; 0 if it does not have the parts of one, for a dictionary of none too. */
static Py_ssize_t entries_of(PyObject *seal)
{
    if (!PyTuple_Check(seal) || PyTuple_Size(seal) != SEAL_SIZE)
        return 0;
    PyObject *kinds = PyTuple_GetItem(seal, KINDS), *names = PyTuple_GetItem(seal, NAMES);
    PyObject *values = PyTuple_GetItem(seal, VALUES);
    if (!PyBytes_Check(kinds) || !PyTuple_Check(names) || !PyTuple_Check(values))
        return 0;
    const Py_ssize_t count = PyBytes_Size(kinds);
    const bool fits = PyTuple_Size(names) == count && PyTuple_Size(values) == count;
    return fits ? count : 0;
}

static bool has_entries(PyObject *dict, PyObject *seal, Py_ssize_t count, osw_modules *modules)
{
    const char *kinds = PyBytes_AsString(PyTuple_GetItem(seal, KINDS));
    PyObject *names = PyTuple_GetItem(seal, NAMES), *values = PyTuple_GetItem(seal, VALUES);
    bool same = PyDict_Size(dict) == count;
    PyObject *name, *value;
    for (Py_ssize_t place = 0, i = 0; same && PyDict_Next(dict, &place, &name, &value); i++) {
        if (name != PyTuple_GetItem(names, i))
            same = false;
        else if (kinds[i] != ANY)
            same = is_as(value, kinds[i], PyTuple_GetItem(values, i), modules);
    }
    return same;
}

/* 1, 0, or -1 with an exception set. */
static int is_sealed(osw_modules *modules, PyObject *seal)
{
    PyObject *module = modules->at[modules->current];
    const Py_ssize_t count = entries_of(seal);
    if (count == 0) {
        PyErr_SetString(PyExc_TypeError, "unaltered: a seal does not have the parts of one");
        return -1;
    }
    if (!module || (PyObject *)Py_TYPE(module) != PyTuple_GetItem(seal, CLASS))
        return 0;
    PyObject *dict = PyObject_GenericGetDict(module, NULL);
    if (!dict)
        return -1;
    const bool same = has_entries(dict, seal, count, modules);
    Py_DECREF(dict);
    return same;
}

OSW_ENTRY(unaltered)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "unaltered: expected two tuples, of modules and of seals");
        return NULL;
    }
    const Py_ssize_t given = PyTuple_Size(args[0]);
    osw_modules modules = {.count = PyTuple_Size(args[1])};
    if (given > modules.count)
        Py_RETURN_FALSE;
    modules.at = PyMem_Calloc((size_t)modules.count + 1, sizeof *modules.at);
    if (!modules.at)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < given; i++)
        modules.at[i] = PyTuple_GetItem(args[0], i);
    int same = 1;
    for (; same == 1 && modules.current < modules.count; modules.current++)
        same = is_sealed(&modules, PyTuple_GetItem(args[1], modules.current));
    PyMem_Free(modules.at);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

/* Of a tensor: dtype and number of dimensions, then sizes, then strides. */
enum { KIND_NUMBERS = 1 + 2 * OSW_MAX_DIMS };

static int64_t *put_kind(int64_t *to, const osw_tensor *t)
{
    *to++ = (int64_t)t->dtype.code << 32 | (int64_t)t->dtype.bits << 16 | t->ndim;
    for (int i = 0; i < t->ndim; i++)
        *to++ = t->size[i];
    for (int i = 0; i < t->ndim; i++)
        *to++ = t->stride[i];
    return to;
}

OSW_ENTRY(tensor_kinds)
{
    if (nargs != 1 || !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "tensor_kinds: expected a tuple of tensors");
        return NULL;
    }
    const Py_ssize_t count = PyTuple_Size(args[0]);
    int64_t *kinds = PyMem_Malloc((size_t)count * KIND_NUMBERS * sizeof *kinds + 1), *end = kinds;
    if (!kinds)
        return PyErr_NoMemory();
    osw_tensor t;
    Py_ssize_t i = 0;
    for (; i < count && osw_tensor_arg(PyTuple_GetItem(args[0], i), "tensor", &t) == 0; i++)
        end = put_kind(end, &t);
    PyErr_Clear();
    PyObject *found = NULL;
    if (i == count)
        found = PyBytes_FromStringAndSize((const char *)kinds, (end - kinds) * (int)sizeof *kinds);
    PyMem_Free(kinds);
    if (i == count)
        return found;
    Py_RETURN_NONE;
}

PyMethodDef osw_modules_methods[] = {
    OSW_ENTRY_LINE(tensor_kinds,
                   "tensor_kinds(tensors, /)\n--\n\n"
                   "The dtypes, sizes and strides of a tuple of tensors, as bytes to compare; None "
                   "if one is not on the CPU, or has no memory of its own."),
    OSW_ENTRY_LINE(unaltered,
                   "unaltered(modules, seals, /)\n--\n\n"
                   "True if every module, and the modules below it of the seals that follow, "
                   "still hold the objects that their seals list."),
    {NULL, NULL, 0, NULL},
};
