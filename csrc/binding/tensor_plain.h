/* SPDX-License-Identifier: MIT */
/* Tensors that a kernel may read without asking torch's dispatcher. */
#ifndef OSW_BINDING_TENSOR_PLAIN_H
#define OSW_BINDING_TENSOR_PLAIN_H

#include "binding/tensor_arg.h"

/* Fill `out` and return true if `object` is a torch.Tensor or Parameter, no subclass, on the CPU,
 * with memory, and no conjugate or negative view that is not yet carried out. False, without an
 * exception, for all else. */
bool osw_tensor_plain(PyObject *object, osw_tensor *out);

/* True if no mode, transform or trace watches over operators, and, if requested, no autocast. */
bool osw_plain_eager(bool without_autocast);

/* The result of a call that may leave its arguments to torch: NotImplemented in place of an error,
 * but for that of missing memory. */
PyObject *osw_or_declined(PyObject *result);

/* torch's own choice for what is made from `t` (c10/core/MemoryFormat.h): channels last, in 4 or 5
 * dimensions. */
bool osw_suggests_channels_last(const osw_tensor *t);

/* Torch's object for the contiguous format, or for channels last in `ndim` dimensions, 4 or 5;
 * borrowed, NULL with an exception. */
PyObject *osw_memory_format(int ndim, bool channels_last);

#endif
