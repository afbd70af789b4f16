/* SPDX-License-Identifier: MIT */
/* What the files of the binding share. */
#ifndef OSW_BINDING_BINDING_H
#define OSW_BINDING_BINDING_H

#include <Python.h>

#include <stdint.h>

/* METH_FASTCALL under its generic type, as PyMethodDef needs it. */
#define OSW_METHOD(function) ((PyCFunction)(void (*)(void))(function))

/* Defines a function of the module, which sees `args` and `nargs`. */
#define OSW_ENTRY(name)                                                                            \
    static PyObject *name(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)

/* Its line in a table of methods. */
#define OSW_ENTRY_LINE(name, text) {#name, OSW_METHOD(name), METH_FASTCALL, text}

/* The same of a function without arguments. */
#define OSW_ENTRY_NO_ARGS(name)                                                                    \
    static PyObject *name(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
#define OSW_ENTRY_NO_ARGS_LINE(name, text) {#name, name, METH_NOARGS, text}

/* Method tables of the bind files, each ended by an empty entry. */
extern PyMethodDef osw_isa_methods[];
extern PyMethodDef osw_call_methods[];
extern PyMethodDef osw_tensor_methods[];
extern PyMethodDef osw_memory_methods[];
extern PyMethodDef osw_modules_methods[];
extern PyMethodDef osw_kinds_methods[];
extern PyMethodDef osw_entries_methods[];
extern PyMethodDef osw_channels_methods[];
extern PyMethodDef osw_shuffle_methods[];
extern PyMethodDef osw_norm_methods[];
extern PyMethodDef osw_norm_pool_methods[];
extern PyMethodDef osw_mean_square_methods[];
extern PyMethodDef osw_group_norm_methods[];
extern PyMethodDef osw_layer_norm_methods[];
extern PyMethodDef osw_max_pool_methods[];
extern PyMethodDef osw_avg_pool_methods[];
extern PyMethodDef osw_adaptive_pool_methods[];
extern PyMethodDef osw_linear_methods[];
extern PyMethodDef osw_dropout_methods[];
extern PyMethodDef osw_pointwise_methods[];
extern PyMethodDef osw_depthwise_methods[];
extern PyMethodDef osw_conv_methods[];
extern PyMethodDef osw_chain_methods[];
extern PyMethodDef osw_chain_folded_methods[];

/* Register every family's table with the tier that the environment allows. -1 with an exception set
 * on a bad OPSWAP_ISA. */
int osw_isa_start(void);

#endif
