/* SPDX-License-Identifier: MIT */
/* Windows and sizes of pools as arguments give them, and the tensors that follow from them.
 * Functions that return int are as those of call.h. */
#ifndef OSW_BINDING_POOL_WINDOW_H
#define OSW_BINDING_POOL_WINDOW_H

#include "binding/pool_call.h"

/* The arguments of a window, in this order. */
enum { W_KERNEL, W_STRIDE, W_PADDING, W_DILATION, W_COUNT };

/* A tuple of call->spatial ints, each within [low, 2^31), into one field of the dims, given by its
 * place in the first one; dimensions that the tensor does not have keep their values. */
int osw_pool_sizes(const osw_pool_call *call, PyObject *tuple, const char *what, int64_t low,
                   int64_t *first_field);

/* The window, the last argument only if it is dilated, and the channel step, a positive int; NULL:
 * none. */
int osw_pool_window_args(osw_pool_call *call, PyObject *const *window, bool dilated,
                         PyObject *channel_step);

/* The sizes that a window gives the input of the call, all at least 1 but the batch. */
int osw_pool_output_size(osw_pool_call *call, bool ceil_mode, int64_t *size);

/* A tuple of `ndim` sizes of a tensor that can be. */
int osw_pool_tensor_size(const osw_pool_call *call, PyObject *tuple, int ndim, int64_t *size);

/* The items, borrowed, of a tuple of `length` that a forward described; TypeError for all else. */
int osw_pool_described(const osw_pool_call *call, PyObject *tuple, int length, PyObject **items);

/* Make the output, of the given size, and offsets or positions for it. */
int osw_pool_make(osw_pool_call *call, const int64_t *size, bool with_offsets);

/* Make the gradient of the input, and run: the end of a backward call. */
PyObject *osw_pool_gradient(osw_pool_call *call, int ndim, const int64_t *size, bool channels_last);

/* Whether autocast computes this in float32 instead: volumes of 16-bit floats. */
bool osw_autocast_converts(const osw_tensor *t, bool volumes);

/* osw_exact_sides of an int, a tuple or a list of no derived type. */
bool osw_plain_sides(PyObject *object, int count, int64_t low, int64_t *sides);

/* A window as the arguments of a public function give it. */
typedef struct osw_window {
    int spatial;
    int64_t channel_step;
    int64_t sides[W_COUNT][OSW_POOL_DIMS];
} osw_window;

/* An ordinary call, read into `call`, a plain one: a tensor with elements of a dtype that has
 * kernels, and plain ints. False, without an exception, for any other. arguments: kernel, stride,
 * padding and, if `dilated`, dilation. */
bool osw_window_read(osw_window *window, osw_pool_call *call, bool volumes, PyObject *input,
                     PyObject *const *arguments, bool dilated);

#endif
