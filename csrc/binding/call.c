/* SPDX-License-Identifier: MIT */
#include "binding/call.h"

#include "binding/profile.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

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

int osw_call_tensor(osw_call *call, Py_ssize_t role, PyObject *object)
{
    osw_tensor *t = &call->tensors[role];
    call->objects[role] = object;
    if (call->plain)
        return osw_tensor_plain(object, t) ? 0 : -1;
    return osw_tensor_arg(object, call->name, t);
}

int osw_call_make(osw_call *call, Py_ssize_t role, Py_ssize_t like, osw_new_dtype dtype, int ndim,
                  const int64_t *size, bool channels_last)
{
    PyObject *made = osw_tensor_new(call->objects[like], dtype, call->name, ndim, size,
                                    channels_last, &call->tensors[role]);
    call->objects[role] = call->made[role] = call->newest = made;
    return made ? 0 : -1;
}

PyObject *osw_call_true(const osw_call *Py_UNUSED(call))
{
    return Py_NewRef(Py_True);
}

PyObject *osw_call_made(const osw_call *call, Py_ssize_t role)
{
    return Py_NewRef(call->made[role]);
}

PyObject *osw_call_tuple(const osw_call *call, Py_ssize_t first, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *made = call->made[first + i];
        PyTuple_SetItem(tuple, i, Py_NewRef(made ? made : Py_None));
    }
    return tuple;
}

void *osw_call_room(osw_call *call, size_t bytes)
{
    static char none;
    int i = 0;
    if (bytes == 0)
        return &none;
    while (call->rooms[i])
        i++;
    assert(i < OSW_MAX_ROOMS);
    call->rooms[i] = PyMem_Malloc(bytes);
    return call->rooms[i] ? call->rooms[i] : PyErr_NoMemory();
}

/* Code of the caller's, which could have resized a tensor, runs for no plain one, and not behind
 * the last one that was made. */
static int check_unchanged(const osw_call *call)
{
    for (Py_ssize_t i = 0; !call->plain && i < call->count; i++)
        if (call->objects[i] && call->objects[i] != call->newest &&
            osw_check_unchanged(call->name, &call->tensors[i]) != 0)
            return -1;
    return 0;
}

static int execute(osw_call *call, const osw_entry *entry)
{
    if (entry->numbers && entry->numbers(call) != 0)
        return -1;
    for (int i = 0; i < entry->tensors; i++) {
        PyObject *object = call->args[entry->first + i];
        if ((i < entry->needed || object != Py_None) &&
            osw_call_tensor(call, entry->read[i], object) != 0)
            return -1;
    }
    for (int i = 0; i < OSW_MAX_STEPS && entry->steps[i]; i++) {
        const bool is_last = i + 1 == OSW_MAX_STEPS || !entry->steps[i + 1];
        if ((is_last && check_unchanged(call) != 0) || entry->steps[i](call) != 0)
            return -1;
    }
    return 0;
}

static PyObject *result_of(const osw_call *call, const osw_entry *entry)
{
    if (entry->give)
        return entry->give(call);
    return entry->results > 1 ? osw_call_tuple(call, entry->result, entry->results)
                              : osw_call_made(call, entry->result);
}

/* Drop what was made. Returns `result`, but NotImplemented if the call is declined. */
static PyObject *end(osw_call *call, PyObject *result)
{
    for (Py_ssize_t i = 0; i < call->count; i++)
        Py_XDECREF(call->made[i]);
    for (int i = 0; i < OSW_MAX_ROOMS; i++)
        PyMem_Free(call->rooms[i]);
    if (result || !PyErr_Occurred())
        return result ? result : Py_NewRef(Py_NotImplemented);
    return call->declines ? osw_or_declined(NULL) : NULL;
}

/* Of the calls of this thread; NULL: they are not recorded. */
static _Thread_local PyObject *tape;

bool osw_recording(void)
{
    return tape != NULL;
}

/* Put (function, arguments, result) on the tape in place of what is behind `start`, the calls that
 * made the outputs. Returns the result, or NULL with an exception. */
static PyObject *record(const char *function, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *result, Py_ssize_t start)
{
    PyObject *given = PyTuple_New(nargs);
    for (Py_ssize_t i = 0; given && i < nargs; i++)
        PyTuple_SetItem(given, i, Py_NewRef(args[i]));
    PyObject *entry = given ? Py_BuildValue("[(sNO)]", function, given, result) : NULL;
    const bool kept = entry && PyList_SetSlice(tape, start, PyList_Size(tape), entry) == 0;
    Py_XDECREF(entry);
    if (!kept)
        Py_CLEAR(result);
    return result;
}

OSW_ENTRY(record_calls)
{
    if (nargs != 1 || !(args[0] == Py_None || PyList_Check(args[0])))
        return PyErr_Format(PyExc_TypeError, "record_calls: expected a list or None");
    PyObject *former = tape;
    tape = args[0] == Py_None ? NULL : Py_NewRef(args[0]);
    Py_XDECREF(former);
    Py_RETURN_NONE;
}

OSW_ENTRY_NO_ARGS(recording)
{
    return PyBool_FromLong(osw_recording());
}

PyMethodDef osw_call_methods[] = {
    OSW_ENTRY_LINE(record_calls,
                   "record_calls(list, /)\n--\n\nAdd (function, arguments, result) of every call "
                   "of this thread that makes tensors to the list, until it is called with None."),
    OSW_ENTRY_NO_ARGS_LINE(recording, "Whether this thread records calls."),
    {NULL, NULL, 0, NULL},
};

static PyObject *run_call(const osw_entry *entry, osw_call *call, PyObject *const *args,
                          Py_ssize_t nargs)
{
    call->name = entry->name;
    call->roles = entry->roles;
    call->backward = entry->backward;
    call->args = args;
    const Py_ssize_t start = tape ? PyList_Size(tape) : 0;
    const bool done = osw_expect(call->name, nargs, entry->arguments) && execute(call, entry) == 0;
    PyObject *result = end(call, done ? result_of(call, entry) : call->result);
    return tape && result && entry->called ? record(entry->called, args, nargs, result, start)
                                           : result;
}

PyObject *osw_enter(const osw_entry *entry, bool plain, void *job, PyObject *const *args,
                    Py_ssize_t nargs)
{
    PyObject *objects[OSW_MAX_ROLES] = {NULL}, *made[OSW_MAX_ROLES] = {NULL};
    osw_tensor tensors[OSW_MAX_ROLES] = {{.data = NULL}};
    osw_call call = {.plain = plain,
                     .declines = plain,
                     .job = job,
                     .count = OSW_MAX_ROLES,
                     .objects = objects,
                     .made = made,
                     .tensors = tensors};
    return run_call(entry, &call, args, nargs);
}

PyObject *osw_enter_wide(const osw_entry *entry, bool plain, void *job, Py_ssize_t count,
                         PyObject *const *args, Py_ssize_t nargs)
{
    if (count <= OSW_MAX_ROLES)
        return osw_enter(entry, plain, job, args, nargs);
    const size_t pointers = 2 * (size_t)count * sizeof(PyObject *);
    char *room = PyMem_Malloc(pointers + (size_t)count * sizeof(osw_tensor));
    if (!room)
        return PyErr_NoMemory();
    memset(room, 0, pointers);
    PyObject **objects = (PyObject **)(void *)room;
    osw_call call = {.plain = plain,
                     .declines = plain,
                     .job = job,
                     .count = count,
                     .objects = objects,
                     .made = objects + count,
                     .tensors = (osw_tensor *)(void *)(room + pointers)};
    PyObject *result = run_call(entry, &call, args, nargs);
    PyMem_Free(room);
    return result;
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
