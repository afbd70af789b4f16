/* SPDX-License-Identifier: MIT */
/* isa_available(), isa_current(), isa_limit(name), threads() */
#include "binding/number_arg.h"
#include "chain/chain.h"
#include "channels/channels.h"
#include "conv/conv.h"
#include "core/isa.h"
#include "core/parallel.h"
#include "core/prefetch.h"
#include "depthwise/depthwise.h"
#include "dropout/dropout.h"
#include "layer_norm/layer_norm.h"
#include "linear/linear.h"
#include "norm/norm.h"
#include "pointwise/pointwise.h"
#include "pool/pool.h"

#include <stdlib.h>

static osw_isa parse_isa(const char *name, const char *source)
{
    const osw_isa isa = osw_isa_from_name(name);
    if (isa == OSW_ISA_COUNT)
        PyErr_Format(PyExc_ValueError, "%s: expected scalar, neon, avx2 or avx512, got '%s'",
                     source, name);
    return isa;
}

int osw_isa_start(void)
{
    const char *name = getenv("OPSWAP_ISA");
    if (name && *name) {
        const osw_isa isa = parse_isa(name, "OPSWAP_ISA");
        if (isa == OSW_ISA_COUNT)
            return -1;
        osw_isa_cap(isa);
    }
    osw_prefetch_detect();
    void (*const families[])(osw_isa) = {
        osw_channels_select,   osw_norm_select,      osw_pool_select, osw_linear_select,
        osw_dropout_select,    osw_depthwise_select, osw_conv_select, osw_chain_select,
        osw_layer_norm_select, osw_pointwise_select};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (osw_isa_register(families[i]) != 0)
            return osw_raise(PyExc_ImportError, "opswap: more families than core/isa has room for");
    return 0;
}

/* The names of the available tiers in [first, end). */
static PyObject *names_of(osw_isa first, osw_isa end)
{
    PyObject *names = PyList_New(0);
    for (osw_isa isa = first; names && isa < end; isa++) {
        if (!osw_isa_available(isa))
            continue;
        PyObject *name = PyUnicode_FromString(osw_isa_name(isa));
        if (!name || PyList_Append(names, name) != 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    PyObject *tuple = names ? PyList_AsTuple(names) : NULL;
    Py_XDECREF(names);
    return tuple;
}

OSW_ENTRY_NO_ARGS(isa_available)
{
    return names_of(OSW_ISA_SCALAR, OSW_ISA_FIRST_HIDDEN);
}

OSW_ENTRY_NO_ARGS(isa_hidden)
{
    return names_of(OSW_ISA_FIRST_HIDDEN, OSW_ISA_COUNT);
}

OSW_ENTRY_NO_ARGS(isa_current)
{
    return PyUnicode_FromString(osw_isa_name(osw_isa_current()));
}

static PyObject *isa_limit(PyObject *Py_UNUSED(module), PyObject *name)
{
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (!text)
        return PyErr_Format(PyExc_TypeError, "isa.limit: expected a str, got %R", name);
    const osw_isa isa = parse_isa(text, "isa.limit");
    if (isa == OSW_ISA_COUNT)
        return NULL;
    osw_isa_limit(isa);
    Py_RETURN_NONE;
}

OSW_ENTRY_NO_ARGS(threads)
{
    return PyLong_FromLong(osw_parallel_threads());
}

PyMethodDef osw_isa_methods[] = {
    OSW_ENTRY_NO_ARGS_LINE(isa_available, "Tiers of this machine, lowest first."),
    OSW_ENTRY_NO_ARGS_LINE(isa_hidden, "Tiers for tests: kernels in plain C."),
    OSW_ENTRY_NO_ARGS_LINE(isa_current, "The tier in use."),
    {"isa_limit", isa_limit, METH_O, "Use at most this tier."},
    OSW_ENTRY_NO_ARGS_LINE(threads, "Threads that a kernel uses at most."),
    {NULL, NULL, 0, NULL},
};
