/* SPDX-License-Identifier: MIT */
/* What decides about a call of a module, in the form that is compared in the next call.
 *
 * pack_seals(seals): for unaltered(modules, packed), which compares the dictionaries of modules
 * with what they held before. The seals must live as long as what is packed, which only has their
 * addresses: so the garbage collector sees what they hold.
 *
 * A seal is (class, kinds, names, values), the last three with one of each for every entry of the
 * module's dictionary in its order. Objects are compared by identity alone, so that no code of a
 * user runs meanwhile. Nearly all of the time is spent on waiting for memory, since kernels have
 * run between two comparisons: packed, the seals lie in one line, and the parts of a module are
 * asked for while those before it are compared. */
#include "binding/number_arg.h"

#include <stdbool.h>
#include <string.h>

enum { CLASS, KINDS, NAMES, VALUES, SEAL_SIZE };

/* What an entry is compared with: its value; nothing; an empty dictionary; a dictionary of these
 * names and values, one after the other; of these names and the numbers of seals, or None. */
enum { SAME = 'v', ANY = 'a', EMPTY = 'e', TENSORS = 't', MODULES = 'm' };

enum { PARTS = 9, AHEAD = 4, LINE = 64 }; /* parts of a module that are asked for, so many before */

/* An object, of which the address counts alone, or a number. */
typedef union osw_word {
    const PyObject *object;
    Py_ssize_t number;
} osw_word;

/* The entries that modules of one kind have. names: objects; kinds: letters. */
typedef struct osw_layout {
    PyObject *of_names, *of_kinds; /* tuple and bytes */
    Py_ssize_t count;
    osw_word *names;
    char *kinds;
} osw_layout;

/* A module; its values are words from `first` on: per entry that is compared the value, or how many
 * pairs its dictionary holds and then these, a name and a value each, or the number of a seal, NONE
 * for None. */
enum { NONE = -1 };
typedef struct osw_sealed {
    const PyObject *class;
    Py_ssize_t layout, first;
    const void *parts[PARTS]; /* where they lay at the last comparison, which is only a guess */
} osw_sealed;

typedef struct osw_seals {
    Py_ssize_t count, layouts;
    osw_sealed *sealed;
    osw_layout *layout;
    osw_word *word;
} osw_seals;

static const char capsule_name[] = "opswap.seals";

static void free_seals(osw_seals *seals)
{
    for (Py_ssize_t i = 0; i < seals->layouts; i++) {
        PyMem_Free(seals->layout[i].names);
        PyMem_Free(seals->layout[i].kinds);
    }
    PyMem_Free(seals->sealed);
    PyMem_Free(seals->layout);
    PyMem_Free(seals->word);
    PyMem_Free(seals);
}

static void free_capsule(PyObject *capsule)
{
    osw_seals *seals = PyCapsule_GetPointer(capsule, capsule_name);
    if (seals)
        free_seals(seals);
}

/* --- packing ---------------------------------------------------------------------------------- */

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

/* Words that an entry needs; -1 if it is none. */
static Py_ssize_t words_of(char kind, PyObject *value)
{
    switch (kind) {
    case ANY:
    case EMPTY:
        return 0;
    case SAME:
        return 1;
    case TENSORS:
    case MODULES:
        return PyTuple_Check(value) && PyTuple_Size(value) % 2 == 0 ? 1 + PyTuple_Size(value) : -1;
    default:
        return -1;
    }
}

/* The number of a seal below that of number `above`; NONE for None, 0 for all else. */
static Py_ssize_t number_of(PyObject *value, Py_ssize_t above, Py_ssize_t count)
{
    if (value == Py_None)
        return NONE;
    const Py_ssize_t number = PyLong_Check(value) ? PyLong_AsSsize_t(value) : 0;
    PyErr_Clear();
    return number > above && number < count ? number : 0;
}

/* Returns the words behind those of the entry. */
static osw_word *put_value(osw_word *to, char kind, PyObject *value, Py_ssize_t i, Py_ssize_t count)
{
    const Py_ssize_t items = words_of(kind, value) - 1;
    if (kind == SAME)
        (to++)->object = value;
    if (kind != TENSORS && kind != MODULES)
        return to;
    (to++)->number = items / 2;
    for (Py_ssize_t k = 0; k < items; k++) {
        PyObject *item = PyTuple_GetItem(value, k);
        if (kind == MODULES && k % 2 == 1)
            (to++)->number = number_of(item, i, count);
        else
            (to++)->object = item;
    }
    return to;
}

/* The layout of these names and kinds, a new one if there is none yet; -1 with MemoryError. */
static Py_ssize_t layout_of(osw_seals *seals, PyObject *names, PyObject *kinds)
{
    for (Py_ssize_t i = 0; i < seals->layouts; i++)
        if (seals->layout[i].of_names == names && seals->layout[i].of_kinds == kinds)
            return i;
    osw_layout *layout = &seals->layout[seals->layouts];
    const size_t count = (size_t)PyBytes_Size(kinds);
    *layout = (osw_layout){names, kinds, (Py_ssize_t)count,
                           PyMem_Malloc(count * sizeof *layout->names), PyMem_Malloc(count)};
    seals->layouts++;
    if (!layout->names || !layout->kinds) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(layout->kinds, PyBytes_AsString(kinds), count);
    for (size_t i = 0; i < count; i++)
        layout->names[i].object = PyTuple_GetItem(names, (Py_ssize_t)i);
    return seals->layouts - 1;
}

/* How many words all seals need; -1 with TypeError. */
static Py_ssize_t count_words(PyObject *seals)
{
    Py_ssize_t words = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(seals); i++) {
        PyObject *seal = PyTuple_GetItem(seals, i);
        const Py_ssize_t entries = entries_of(seal);
        Py_ssize_t more = entries == 0 ? -1 : 0;
        for (Py_ssize_t k = 0; k < entries && more >= 0; k++) {
            const char kind = PyBytes_AsString(PyTuple_GetItem(seal, KINDS))[k];
            const Py_ssize_t one =
                words_of(kind, PyTuple_GetItem(PyTuple_GetItem(seal, VALUES), k));
            more = one < 0 ? -1 : more + one;
        }
        if (more < 0)
            return osw_raise(PyExc_TypeError, "pack_seals: a seal does not have the parts of one");
        words += more;
    }
    return words;
}

static int fill_seals(osw_seals *seals, PyObject *given)
{
    osw_word *to = seals->word;
    for (Py_ssize_t i = 0; i < seals->count; i++) {
        PyObject *seal = PyTuple_GetItem(given, i), *kinds = PyTuple_GetItem(seal, KINDS);
        PyObject *values = PyTuple_GetItem(seal, VALUES);
        const Py_ssize_t layout = layout_of(seals, PyTuple_GetItem(seal, NAMES), kinds);
        if (layout < 0)
            return -1;
        seals->sealed[i] = (osw_sealed){
            .class = PyTuple_GetItem(seal, CLASS), .layout = layout, .first = to - seals->word};
        for (Py_ssize_t k = 0; k < PyBytes_Size(kinds); k++)
            to = put_value(to, PyBytes_AsString(kinds)[k], PyTuple_GetItem(values, k), i,
                           seals->count);
    }
    return 0;
}

OSW_ENTRY(pack_seals)
{
    if (nargs != 1 || !PyTuple_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "pack_seals: expected a tuple of seals");
    const Py_ssize_t words = count_words(args[0]);
    osw_seals *seals = words < 0 ? NULL : PyMem_Calloc(1, sizeof *seals);
    if (!seals)
        return words < 0 ? NULL : PyErr_NoMemory();
    const size_t count = (size_t)PyTuple_Size(args[0]);
    *seals = (osw_seals){.count = (Py_ssize_t)count,
                         .sealed = PyMem_Calloc(count + 1, sizeof *seals->sealed),
                         .layout = PyMem_Calloc(count + 1, sizeof *seals->layout),
                         .word = PyMem_Calloc((size_t)words + 1, sizeof *seals->word)};
    PyObject *capsule = NULL;
    if (!seals->sealed || !seals->layout || !seals->word)
        PyErr_NoMemory();
    else if (fill_seals(seals, args[0]) == 0)
        capsule = PyCapsule_New(seals, capsule_name, free_capsule);
    if (!capsule)
        free_seals(seals);
    return capsule;
}

/* --- comparing -------------------------------------------------------------------------------- */

/* A comparison. modules: of all seals, borrowed; NULL: not found yet. */
typedef struct osw_look {
    osw_seals *seals;
    const PyObject **modules;
    osw_word *word; /* the next one */
} osw_look;

/* Whether the dictionary holds the names and values that come next; `below`: modules of seals. */
static bool holds(osw_look *look, PyObject *dict, bool below)
{
    const Py_ssize_t pairs = (look->word++)->number;
    const osw_word *word = look->word;
    look->word += 2 * pairs;
    if (!PyDict_Check(dict) || PyDict_Size(dict) != pairs)
        return false;
    PyObject *name, *value;
    bool same = true;
    for (Py_ssize_t place = 0; same && PyDict_Next(dict, &place, &name, &value); word += 2) {
        same = name == word[0].object;
        if (!below)
            same = same && value == word[1].object;
        else if (word[1].number == NONE)
            same = same && value == Py_None;
        else if (word[1].number > 0)
            look->modules[word[1].number] = value;
        else
            same = false;
    }
    return same;
}

static bool is_as(osw_look *look, PyObject *value, char kind)
{
    switch (kind) {
    case SAME:
        return value == (look->word++)->object;
    case EMPTY:
        return PyDict_Check(value) && PyDict_Size(value) == 0;
    default:
        return holds(look, value, kind == MODULES);
    }
}

static bool has_entries(osw_look *look, PyObject *dict, osw_sealed *sealed)
{
    const osw_layout *layout = &look->seals->layout[sealed->layout];
    look->word = look->seals->word + sealed->first;
    bool same = PyDict_Size(dict) == layout->count;
    int part = 2;
    PyObject *name, *value;
    for (Py_ssize_t place = 0, i = 0; same && PyDict_Next(dict, &place, &name, &value); i++) {
        const char kind = layout->kinds[i];
        if (kind != ANY && kind != SAME && part < PARTS)
            sealed->parts[part++] = value;
        same = name == layout->names[i].object && (kind == ANY || is_as(look, value, kind));
    }
    return same;
}

/* The module's own memory begins with where its dictionary is. */
static void ask_for(const osw_sealed *sealed)
{
    for (int i = 0; i < PARTS; i++) {
        const char *at = (const char *)((uintptr_t)sealed->parts[i] - LINE / 2);
        __builtin_prefetch(at);
        __builtin_prefetch((const char *)((uintptr_t)at + LINE));
    }
}

/* 1, 0, or -1 with an exception set. */
static int is_sealed(osw_look *look, Py_ssize_t i)
{
    osw_sealed *sealed = &look->seals->sealed[i];
    const PyObject *module = look->modules[i];
    if (!module || (const PyObject *)Py_TYPE(module) != sealed->class)
        return 0;
    PyObject *dict = PyObject_GenericGetDict((PyObject *)(uintptr_t)module, NULL);
    if (!dict)
        return -1;
    sealed->parts[0] = module;
    sealed->parts[1] = dict;
    const bool same = has_entries(look, dict, sealed);
    Py_DECREF(dict);
    return same;
}

OSW_ENTRY(unaltered)
{
    osw_seals *seals = nargs == 2 && PyTuple_Check(args[0]) && PyCapsule_CheckExact(args[1])
                           ? PyCapsule_GetPointer(args[1], capsule_name)
                           : NULL;
    if (!seals)
        return PyErr_Format(PyExc_TypeError,
                            "unaltered: expected a tuple of modules and packed seals");
    const Py_ssize_t given = PyTuple_Size(args[0]);
    if (given > seals->count)
        Py_RETURN_FALSE;
    const PyObject **modules = PyMem_Calloc((size_t)seals->count + 1, sizeof *modules);
    if (!modules)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < given; i++)
        modules[i] = PyTuple_GetItem(args[0], i);
    osw_look look = {.seals = seals, .modules = modules};
    int same = 1;
    for (Py_ssize_t i = 1; i < AHEAD && i < seals->count; i++)
        ask_for(&seals->sealed[i]);
    for (Py_ssize_t i = 0; same == 1 && i < seals->count; i++) {
        if (i + AHEAD < seals->count)
            ask_for(&seals->sealed[i + AHEAD]);
        same = is_sealed(&look, i);
    }
    PyMem_Free(modules);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

PyMethodDef osw_modules_methods[] = {
    OSW_ENTRY_LINE(pack_seals,
                   "pack_seals(seals, /)\n--\n\nSeals for `unaltered`, while they live."),
    OSW_ENTRY_LINE(
        unaltered,
        "unaltered(modules, packed, /)\n--\n\nTrue if every module, and the modules below it of "
        "the seals that follow, still hold the objects that their seals list."),
    {NULL, NULL, 0, NULL},
};
