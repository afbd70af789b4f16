/* SPDX-License-Identifier: MIT */
/* The one argument parser: a Python tensor as sizes, strides and a pointer. */
#ifndef OSW_BINDING_TENSOR_ARG_H
#define OSW_BINDING_TENSOR_ARG_H

#include "binding/binding.h"
#include "binding/dlpack.h"
#include "binding/number_arg.h"
#include "core/dtype.h"

#include <stdbool.h>

enum { OSW_MAX_DIMS = 8 };

/* Borrowed from the object, valid while it lives and is not resized. */
typedef struct osw_tensor {
    char *data; /* first element; NULL only if there are no elements */
    int ndim;
    int64_t size[OSW_MAX_DIMS];
    int64_t stride[OSW_MAX_DIMS]; /* in elements */
    int64_t itemsize;             /* bytes */
    int64_t numel;
    osw_dl_dtype dtype;
    PyObject *object; /* borrowed; NULL if no code of the caller's can run until the kernel has */
} osw_tensor;

/* Fill `out` from a CPU tensor. -1 with TypeError (no tensor) or RuntimeError (no memory to read:
 * fake, meta, sparse, another device, more than OSW_MAX_DIMS dimensions); `name` starts the
 * message. */
int osw_tensor_arg(PyObject *object, const char *name, osw_tensor *out);

/* Where torch holds the sizes of the tensor, beside all else of it; NULL if that is not known. */
const void *osw_tensor_near(PyObject *object);

/* That the tensor is still where it was described, with as many elements: code of a subclass that
 * ran since, to make an output or to say whether it requires a gradient, may have resized it. Other
 * sizes or strides of the same memory do no harm. -1 with RuntimeError. */
int osw_check_unchanged(const char *name, const osw_tensor *t);

/* OSW_DTYPE_COUNT if it is no float that kernels compute with. */
osw_dtype osw_dtype_of(const osw_tensor *t);

/* NotImplementedError that there is no kernel for the dtype. Returns -1. */
int osw_fail_dtype(const char *name, const osw_tensor *t);

bool osw_same_dtype(const osw_tensor *a, const osw_tensor *b);

bool osw_has_size(const osw_tensor *t, int ndim, const int64_t *size);

/* The same sizes, but for dimension `but`; -1: all. */
bool osw_same_sizes(const osw_tensor *a, const osw_tensor *b, int but);

/* Sizes for a message, as a tuple of Python prints them. */
typedef struct osw_sizes_text {
    char text[24 * OSW_MAX_DIMS];
} osw_sizes_text;

osw_sizes_text osw_print_sizes(int ndim, const int64_t *size);

/* Dimensions [first, ndim), seen as one, have one distance between neighbours: returns true and
 * stores the number of elements and that distance (in elements; the natural one if there is at
 * most one element). */
bool osw_flatten(const osw_tensor *t, int first, int64_t *count, int64_t *step);

/* The elements of dimensions [first, ndim) are neighbours, in this order. */
bool osw_is_dense(const osw_tensor *t, int first);

/* Of dimensions in the order of channels_last the one at `n`, the innermost first: channels, then
 * space from the last dimension on, then the batch. */
static inline int osw_channels_last_at(int ndim, int n)
{
    return n == 0 ? 1 : n == ndim - 1 ? 0 : ndim - n;
}

/* Torch's is_contiguous for channels_last, of elements in 4 or 5 dimensions: those of size 1 have
 * any stride. */
bool osw_is_channels_last(const osw_tensor *t);

/* (N, C, H, W) with elements: pixels of channels, one behind the other. */
bool osw_is_pixels(const osw_tensor *t);

/* No two elements share memory. May say false of an exotic tensor if that is not so, never the
 * reverse. */
bool osw_no_overlap(const osw_tensor *t);

/* Some byte lies between the first and the last element of both; true also of tensors whose
 * elements share one buffer in turn. */
bool osw_ranges_meet(const osw_tensor *a, const osw_tensor *b);

#endif
