/* SPDX-License-Identifier: MIT */
/* memory_reuse(on), memory_flush(on), memory_flush_save(), memory_flush_restore() */
#include "binding/binding.h"
#include "core/memory.h"

static PyObject *memory_reuse(PyObject *Py_UNUSED(module), PyObject *on)
{
    const int wanted = PyObject_IsTrue(on);
    return wanted < 0 ? NULL : PyBool_FromLong(osw_memory_reuse(wanted));
}

static PyObject *memory_flush(PyObject *Py_UNUSED(module), PyObject *on)
{
    const int wanted = PyObject_IsTrue(on);
    if (wanted < 0)
        return NULL;
    int reached;
    Py_BEGIN_ALLOW_THREADS;
    reached = osw_memory_flush(wanted);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(reached);
}

static PyObject *reached_by(int (*call)(void))
{
    int reached;
    Py_BEGIN_ALLOW_THREADS;
    reached = call();
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(reached);
}

OSW_ENTRY_NO_ARGS(memory_flush_save)
{
    return reached_by(osw_memory_flush_save);
}

OSW_ENTRY_NO_ARGS(memory_flush_restore)
{
    return reached_by(osw_memory_flush_restore);
}

PyMethodDef osw_memory_methods[] = {
    {"memory_reuse", memory_reuse, METH_O, "Keep freed blocks; False if the C library cannot."},
    {"memory_flush", memory_flush, METH_O, "Flush denormals; the number of threads reached."},
    OSW_ENTRY_NO_ARGS_LINE(memory_flush_save, "Save every thread's state, for restore."),
    OSW_ENTRY_NO_ARGS_LINE(memory_flush_restore, "Restore what was saved."),
    {NULL, NULL, 0, NULL},
};
