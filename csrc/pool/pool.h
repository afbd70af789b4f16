/* SPDX-License-Identifier: MIT */
/* Pooling: what every kernel of the family does.
 *
 * A tensor is seen as images of channels of positions in up to three spatial dimensions (depth,
 * height, width; a two-dimensional tensor has depth 1). Output channel c belongs to input channel
 * c * channel_step; what lies between is not read, and its gradient is zero. Position o of the
 * output looks at the input positions o * stride - padding + k * dilation, 0 <= k < kernel, of
 * every dimension; those outside the input do not count. A tap is one k of every dimension, in
 * row-major order.
 *
 * max: output = max of the taps, offsets = tap of the maximum. The first valid tap to start with; a
 * greater one, or a NaN, replaces it.
 *
 * max_backward: grad_input = sum of the grad_output whose offset names the position, added one
 * after another in the order of the output, each sum rounded to the dtype.
 *
 * avg: output = sum of the taps / divisor, summed in row-major order.
 *
 * avg_backward: grad_input = sum of grad_output / divisor, each rounded to the dtype.
 *
 * adaptive_max: as max, over the window [floor(o I / O), ceil((o + 1) I / O)); the offset is the
 * flat position in the input.
 *
 * adaptive_max_backward: its gradient.
 *
 * amax: as adaptive_max, over all positions, always with offsets; these are inverted (~) if the
 * maximum is not alone, OSW_POOL_SOMEWHERE if that was not looked at, and OSW_POOL_NOWHERE if
 * it is a NaN.
 *
 * amax_backward: the gradient of that maximum, shared by all positions that are equal to it:
 * grad_output * (input == output) / how many they are. offsets: those of amax, or none.
 *
 * Two forms. planes: the positions of a channel are neighbours (pixel_step 1). pixels: the channels
 * of a position are neighbours (channel_step 1). Work is cut into units, of which a kernel does
 * [begin, end):
 *
 * max, avg: in planes rows of the output, counted through image, channel, depth, height; in pixels
 * the same without the channel. Their backward: rows of grad_input.
 *
 * All others: in planes these, counted through image, channel; in pixels blocks of `block`
 * channels, counted through image, block.
 *
 * Every element of output and grad_input that belongs to a unit is written. */
#ifndef OSW_POOL_POOL_H
#define OSW_POOL_POOL_H

#include "core/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* OSW_POOL_LANES: results that the scalar kernels work on together. */
enum { OSW_POOL_DIMS = 3, OSW_POOL_LANES = 64, OSW_POOL_MIN_BLOCK = 64, OSW_POOL_MAX_BLOCK = 1024 };

#define OSW_POOL_NOWHERE   INT32_MIN
#define OSW_POOL_SOMEWHERE (-1)

/* Image n, channel c, position p lies at base + n * image_step + c * channel_step + p * pixel_step
 * (elements). What is read is never written: tensors of one call do not overlap. */
typedef struct osw_pool_tensor {
    void *base;
    int64_t image_step;
    int64_t channel_step;
    int64_t pixel_step;
} osw_pool_tensor;

/* One spatial dimension. */
typedef struct osw_pool_dim {
    int64_t input;    /* >= 1 */
    int64_t output;   /* >= 1; the last window starts before the end of the input */
    int64_t kernel;   /* >= 1 */
    int64_t stride;   /* >= 1 */
    int64_t padding;  /* 0 to kernel / 2 */
    int64_t dilation; /* >= 1 */
} osw_pool_dim;

typedef struct osw_pool {
    osw_pool_dim dims[OSW_POOL_DIMS]; /* depth, height, width */
    int64_t images;
    int64_t channels; /* of the output */
    int64_t input_channels;
    int64_t channel_step;
    int64_t block;               /* OSW_POOL_MIN_BLOCK to OSW_POOL_MAX_BLOCK */
    osw_pool_tensor input;       /* the forward ones, amax_backward */
    osw_pool_tensor output;      /* written by the forward ones; read by amax_backward */
    osw_pool_tensor offsets;     /* uint8, or int32 if wide; base NULL: not wanted */
    osw_pool_tensor grad_output; /* backward only */
    osw_pool_tensor grad_input;  /* backward only */
    bool wide;                   /* always for adaptive_max and amax */
    bool stream;                 /* what is written does not fit the caches: write around them */
    bool count_include_pad;      /* avg */
    int64_t divisor;             /* avg; 0: the number of taps */
} osw_pool;

typedef void osw_pool_fn(const osw_pool *pool, int64_t begin, int64_t end);

/* The list of variants. X(operation, form, dtype) makes the numbers, the table and the list that
 * tests and benchmarks walk. */
#define OSW_POOL_FLOATS(X, operation, form)                                                        \
    X(operation, form, f32)                                                                        \
    X(operation, form, f64)                                                                        \
    X(operation, form, bf16)                                                                       \
    X(operation, form, f16)

#define OSW_POOL_INTS(X, operation, form)                                                          \
    X(operation, form, u8)                                                                         \
    X(operation, form, i8)                                                                         \
    X(operation, form, i16)                                                                        \
    X(operation, form, i32)

#define OSW_POOL_FORM(X, form)                                                                     \
    OSW_POOL_FLOATS(X, max, form)                                                                  \
    OSW_POOL_INTS(X, max, form)                                                                    \
    X(max, form, i64)                                                                              \
    OSW_POOL_FLOATS(X, max_backward, form)                                                         \
    OSW_POOL_FLOATS(X, avg, form)                                                                  \
    X(avg, form, i64)                                                                              \
    OSW_POOL_FLOATS(X, avg_backward, form)                                                         \
    X(avg_backward, form, i64)                                                                     \
    OSW_POOL_FLOATS(X, adaptive_max, form)                                                         \
    OSW_POOL_FLOATS(X, adaptive_max_backward, form)                                                \
    OSW_POOL_FLOATS(X, amax, form)                                                                 \
    OSW_POOL_FLOATS(X, amax_backward, form)

#define OSW_POOL_VARIANTS(X)                                                                       \
    OSW_POOL_FORM(X, planes)                                                                       \
    OSW_POOL_FORM(X, pixels)

#define OSW_POOL_ID(operation, form, dtype) OSW_POOL_##operation##_##form##_##dtype,
typedef enum osw_pool_id { OSW_POOL_VARIANTS(OSW_POOL_ID) OSW_POOL_COUNT } osw_pool_id;

/* Kernels in use, by osw_pool_id. */
OSW_DECLARE_TABLE(osw_pool_fn, osw_pool_table, OSW_POOL_COUNT, osw_pool_select, osw_pool_fill);

#endif
