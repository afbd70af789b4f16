/* SPDX-License-Identifier: MIT */
/* Grouped linear maps: what every kernel of the family does.
 *
 * A row holds `groups` groups of in_features elements. Group g has the outputs first[g] to
 * first[g + 1] - 1, each with a row of the weight:
 *
 *     forward      output[n][o] = bias[o] + sum of input[n][g][i] * weight[o][i] over i
 *     grad_input   grad_input[n][g][i] = sum of grad_output[n][o] * weight[o][i] over o of g
 *     grad_weight  grad_weight[o][i] = sum of grad_output[n][o] * input[n][g][i] over n
 *                  grad_bias[o] = sum of grad_output[n][o] over n
 *
 * Sums are taken in the dtype, or, for bfloat16 and float16 (which lie in memory as uint16_t), in
 * float32 and rounded once, to nearest and ties to even, the bias included. The order of their
 * terms depends on the sizes and the tier alone, never on the block that an element belongs to or
 * on the number of threads.
 *
 * The rows of input and grad_input may be pixels of images, those that a convolution with a stride
 * reads: see osw_linear_lines. They have one group, and float32 or float64. The rows of the input
 * may then also be pixels of planes: see `planes`.
 */
#ifndef OSW_LINEAR_LINEAR_H
#define OSW_LINEAR_LINEAR_H

#include "core/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* Element i of group g of row n lies at base + n * row_step + g * group_step + i (elements). */
typedef struct osw_linear_rows {
    void *base;
    int64_t row_step;
    int64_t group_step; /* output and grad_output: unused, o counts through all groups */
} osw_linear_rows;

/* How rows of input and grad_input are cut into lines and images: `rows` of a line, `count` lines
 * of an image. Row n then lies at base + osw_linear_place(); rows 0: no images. */
typedef struct osw_linear_lines {
    int64_t rows;
    int64_t count;
} osw_linear_lines;

/* Elements from one line to the next of an image, and from one image to the next. */
typedef struct osw_linear_steps {
    int64_t line;
    int64_t image;
} osw_linear_steps;

/* Tensors that are read are not written, and do not overlap those that are. */
typedef struct osw_linear {
    int64_t rows;
    int64_t groups;
    int64_t in_features;
    const int64_t *first;        /* [groups + 1], rising from 0 */
    osw_linear_rows input;       /* forward, grad_weight */
    osw_linear_rows output;      /* written by forward */
    osw_linear_rows grad_output; /* the other two */
    osw_linear_rows grad_input;  /* written */
    osw_linear_lines lines;
    osw_linear_steps input_steps;
    bool planes;        /* rows of the input are pixels of planes: their row_step is 1, and */
    int64_t plane_step; /* from one feature to the next it is so many elements */
    osw_linear_steps grad_input_steps; /* dense images: what is between rows gets zeros, by run.c */
    const void *weight;                /* [first[groups]][in_features] */
    const void *bias;                  /* [first[groups]], or NULL: none */
    void *grad_weight;                 /* [row_parts] of the weight's size; NULL: not wanted */
    void *grad_bias;                   /* [row_parts] of the bias's size; NULL: not wanted */
    int64_t row_parts; /* into which grad_weight cuts the rows, see osw_linear_cut */
    int64_t part_rows; /* of each but the last of them */
} osw_linear;

/* A part of the work: groups [group_begin, group_end) and, of each, `begin` to `end` - 1 of the
 * rows (forward, grad_input) or of the input features (grad_weight, over the rows of one row part:
 * all of them, or at least OSW_LINEAR_LEAST_FEATURES; the block that begins with feature 0 also
 * writes grad_bias). */
enum { OSW_LINEAR_LEAST_FEATURES = 16 }; /* the widest vector */
typedef struct osw_linear_block {
    int64_t group_begin;
    int64_t group_end;
    int64_t begin;
    int64_t end;
    int64_t row_part;
} osw_linear_block;

typedef void osw_linear_fn(const osw_linear *linear, const osw_linear_block *block);

/* Where row n of input or grad_input lies, in elements from its base. */
static inline int64_t osw_linear_place(const osw_linear_lines *lines, const osw_linear_steps *steps,
                                       int64_t row_step, int64_t n)
{
    if (!lines->rows)
        return n * row_step;
    const int64_t line = n / lines->rows, image = line / lines->count;
    return image * steps->image + (line - image * lines->count) * steps->line +
           (n - line * lines->rows) * row_step;
}

static inline int64_t osw_linear_input_at(const osw_linear *l, int64_t n)
{
    return osw_linear_place(&l->lines, &l->input_steps, l->input.row_step, n);
}

static inline int64_t osw_linear_feature_step(const osw_linear *l)
{
    return l->planes ? l->plane_step : 1;
}

static inline int64_t osw_linear_grad_input_at(const osw_linear *l, int64_t n)
{
    return osw_linear_place(&l->lines, &l->grad_input_steps, l->grad_input.row_step, n);
}

/* How many of the rows [n, n + most) lie a row_step apart. */
static inline int64_t osw_linear_in_line(const osw_linear_lines *lines, int64_t n, int64_t most)
{
    const int64_t rest = lines->rows ? lines->rows - n % lines->rows : most;
    return rest < most ? rest : most;
}

/* The list of variants. X(operation, dtype) makes the numbers, the table and the list that tests
 * walk; every operation has the dtypes in the order of osw_dtype. */
#define OSW_LINEAR_DTYPES(X, operation)                                                            \
    X(operation, f32)                                                                              \
    X(operation, f64)                                                                              \
    X(operation, bf16)                                                                             \
    X(operation, f16)
#define OSW_LINEAR_VARIANTS(X)                                                                     \
    OSW_LINEAR_DTYPES(X, forward)                                                                  \
    OSW_LINEAR_DTYPES(X, grad_input)                                                               \
    OSW_LINEAR_DTYPES(X, grad_weight)

#define OSW_LINEAR_ID(operation, dtype) OSW_LINEAR_##operation##_##dtype,
typedef enum osw_linear_id { OSW_LINEAR_VARIANTS(OSW_LINEAR_ID) OSW_LINEAR_COUNT } osw_linear_id;

/* Kernels in use, by osw_linear_id. */
OSW_DECLARE_TABLE(osw_linear_fn, osw_linear_table, OSW_LINEAR_COUNT, osw_linear_select,
                  osw_linear_fill);

/* Whether convolutions, and products that torch's library computes as well, go to the kernels for
 * `isa`: if vectors are as wide as the library's, and in tests. Nobody has measured neon. */
bool osw_linear_leads(osw_isa isa);

/* How the work of one kernel is cut into blocks. */
typedef struct osw_linear_grid {
    int64_t groups;      /* of a block */
    int64_t length;      /* rows or features of a block */
    int64_t group_parts; /* blocks side by side */
    int64_t parts;
    int64_t row_parts;
} osw_linear_grid;

/* Many rows of few groups: set row_parts and part_rows, by the sizes alone, so that the gradient of
 * the weight is a sum of parts, which fit the cache, and which threads can share. Else one part.
 * Not for 16-bit types, whose parts would be rounded. */
void osw_linear_cut(osw_linear *linear);

static inline int64_t osw_linear_part_end(const osw_linear *linear, int64_t part)
{
    const int64_t end = (part + 1) * linear->part_rows;
    return end < linear->rows ? end : linear->rows;
}

/* Write zeros behind each of the rows [begin, end) of grad_input, up to the next one. */
void osw_linear_zero_gaps(const osw_linear *linear, int64_t element_bytes, int64_t begin,
                          int64_t end);

/* Blocks of rows (forward, grad_input) or of features (grad_weight), for so many threads. */
osw_linear_grid osw_linear_row_grid(const osw_linear *linear, int threads);
osw_linear_grid osw_linear_feature_grid(const osw_linear *linear, int threads);

static inline int64_t osw_linear_blocks(const osw_linear_grid *grid)
{
    return grid->group_parts * grid->parts * grid->row_parts;
}

/* Block i of the grid; `total` rows or features are cut into its parts. */
osw_linear_block osw_linear_block_at(const osw_linear *linear, const osw_linear_grid *grid,
                                     int64_t i, int64_t total);

#endif
