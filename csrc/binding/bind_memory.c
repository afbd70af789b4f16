/* SPDX-License-Identifier: MIT */
/* memory_reuse(on), memory_flush(on), memory_flush_save(), memory_flush_restore() */
#include "binding/binding.h"
#include "core/memory.h"

static PyObject *memory_reuse(PyObject *module, PyObject *on)
{
    (void)module;
    const int wanted = PyObject_IsTrue(on);
    return wanted < 0 ? NULL : PyBool_FromLong(osw_memory_reuse(wanted));
}

static PyObject *memory_flush(PyObject *module, PyObject *on)
{
    (void)module;
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

static PyObject *memory_flush_save(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    return reached_by(osw_memory_flush_save);
}

static PyObject *memory_flush_restore(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    return reached_by(osw_memory_flush_restore);
}

PyMethodDef osw_memory_methods[] = {
    {"memory_reuse", memory_reuse, METH_O, "Keep freed blocks; False where the C library cannot."},
    {"memory_flush", memory_flush, METH_O, "Flush denormals; the number of threads reached."},
    {"memory_flush_save", memory_flush_save, METH_NOARGS,
     "Save every thread's state, for restore."},
    {"memory_flush_restore", memory_flush_restore, METH_NOARGS, "Restore what was saved."},
    {NULL, NULL, 0, NULL},
};
