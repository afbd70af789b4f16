/* SPDX-License-Identifier: MIT */
/* Dense convolutions of images whose channels come last: what every kernel of the family does.
 *
 *     pack         the weight as forward of the same tier reads it
 *     forward      output[n][i][j][o] = bias[o] + sum of weight[o][r][s][c] *
 *                      input[n][i * stride + r * dilation - padding][j * ... + s * ... - ...][c]
 *                  over r, s, c
 *     grad_weight  weight[o][r][s][c] = sum of grad_output[n][i][j][o] *
 *                      input[n][i * stride + r * dilation - padding][j * ... + s * ... - ...][c]
 *                      over n, i, j
 *                  bias[o] = sum of grad_output[n][i][j][o] over n, i, j
 *
 * A place outside of the image has no term: padding is no zero that an infinite gradient would turn
 * into NaN. Sums are taken in the dtype; the order of their terms depends on the sizes, on whether
 * pixels are neighbours and on the tier, never on the outputs that a part has or on the number of
 * threads.
 *
 * The gradient of the input is a forward too, of grad_output by the taps in reverse order; with a
 * stride of n it is n forwards per direction, each with every n-th tap, whose outputs take turns:
 * osw_conv_phase. */
#ifndef OSW_CONV_CONV_H
#define OSW_CONV_CONV_H

#include "conv/terms.h"
#include "core/isa.h"

#include <stdbool.h>
#include <stdint.h>

enum { OSW_CONV_MOST_TAPS = 13 }; /* in a direction */

/* Rows, or columns. The input place under tap t of output place i is i * stride + t * dilation -
 * padding. */
typedef struct osw_conv_axis {
    int64_t size;     /* of the input */
    int64_t out_size; /* of grad_output, or output */
    int64_t taps;
    int64_t stride;
    int64_t padding; /* before the first place; of a forward it may be negative */
    int64_t dilation;
} osw_conv_axis;

/* Channel c of pixel (n, y, x) lies at data + n * image_step + y * row_step + x * pixel_step + c
 * (elements). */
typedef struct osw_conv_image {
    const void *data;
    int64_t image_step;
    int64_t row_step;
    int64_t pixel_step;
} osw_conv_image;

/* The same, to be written. */
typedef struct osw_conv_output {
    void *data;
    int64_t image_step;
    int64_t row_step;
    int64_t pixel_step;
} osw_conv_output;

/* Element [o][r][s][c] lies at data + o * output + r * row + s * column + c * channel. */
typedef struct osw_conv_weight {
    const void *data;
    int64_t output;
    int64_t row, column; /* negative if taps are in reverse order */
    int64_t channel;
} osw_conv_weight;

typedef struct osw_conv {
    int64_t batch;
    int64_t channels; /* of input */
    int64_t outputs;  /* channels of grad_output, or output */
    osw_conv_axis rows, columns;
    osw_conv_image input;

    osw_conv_image grad_output; /* of grad_weight */

    /* Of pack and forward. */
    osw_conv_weight weight;
    void *packed;     /* osw_conv_packed elements at a multiple of 64 bytes */
    const void *bias; /* [outputs], or NULL for zeros */
    osw_conv_output output;
    osw_conv_terms terms; /* set by osw_conv_prepare_forward */

    /* Set by osw_conv_prepare, by the sizes alone: how sums lie, and into which blocks of output
     * pixels an image is cut. A block is summed before it is added to the others. */
    bool crossed;          /* sums of the weight: [r][s][c][o] in place of [o][r][s][c] */
    int64_t block_rows;    /* of a block, */
    int64_t block_columns; /* but the last of an image have what is left */
    int64_t row_blocks;    /* of an image, */
    int64_t column_blocks; /* side by side */
    int64_t parts;         /* into which all blocks are divided, each with sums of its own */
} osw_conv;

/* Of forward: blocks [block_begin, block_end) of all images; of pack: the same of pieces of the
 * terms. Of grad_weight: blocks, for the outputs [out_begin, out_end); all outputs
 * if crossed. The sums of these outputs are written. */
typedef struct osw_conv_part {
    int64_t block_begin, block_end;
    int64_t out_begin, out_end;
    void *weight; /* sums for all outputs */
    void *bias;   /* [outputs], or NULL: not wanted */
} osw_conv_part;

typedef void osw_conv_fn(const osw_conv *conv, const osw_conv_part *part);

/* The list of variants. X(operation, dtype) makes the numbers, the table and the list that tests
 * walk. */
#define OSW_CONV_VARIANTS(X)                                                                       \
    X(pack, f32)                                                                                   \
    X(pack, f64)                                                                                   \
    X(forward, f32)                                                                                \
    X(forward, f64)                                                                                \
    X(grad_weight, f32)                                                                            \
    X(grad_weight, f64)

#define OSW_CONV_ID(operation, dtype) OSW_CONV_##operation##_##dtype,
typedef enum osw_conv_id { OSW_CONV_VARIANTS(OSW_CONV_ID) OSW_CONV_COUNT } osw_conv_id;

/* Kernels in use, by osw_conv_id. */
OSW_DECLARE_TABLE(osw_conv_fn, osw_conv_table, OSW_CONV_COUNT, osw_conv_select, osw_conv_fill);

/* Set what follows from the sizes. A map of pixels (1 x 1, no padding, no stride) of dense images
 * becomes one image. */
void osw_conv_prepare(osw_conv *conv, int64_t element_bytes);

/* The same for pack and forward. */
void osw_conv_prepare_forward(osw_conv *conv, int64_t element_bytes);

/* Elements of a packed weight at most, whatever the tier. */
int64_t osw_conv_packed(const osw_conv *conv);

/* The gradient of the input of `conv`, whose weight is given, as forwards: phase (row, column) of
 * conv->rows.stride x conv->columns.stride. grad_input: of the whole image. Without taps the phase
 * has zeros only. Returns false if it has no pixel. */
bool osw_conv_phase(const osw_conv *conv, const osw_conv_output *grad_input, int64_t element_bytes,
                    int64_t row, int64_t column, osw_conv *phase);

/* Elements of the weight; blocks of all images. */
static inline int64_t osw_conv_weights(const osw_conv *conv)
{
    return conv->outputs * conv->rows.taps * conv->columns.taps * conv->channels;
}

static inline int64_t osw_conv_blocks(const osw_conv *conv)
{
    return conv->batch * conv->row_blocks * conv->column_blocks;
}

/* Output pixels [top, bottom) x [left, right) of an image. */
typedef struct osw_conv_block {
    int64_t image;
    int64_t top, bottom;
    int64_t left, right;
} osw_conv_block;

osw_conv_block osw_conv_block_at(const osw_conv *conv, int64_t i);

/* Into how many parts of about equal size the outputs are cut for so many threads: cuts change no
 * sum. */
int64_t osw_conv_output_parts(const osw_conv *conv, int64_t element_bytes, int threads);

/* Part i of conv->parts x output_parts, without its sums. */
osw_conv_part osw_conv_part_at(const osw_conv *conv, int64_t output_parts, int64_t i);

/* Add the sums of all parts in their order, and write them to grad_weight as [o][r][s][c] or, with
 * taps_last, as [o][c][r][s], and to grad_bias unless it is NULL. sums: per part those of the
 * weight, then [outputs] of the bias; overwritten. */
void osw_conv_finish_f32(const osw_conv *conv, float *sums, bool taps_last, float *grad_weight,
                         float *grad_bias);
void osw_conv_finish_f64(const osw_conv *conv, double *sums, bool taps_last, double *grad_weight,
                         double *grad_bias);

#endif
