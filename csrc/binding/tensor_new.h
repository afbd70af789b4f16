/* SPDX-License-Identifier: MIT */
/* New tensors, ordinary ones of torch's own allocator. */
#ifndef OSW_BINDING_TENSOR_NEW_H
#define OSW_BINDING_TENSOR_NEW_H

#include "binding/tensor_arg.h"

/* A dense tensor, not initialised, with the dtype and type of `like`; channels_last wants 4 or 5
 * dimensions. Returns a new reference and describes the tensor in `out`, or NULL with an
 * exception. */
PyObject *osw_tensor_new(PyObject *like, const char *name, int ndim, const int64_t *size,
                         bool channels_last, osw_tensor *out);

/* A new tuple of ints. */
PyObject *osw_tuple_of(int count, const int64_t *values);

/* Something for `like`: a tensor without elements of the dtype that `cast`, a method of
 * torch.Tensor, makes. Kept for good in *kept, which the GIL guards; borrowed, or NULL with an
 * exception. */
PyObject *osw_tensor_donor(PyObject **kept, const char *cast);

#endif
