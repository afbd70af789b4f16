/* SPDX-License-Identifier: MIT */
/* Entries of dictionaries, as those of classes and of modules of Python, that shall stay what they
 * are.
 *
 * pack_entries(entries): for entries_stand(packed), which looks each up again. The entries must
 * live as long as what is packed, which only has their addresses: so the garbage collector sees
 * what they hold. As for seals, nearly all of the time is spent on waiting for memory, which is
 * asked for ahead. */
#include "binding/binding.h"

enum { DICT, NAME, VALUE, ENTRY_SIZE, AHEAD = 8 };

/* value: NULL if there is none of this name. */
typedef struct osw_entry {
    PyObject *dict, *name;
    const PyObject *value;
} osw_entry;

typedef struct osw_entries {
    Py_ssize_t count;
    osw_entry entry[];
} osw_entries;

static const char capsule_name[] = "opswap.entries";

static void free_capsule(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, capsule_name));
}

/* -1 if the object is no triple of a dictionary, a text, and a tuple of one value or none. */
static int fill_entry(PyObject *given, osw_entry *entry)
{
    if (!PyTuple_Check(given) || PyTuple_Size(given) != ENTRY_SIZE)
        return -1;
    PyObject *dict = PyTuple_GetItem(given, DICT), *name = PyTuple_GetItem(given, NAME);
    PyObject *value = PyTuple_GetItem(given, VALUE);
    if (!PyDict_CheckExact(dict) || !PyUnicode_CheckExact(name) || !PyTuple_Check(value) ||
        PyTuple_Size(value) > 1)
        return -1;
    *entry = (osw_entry){dict, name, PyTuple_Size(value) == 1 ? PyTuple_GetItem(value, 0) : NULL};
    return 0;
}

OSW_ENTRY(pack_entries)
{
    const Py_ssize_t count = nargs == 1 && PyTuple_Check(args[0]) ? PyTuple_Size(args[0]) : -1;
    osw_entries *entries = NULL;
    if (count >= 0) {
        entries = PyMem_Malloc(sizeof *entries + (size_t)count * sizeof *entries->entry);
        if (!entries)
            return PyErr_NoMemory();
        entries->count = count;
    }
    for (Py_ssize_t i = 0; entries && i < count; i++)
        if (fill_entry(PyTuple_GetItem(args[0], i), &entries->entry[i]) != 0) {
            PyMem_Free(entries);
            entries = NULL;
        }
    if (!entries)
        return PyErr_Format(PyExc_TypeError,
                            "pack_entries: expected a tuple of entries, each a "
                            "dictionary, a text, and a tuple of one value or none");
    PyObject *capsule = PyCapsule_New(entries, capsule_name, free_capsule);
    if (!capsule)
        PyMem_Free(entries);
    return capsule;
}

static void ask_for(const osw_entry *entry)
{
    __builtin_prefetch(entry->dict);
    __builtin_prefetch(entry->name);
}

OSW_ENTRY(entries_stand)
{
    const osw_entries *entries = nargs == 1 && PyCapsule_CheckExact(args[0])
                                     ? PyCapsule_GetPointer(args[0], capsule_name)
                                     : NULL;
    if (!entries)
        return PyErr_Format(PyExc_TypeError, "entries_stand: expected packed entries");
    for (Py_ssize_t i = 0; i < AHEAD && i < entries->count; i++)
        ask_for(&entries->entry[i]);
    for (Py_ssize_t i = 0; i < entries->count; i++) {
        const osw_entry *entry = &entries->entry[i];
        if (i + AHEAD < entries->count)
            ask_for(&entries->entry[i + AHEAD]);
        const PyObject *value = PyDict_GetItemWithError(entry->dict, entry->name);
        if (!value && PyErr_Occurred())
            return NULL;
        if (value != entry->value)
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

PyMethodDef osw_entries_methods[] = {
    OSW_ENTRY_LINE(pack_entries,
                   "pack_entries(entries, /)\n--\n\nEntries for `entries_stand`, while they live: "
                   "(dictionary, name, (value,)), or (dictionary, name, ()) if it has none."),
    OSW_ENTRY_LINE(
        entries_stand,
        "entries_stand(packed, /)\n--\n\nTrue if the dictionaries hold these objects still."),
    {NULL, NULL, 0, NULL},
};
