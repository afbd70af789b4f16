/* SPDX-License-Identifier: MIT */
/* Linear maps of planes, which are 1 x 1 convolutions of contiguous images: what every kernel of
 * the family does.
 *
 *     forward      output[n][o][p] = bias[o] + sum of weight[o][i] * input[n][i][p] over i
 *     grad_input   grad_input[n][i][p] = sum of weight[o][i] * grad_output[n][o][p] over o
 *     grad_weight  grad_weight[o][i] = sum of grad_output[n][o][p] * input[n][i][p] over n and p
 *                  grad_bias[o] = sum of grad_output[n][o][p] over n and p
 *
 * Sums are taken in the dtype. The order of their terms depends on the sizes and the tier alone,
 * never on the block that an element belongs to or on the number of threads.
 */
#ifndef OSW_POINTWISE_PLANES_H
#define OSW_POINTWISE_PLANES_H

#include "core/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* Pixel p of plane c of image n lies at base + n * image_step + c * plane_step + p (elements). */
typedef struct osw_pointwise_images {
    void *base;
    int64_t image_step;
    int64_t plane_step;
} osw_pointwise_images;

/* Tensors that are read are not written, and do not overlap those that are. */
typedef struct osw_pointwise {
    int64_t images;
    int64_t pixels;
    int64_t in_planes;
    int64_t out_planes;
    osw_pointwise_images input;       /* forward, grad_weight */
    osw_pointwise_images output;      /* written by forward */
    osw_pointwise_images grad_output; /* the other two */
    osw_pointwise_images grad_input;  /* written */
    const void *weight;               /* [out_planes][in_planes] */
    const void *bias;                 /* [out_planes], or NULL: none */
    void *grad_weight;                /* [parts] of the weight's size; NULL: not wanted */
    void *grad_bias;                  /* [parts] of the bias's size; NULL: not wanted */
    int64_t parts;       /* into which grad_weight cuts the images, see osw_pointwise_cut */
    int64_t part_images; /* of each but the last of them */
} osw_pointwise;

/* A part of the work. forward and grad_input: pixels [begin, end), all if there are several images,
 * of planes [first, last), of those that they write. grad_weight: the columns [first, last) of the
 * weight, over the images of one part; the block that begins with column 0 also writes grad_bias.
 */
typedef struct osw_pointwise_block {
    int64_t image_begin, image_end;
    int64_t begin, end;
    int64_t first, last;
    int64_t part;
} osw_pointwise_block;

typedef void osw_pointwise_fn(const osw_pointwise *planes, const osw_pointwise_block *block);

/* The list of variants. X(operation, dtype) makes the numbers, the table and the list that tests
 * walk; every operation has the dtypes in the order of osw_dtype. */
#define OSW_POINTWISE_VARIANTS(X)                                                                  \
    X(forward, f32)                                                                                \
    X(forward, f64)                                                                                \
    X(grad_input, f32)                                                                             \
    X(grad_input, f64)                                                                             \
    X(grad_weight, f32)                                                                            \
    X(grad_weight, f64)

#define OSW_POINTWISE_ID(operation, dtype) OSW_POINTWISE_##operation##_##dtype,
typedef enum osw_pointwise_id {
    OSW_POINTWISE_VARIANTS(OSW_POINTWISE_ID) OSW_POINTWISE_COUNT
} osw_pointwise_id;

/* Kernels in use, by osw_pointwise_id. */
OSW_DECLARE_TABLE(osw_pointwise_fn, osw_pointwise_table, OSW_POINTWISE_COUNT, osw_pointwise_select,
                  osw_pointwise_fill);

/* How the work of one kernel is cut into blocks: parts of the images, times parts of the planes,
 * times parts of the pixels. */
typedef struct osw_pointwise_grid {
    int64_t image_parts, image_length;
    int64_t plane_parts, plane_length;
    int64_t pixel_parts, pixel_length;
} osw_pointwise_grid;

/* Set parts and part_images, by the sizes alone, so that the gradient of the weight is a sum of
 * parts, which fit the cache, and which threads can share. */
void osw_pointwise_cut(osw_pointwise *planes);

/* Blocks of `count` planes that are written (forward, grad_input; several small images make a block
 * whose elements fit OSW_SCRATCH_OUTER), or of the columns of the weight (grad_weight), for so many
 * threads. */
osw_pointwise_grid osw_pointwise_image_grid(const osw_pointwise *planes, int64_t count,
                                            int64_t element_bytes, int threads);
osw_pointwise_grid osw_pointwise_weight_grid(const osw_pointwise *planes, int threads);

static inline int64_t osw_pointwise_blocks(const osw_pointwise_grid *grid)
{
    return grid->image_parts * grid->plane_parts * grid->pixel_parts;
}

/* Block i of the grid, which cuts `count` planes or columns. */
osw_pointwise_block osw_pointwise_block_at(const osw_pointwise *planes,
                                           const osw_pointwise_grid *grid, int64_t i,
                                           int64_t count);

#endif
