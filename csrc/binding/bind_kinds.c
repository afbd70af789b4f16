/* SPDX-License-Identifier: MIT */
/* What a tensor may get with other memory and still be the same object.
 *
 * pack_kinds(tensors, placed): of which kinds these tensors are, dtype, sizes and strides, and if
 * `placed` where they lie. are_as(tensors, packed): whether they still are. kind_of(tensor, most):
 * the kind of one. As for seals most of the time is spent on waiting for memory: what lies where is
 * asked for ahead. */
#include "binding/binding.h"
#include "binding/tensor_arg.h"

#include <string.h>

enum { AHEAD = 8, LINE = 64, MOST_NUMBERS = 2 + 2 * OSW_MAX_DIMS };

/* near: an address inside of each tensor, as torch holds it. numbers: of all, one after another. */
typedef struct osw_kinds {
    Py_ssize_t count;
    bool placed;
    const void **near;
    int64_t *numbers;
} osw_kinds;

static const char capsule_name[] = "opswap.kinds";

static void free_kinds(osw_kinds *kinds)
{
    PyMem_Free(kinds->near);
    PyMem_Free(kinds->numbers);
    PyMem_Free(kinds);
}

static void free_capsule(PyObject *capsule)
{
    osw_kinds *kinds = PyCapsule_GetPointer(capsule, capsule_name);
    if (kinds)
        free_kinds(kinds);
}

/* Dtype and number of dimensions, sizes, strides; the address. Returns how many numbers. */
static int describe(const osw_tensor *t, bool placed, int64_t *numbers)
{
    int count = 0;
    numbers[count++] = (int64_t)t->dtype.code << 32 | (int64_t)t->dtype.bits << 16 | t->ndim;
    for (int i = 0; i < t->ndim; i++)
        numbers[count++] = t->size[i];
    for (int i = 0; i < t->ndim; i++)
        numbers[count++] = t->stride[i];
    if (placed)
        numbers[count++] = (int64_t)(intptr_t)t->data;
    return count;
}

/* -1 with an exception. */
static int fill_kinds(osw_kinds *kinds, PyObject *tensors)
{
    int64_t *to = kinds->numbers;
    for (Py_ssize_t i = 0; i < kinds->count; i++) {
        PyObject *object = PyTuple_GetItem(tensors, i);
        osw_tensor t;
        if (osw_tensor_arg(object, "pack_kinds", &t) != 0)
            return -1;
        kinds->near[i] = osw_tensor_near(object);
        to += describe(&t, kinds->placed, to);
    }
    return 0;
}

OSW_ENTRY(pack_kinds)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyBool_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "pack_kinds: expected a tuple of tensors and a bool");
    osw_kinds *kinds = PyMem_Calloc(1, sizeof *kinds);
    if (!kinds)
        return PyErr_NoMemory();
    const size_t count = (size_t)PyTuple_Size(args[0]);
    *kinds = (osw_kinds){.count = (Py_ssize_t)count,
                         .placed = args[1] == Py_True,
                         .near = PyMem_Calloc(count + 1, sizeof *kinds->near),
                         .numbers = PyMem_Calloc(count * MOST_NUMBERS + 1, sizeof(int64_t))};
    PyObject *capsule = NULL;
    if (!kinds->near || !kinds->numbers)
        PyErr_NoMemory();
    else if (fill_kinds(kinds, args[0]) == 0)
        capsule = PyCapsule_New(kinds, capsule_name, free_capsule);
    if (!capsule)
        free_kinds(kinds);
    return capsule;
}

static void ask_for(const void *object, const void *near)
{
    __builtin_prefetch(object);
    for (int i = -1; i <= 1; i++)
        __builtin_prefetch((const void *)((uintptr_t)near + (uintptr_t)(i * LINE)));
}

OSW_ENTRY(are_as)
{
    const osw_kinds *kinds = nargs == 2 && PyTuple_Check(args[0]) && PyCapsule_CheckExact(args[1])
                                 ? PyCapsule_GetPointer(args[1], capsule_name)
                                 : NULL;
    if (!kinds)
        return PyErr_Format(PyExc_TypeError,
                            "are_as: expected a tuple of tensors and packed kinds");
    if (PyTuple_Size(args[0]) != kinds->count)
        Py_RETURN_FALSE;
    const int64_t *expected = kinds->numbers;
    for (Py_ssize_t i = 0; i < AHEAD && i < kinds->count; i++)
        ask_for(PyTuple_GetItem(args[0], i), kinds->near[i]);
    for (Py_ssize_t i = 0; i < kinds->count; i++) {
        int64_t numbers[MOST_NUMBERS];
        osw_tensor t;
        if (i + AHEAD < kinds->count)
            ask_for(PyTuple_GetItem(args[0], i + AHEAD), kinds->near[i + AHEAD]);
        if (osw_tensor_arg(PyTuple_GetItem(args[0], i), "are_as", &t) != 0) {
            PyErr_Clear();
            Py_RETURN_FALSE;
        }
        const int count = describe(&t, kinds->placed, numbers);
        if (memcmp(numbers, expected, (size_t)count * sizeof *numbers) != 0)
            Py_RETURN_FALSE;
        expected += count;
    }
    Py_RETURN_TRUE;
}

/* As bytes, which a dictionary finds again. */
OSW_ENTRY(kind_of)
{
    osw_tensor t;
    const long long most = nargs == 2 && PyLong_Check(args[1]) ? PyLong_AsLongLong(args[1]) : -1;
    if (most < 0)
        return PyErr_Format(PyExc_TypeError, "kind_of: expected a tensor and a number");
    if (osw_tensor_arg(args[0], "kind_of", &t) != 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (t.numel > most)
        Py_RETURN_NONE;
    int64_t numbers[MOST_NUMBERS];
    const int count = describe(&t, false, numbers);
    return PyBytes_FromStringAndSize((const char *)numbers, count * (Py_ssize_t)sizeof *numbers);
}

PyMethodDef osw_kinds_methods[] = {
    OSW_ENTRY_LINE(
        pack_kinds,
        "pack_kinds(tensors, placed, /)\n--\n\nDtypes, sizes and strides for `are_as`, if `placed` "
        "addresses too. Raises for what is not on the CPU, or has no memory of its own."),
    OSW_ENTRY_LINE(are_as, "are_as(tensors, packed, /)\n--\n\nTrue if these tensors still are what "
                           "`pack_kinds` has seen."),
    OSW_ENTRY_LINE(
        kind_of, "kind_of(tensor, most, /)\n--\n\nDtype, sizes and strides as bytes; None for what "
                 "is not on the CPU, has no memory of its own, or more elements than `most`."),
    {NULL, NULL, 0, NULL},
};
