/* SPDX-License-Identifier: MIT */
/* opswap._np: images of NumPy into batches, for the workers of a DataLoader; nothing of torch. */
#include "batch/batch.h"
#include "binding_np/arrays.h"
#include "core/isa.h"
#include "core/prefetch.h"

#include <Python.h>

#include <stdlib.h>

/* The tier of a name that opswap._core has accepted. */
static osw_isa isa_of(const char *name)
{
    const osw_isa isa = osw_isa_from_name(name);
    if (isa == OSW_ISA_COUNT)
        PyErr_Format(PyExc_ValueError, "opswap._np: unknown tier '%s'", name);
    return isa;
}

static PyObject *isa_current(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyUnicode_FromString(osw_isa_name(osw_isa_current()));
}

static PyObject *isa_limit(PyObject *module, PyObject *name)
{
    (void)module;
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    const osw_isa isa = text ? isa_of(text) : OSW_ISA_COUNT;
    if (isa == OSW_ISA_COUNT)
        return NULL;
    osw_isa_limit(isa);
    Py_RETURN_NONE;
}

static PyMethodDef isa_methods[] = {
    {"isa_current", isa_current, METH_NOARGS, "The tier in use."},
    {"isa_limit", isa_limit, METH_O, "Use at most this tier."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    if (osw_numpy_start() != 0 || PyModule_AddFunctions(module, isa_methods) != 0 ||
        PyModule_AddFunctions(module, osw_array_methods) != 0)
        return -1;
    const char *name = getenv("OPSWAP_ISA");
    if (name && *name) {
        const osw_isa isa = isa_of(name);
        if (isa == OSW_ISA_COUNT)
            return -1;
        osw_isa_cap(isa);
    }
    osw_prefetch_detect();
    return osw_isa_register(osw_batch_select);
}

/* CPython keeps the function in a void pointer, a conversion that ISO C leaves out. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, __extension__(void *) execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "opswap._np",
    .m_doc = "Images of NumPy into batches; called by opswap.shapes only.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__np(void)
{
    return PyModuleDef_Init(&definition);
}
