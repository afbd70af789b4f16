/* SPDX-License-Identifier: MIT */
/* New tensors, ordinary ones of torch's own allocator: the one place that makes outputs. */
#ifndef OSW_BINDING_TENSOR_NEW_H
#define OSW_BINDING_TENSOR_NEW_H

#include "binding/tensor_arg.h"

typedef enum osw_new_dtype { OSW_SAME_DTYPE, OSW_UINT8, OSW_INT32, OSW_FLOAT64 } osw_new_dtype;

/* A dense tensor, not initialised, of the type of `like` and of its dtype or the given one;
 * channels_last needs 4 or 5 dimensions. What came back has the sizes, strides and dtype that were
 * asked for, on the CPU, also if a subclass made it. Returns a new reference and describes the
 * tensor in `out`, or NULL with an exception. A subclass may run code of its own here: see
 * osw_check_unchanged. */
PyObject *osw_tensor_new(PyObject *like, osw_new_dtype dtype, const char *name, int ndim,
                         const int64_t *size, bool channels_last, osw_tensor *out);

/* A new tuple of ints. */
PyObject *osw_tuple_of(int count, const int64_t *values);

#endif
