/* SPDX-License-Identifier: MIT */
/* unaltered(modules, seals): compares the dictionaries of modules with what they held before.
 *
 * A seal is (class, kinds, names, values), the last three with one of each for every entry of the
 * module's dictionary in its order. Objects are compared by identity alone, so that no code of a
 * user runs meanwhile. Seals of modules of one kind share what they can: most of the time is spent
 * on waiting for memory. */
#include "binding/binding.h"

#include <stdbool.h>

enum { CLASS, KINDS, NAMES, VALUES, SEAL_SIZE };

/* What an entry is compared with: its value; nothing; an empty dictionary; a dictionary of these
 * names and values, one after the other; of these names and seals of modules, or None. */
enum { SAME = 'v', ANY = 'a', EMPTY = 'e', TENSORS = 't', MODULES = 'm' };

static int is_sealed(PyObject *module, PyObject *seal);

/* Whether the dictionary holds these names and values, or modules of these seals. */
static int holds(PyObject *dict, PyObject *pairs, bool of_modules)
{
    if (!PyDict_Check(dict) || !PyTuple_Check(pairs))
        return 0;
    if (2 * PyDict_Size(dict) != PyTuple_Size(pairs))
        return 0;
    PyObject *name, *value;
    int same = 1;
    for (Py_ssize_t place = 0, i = 0; same == 1 && PyDict_Next(dict, &place, &name, &value);
         i += 2) {
        PyObject *expected = PyTuple_GetItem(pairs, i + 1);
        same = name == PyTuple_GetItem(pairs, i);
        if (same && of_modules && expected != Py_None)
            same = is_sealed(value, expected);
        else if (same)
            same = value == expected;
    }
    return same;
}

static int is_as(PyObject *value, char kind, PyObject *expected)
{
    switch (kind) {
    case SAME:
        return value == expected;
    case EMPTY:
        return PyDict_Check(value) && PyDict_Size(value) == 0;
    case TENSORS:
    case MODULES:
        return holds(value, expected, kind == MODULES);
    default:
        return 0;
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

static int has_entries(PyObject *dict, PyObject *seal, Py_ssize_t count)
{
    const char *kinds = PyBytes_AsString(PyTuple_GetItem(seal, KINDS));
    PyObject *names = PyTuple_GetItem(seal, NAMES), *values = PyTuple_GetItem(seal, VALUES);
    int same = PyDict_Size(dict) == count;
    PyObject *name, *value;
    for (Py_ssize_t place = 0, i = 0; same == 1 && PyDict_Next(dict, &place, &name, &value); i++) {
        if (name != PyTuple_GetItem(names, i))
            same = 0;
        else if (kinds[i] != ANY)
            same = is_as(value, kinds[i], PyTuple_GetItem(values, i));
    }
    return same;
}

/* 1, 0, or -1 with an exception set. */
static int is_sealed(PyObject *module, PyObject *seal)
{
    const Py_ssize_t count = entries_of(seal);
    if (count == 0) {
        PyErr_SetString(PyExc_TypeError, "unaltered: a seal does not have the parts of one");
        return -1;
    }
    if ((PyObject *)Py_TYPE(module) != PyTuple_GetItem(seal, CLASS))
        return 0;
    PyObject *dict = PyObject_GenericGetDict(module, NULL);
    if (!dict)
        return -1;
    const int same = has_entries(dict, seal, count);
    Py_DECREF(dict);
    return same;
}

OSW_ENTRY(unaltered)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "unaltered: expected two tuples, of modules and of seals");
        return NULL;
    }
    const Py_ssize_t count = PyTuple_Size(args[0]);
    int same = count == PyTuple_Size(args[1]);
    for (Py_ssize_t i = 0; same == 1 && i < count; i++)
        same = is_sealed(PyTuple_GetItem(args[0], i), PyTuple_GetItem(args[1], i));
    return same < 0 ? NULL : PyBool_FromLong(same);
}

PyMethodDef osw_modules_methods[] = {
    OSW_ENTRY_LINE(unaltered, "unaltered(modules, seals, /)\n--\n\n"
                              "True if every module still holds the objects that its seal lists."),
    {NULL, NULL, 0, NULL},
};
