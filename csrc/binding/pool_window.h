/* SPDX-License-Identifier: MIT */
/* Windows and sizes of pools as arguments give them, and the tensors that follow from them.
 * Functions that return int are as those of call.h. */
#ifndef OSW_BINDING_POOL_WINDOW_H
#define OSW_BINDING_POOL_WINDOW_H

#include "binding/pool_call.h"

/* The window, the last argument only if it is dilated, of tuples of 1 to 3 ints; and the channel
 * step, a positive int; NULL: none. */
int osw_pool_read_window(osw_call *call, PyObject *const *window, bool dilated,
                         PyObject *channel_step);

/* The window of an ordinary call of a public function: plain ints, tuples and lists. */
int osw_pool_read_plain_window(osw_call *call, bool volumes, PyObject *const *window, bool dilated);

/* Behind either, once the input is parsed. Whether a plain call is an ordinary one: a tensor with
 * elements, of the dimensions of the window and a dtype that has kernels. A depth of one slice is
 * dropped for a batch of images: its stride is the channel step. */
osw_step osw_pool_check_plain;

/* Sizes of the input: a tuple of `ndim` sizes of a tensor that can be. */
int osw_pool_read_size(osw_call *call, PyObject *tuple, int ndim);

/* The items, borrowed, of a tuple of `length` that a forward described; TypeError for all else. */
int osw_pool_described(const osw_call *call, PyObject *tuple, int length, PyObject **items);

/* Whether a format that a forward described is channels last. */
bool osw_pool_is_last(PyObject *format);

/* Make the output, of the size that the window gives or, without one, of the one that was read; and
 * offsets or positions for it, if it trains. */
osw_step osw_pool_make;

/* Make the gradient of the input, of the size that was read. */
osw_step osw_pool_make_gradient;

/* Whether autocast computes this in float32 instead: volumes of 16-bit floats. */
bool osw_autocast_converts(const osw_tensor *t, bool volumes);

/* What a forward keeps for its backward: new tuples of one kind of sides, and of the size of the
 * input; and, borrowed, the format of the input. */
PyObject *osw_pool_sides(const osw_call *call, int kind);
PyObject *osw_pool_input_size(const osw_call *call);
PyObject *osw_pool_format(const osw_call *call);

#endif
