/* SPDX-License-Identifier: MIT */
/* unaltered(modules, seals): compares the dictionaries of modules with what they held before. */
#include "binding/binding.h"

#include <stdbool.h>

/* What a seal of one module holds, in this order. */
enum { CLASS, FORWARDS, EMPTY, OWN, NESTED, SEAL_SIZE };

/* dict[key] is value; -1 with an exception set. */
static int is_entry(PyObject *dict, PyObject *key, PyObject *value)
{
    PyObject *found = PyDict_GetItemWithError(dict, key);
    return !found && PyErr_Occurred() ? -1 : found == value;
}

/* pairs: (key, value, key, value, ...), all of them in dict. */
static int has_entries(PyObject *dict, PyObject *pairs)
{
    const Py_ssize_t size = PyTuple_Size(pairs);
    int same = 1;
    for (Py_ssize_t i = 0; same == 1 && i + 1 < size; i += 2)
        same = is_entry(dict, PyTuple_GetItem(pairs, i), PyTuple_GetItem(pairs, i + 1));
    return same;
}

/* names: of dictionaries in dict, none of which has an entry. */
static int are_empty(PyObject *dict, PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++) {
        PyObject *inner = PyDict_GetItemWithError(dict, PyTuple_GetItem(names, i));
        if (!inner || !PyDict_Check(inner))
            return PyErr_Occurred() ? -1 : 0;
        if (PyDict_Size(inner) != 0)
            return 0;
    }
    return 1;
}

/* nested: (name, pairs, name, pairs, ...), dictionaries in dict and what they hold. */
static int have_entries(PyObject *dict, PyObject *nested)
{
    const Py_ssize_t size = PyTuple_Size(nested);
    int same = 1;
    for (Py_ssize_t i = 0; same == 1 && i + 1 < size; i += 2) {
        PyObject *inner = PyDict_GetItemWithError(dict, PyTuple_GetItem(nested, i));
        if (!inner || !PyDict_Check(inner))
            return PyErr_Occurred() ? -1 : 0;
        same = has_entries(inner, PyTuple_GetItem(nested, i + 1));
    }
    return same;
}

/* Both names stand for the same object, or for nothing. */
static int is_own_forward(PyObject *dict, PyObject *names)
{
    PyObject *forward = PyDict_GetItemWithError(dict, PyTuple_GetItem(names, 0));
    if (!forward && PyErr_Occurred())
        return -1;
    PyObject *own = PyDict_GetItemWithError(dict, PyTuple_GetItem(names, 1));
    return !own && PyErr_Occurred() ? -1 : forward == own;
}

static int is_sealed(PyObject *module, PyObject *seal)
{
    if ((PyObject *)Py_TYPE(module) != PyTuple_GetItem(seal, CLASS))
        return 0;
    PyObject *dict = PyObject_GenericGetDict(module, NULL);
    if (!dict)
        return -1;
    int same = is_own_forward(dict, PyTuple_GetItem(seal, FORWARDS));
    if (same == 1)
        same = are_empty(dict, PyTuple_GetItem(seal, EMPTY));
    if (same == 1)
        same = has_entries(dict, PyTuple_GetItem(seal, OWN));
    if (same == 1)
        same = have_entries(dict, PyTuple_GetItem(seal, NESTED));
    Py_DECREF(dict);
    return same;
}

static bool is_seal(PyObject *seal)
{
    if (!PyTuple_Check(seal) || PyTuple_Size(seal) != SEAL_SIZE)
        return false;
    bool fits = PyTuple_Size(PyTuple_GetItem(seal, FORWARDS)) == 2;
    for (Py_ssize_t i = FORWARDS; fits && i < SEAL_SIZE; i++)
        fits = PyTuple_Check(PyTuple_GetItem(seal, i));
    return fits;
}

OSW_ENTRY(unaltered)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "unaltered: expected two tuples, of modules and of seals");
        return NULL;
    }
    const Py_ssize_t count = PyTuple_Size(args[0]);
    int same = count == PyTuple_Size(args[1]);
    for (Py_ssize_t i = 0; same == 1 && i < count; i++) {
        PyObject *seal = PyTuple_GetItem(args[1], i);
        if (!is_seal(seal)) {
            PyErr_Format(PyExc_TypeError, "unaltered: seal %zd does not have the parts of one", i);
            return NULL;
        }
        same = is_sealed(PyTuple_GetItem(args[0], i), seal);
    }
    return PyErr_Occurred() ? NULL : PyBool_FromLong(same);
}

PyMethodDef osw_modules_methods[] = {
    OSW_ENTRY_LINE(unaltered, "unaltered(modules, seals, /)\n--\n\n"
                              "True if every module still holds the objects that its seal lists."),
    {NULL, NULL, 0, NULL},
};
