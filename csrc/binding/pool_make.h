/* SPDX-License-Identifier: MIT */
/* Calls of pools that make the tensors that they write. Functions that return int return -1 with an
 * exception set. */
#ifndef OSW_BINDING_POOL_MAKE_H
#define OSW_BINDING_POOL_MAKE_H

#include "binding/pool_call.h"
#include "binding/tensor_new.h"

/* The sizes that a window gives the input of the call, all at least 1 but the batch. */
int osw_pool_output_size(osw_pool_call *call, bool ceil_mode, int64_t *size);

/* A tuple of `ndim` sizes of a tensor that can be. */
int osw_pool_tensor_size(const osw_pool_call *call, PyObject *tuple, int ndim, int64_t *size);

/* A new dense tensor at `role`, like `like`. Returns a new reference, or NULL with an exception. */
PyObject *osw_pool_new(osw_pool_call *call, osw_role role, PyObject *like, osw_new_dtype dtype,
                       int ndim, const int64_t *size, bool channels_last);

/* The first `wanted` items, borrowed, of a tuple of `length` that a forward described; -1 with
 * TypeError for all else. */
int osw_pool_described(const osw_pool_call *call, PyObject *tuple, int length, PyObject **items,
                       int wanted);

/* Run the kernel. Returns `made`, a reference that it takes, NotImplemented where the memory of a
 * tensor fits neither form, or NULL with an exception, also where `made` is NULL. */
PyObject *osw_pool_run_into(osw_pool_call *call, PyObject *made);

/* Whether autocast computes this in float32 instead: volumes of 16-bit floats. */
bool osw_autocast_converts(const osw_tensor *t, bool volumes);

/* A window as the arguments of a public function give it. */
enum { W_KERNEL, W_STRIDE, W_PADDING, W_DILATION, W_COUNT };

typedef struct osw_window {
    int spatial;
    int64_t channel_step;
    int64_t sides[W_COUNT][OSW_POOL_DIMS];
    PyObject *tuples[W_COUNT]; /* owned */
} osw_window;

/* An ordinary call, read into `call`: a tensor with elements that no dispatcher need see, of a
 * dtype that has kernels, and plain ints. False, perhaps with an exception, for any other. `window`
 * is to be cleared in both cases. arguments: kernel, stride, padding and, if `dilated`, dilation.
 */
bool osw_window_read(osw_window *window, osw_pool_call *call, bool volumes, PyObject *input,
                     PyObject *const *arguments, bool dilated);

void osw_window_clear(osw_window *window);
#endif
