/* SPDX-License-Identifier: MIT */
/* A tensor by torch's public methods, for a release of torch without the exchange table. */
#ifndef OSW_BINDING_TENSOR_PUBLIC_H
#define OSW_BINDING_TENSOR_PUBLIC_H

#include "binding/tensor_arg.h"

/* Whether this is a torch.Tensor or Parameter, no subclass. */
bool osw_is_exact_tensor(PyObject *object);

/* Describe such a tensor, no subclass, which could answer anything. Sizes and strides
 * go straight into `out`, the rest into `borrowed`, whose shape and strides point there. -1,
 * perhaps with an exception, for all else. Slower than the table by some microseconds. */
int osw_tensor_public(PyObject *object, osw_tensor *out, osw_dl_tensor *borrowed);

#endif
