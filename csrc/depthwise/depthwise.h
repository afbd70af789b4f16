/* SPDX-License-Identifier: MIT */
/* Depthwise convolution of images whose channels come last: what every kernel of the family does.
 *
 * Every channel c has a window of its own, tall x wide taps w, `dilation` apart; u = r * dilation
 * and v = s * dilation are where tap (r, s) is in it:
 *
 *     forward      output[n][i][j][c] = bias[c] + sum of w[r][s][c] *
 *                      input[n][i * stride + u - top][j * stride + v - left][c] over r, s
 *     grad_input   grad_input[n][y][x][c] = sum of w[r][s][c] * grad_output[n][i][j][c]
 *                      over r, s, i, j with y = i * stride + u - top, x = j * stride + v - left
 *     grad_weight  sums[r * wide + s][c] = sum of grad_output[n][i][j][c] *
 *                      input[n][i * stride + u - top][j * stride + v - left][c] over n, i, j
 *                  sums[tall * wide][c] = sum of grad_output[n][i][j][c] over n, i, j
 *
 * A place outside of the image has no term: padding is not a zero, which an infinite tap would turn
 * into NaN. Sums are taken in the dtype, those of 16 bits in float32, and rounded once; the order
 * of their terms depends on the sizes and the tier alone. */
#ifndef OSW_DEPTHWISE_DEPTHWISE_H
#define OSW_DEPTHWISE_DEPTHWISE_H

#include "core/dtype.h"
#include "core/isa.h"

#include <stdbool.h>
#include <stdint.h>

enum { OSW_DEPTHWISE_MOST_SIDE = 9 };

/* Tensors that are read are not written, and do not overlap those that are. */
typedef struct osw_depthwise {
    int64_t batch;
    int64_t channels;
    int64_t height; /* of input and grad_input */
    int64_t width;
    int64_t out_height; /* of output and grad_output */
    int64_t out_width;
    int64_t tall;            /* taps below each other: 1, 3, 5, 7 or 9 */
    int64_t wide;            /* taps beside each other: the same */
    int64_t stride;          /* 1 or 2 */
    int64_t dilation;        /* 1 if the stride is 2 */
    int64_t top;             /* rows of padding above an image */
    int64_t left;            /* columns of padding to its left */
    const void *taps;        /* [tall][wide][channels], as sums; forward, grad_input */
    const void *bias;        /* [channels], as sums, or NULL: none; forward */
    const void *input;       /* [batch][height][width][channels]; forward, grad_weight */
    void *output;            /* [batch][out_height][out_width][channels], written by forward */
    const void *grad_output; /* as output; grad_input, grad_weight */
    void *grad_input;        /* as input, written by grad_input */
    bool sums_output;        /* grad_weight: also write sums[tall * wide], else it is 0 */
} osw_depthwise;

/* Rows [begin, end) of all images, one image below the other: of the output (forward, grad_weight)
 * or of the input (grad_input). sums: [tall * wide + 1][channels], written by grad_weight; NULL for
 * the others. Sums, taps and biases are float32 for images of 16 bits. */
typedef void osw_depthwise_fn(const osw_depthwise *d, int64_t begin, int64_t end, void *sums);

/* Whether a window may have as many taps below or beside each other. */
static inline bool osw_depthwise_has_side(int64_t taps)
{
    return taps >= 1 && taps % 2 == 1 && taps <= OSW_DEPTHWISE_MOST_SIDE;
}

/* The list of variants. X(operation, dtype) makes the numbers, the table and the list that tests
 * walk. */
#define OSW_DEPTHWISE_VARIANTS(X)                                                                  \
    X(forward, f32)                                                                                \
    X(forward, f64)                                                                                \
    X(forward, bf16)                                                                               \
    X(forward, f16)                                                                                \
    X(grad_input, f32)                                                                             \
    X(grad_input, f64)                                                                             \
    X(grad_input, bf16)                                                                            \
    X(grad_input, f16)                                                                             \
    X(grad_weight, f32)                                                                            \
    X(grad_weight, f64)                                                                            \
    X(grad_weight, bf16)                                                                           \
    X(grad_weight, f16)

#define OSW_DEPTHWISE_ID(operation, dtype) OSW_DEPTHWISE_##operation##_##dtype,
typedef enum osw_depthwise_id {
    OSW_DEPTHWISE_VARIANTS(OSW_DEPTHWISE_ID) OSW_DEPTHWISE_COUNT
} osw_depthwise_id;

/* Kernels in use, by osw_depthwise_id. */
OSW_DECLARE_TABLE(osw_depthwise_fn, osw_depthwise_table, OSW_DEPTHWISE_COUNT, osw_depthwise_select,
                  osw_depthwise_fill);

/* Whether convolutions go to the kernels for `isa`: if vectors are as wide as those of torch's
 * library. Nobody has measured neon. */
bool osw_depthwise_leads(osw_isa isa);

/* Rows or columns of the output of `taps` over `length` of them and padding at both ends. */
static inline int64_t osw_depthwise_outputs(const osw_depthwise *d, int64_t taps, int64_t length,
                                            int64_t padding)
{
    return (length + 2 * padding - (taps - 1) * d->dilation - 1) / d->stride + 1;
}

/* How the images are cut into chunks, each with sums of its own: by the sizes alone, so that no
 * result depends on the number of threads. */
typedef struct osw_depthwise_chunks {
    int64_t images; /* of a chunk, ... */
    int64_t parts;  /* ... or, if it is 1, chunks of an image */
    int64_t count;
} osw_depthwise_chunks;

osw_depthwise_chunks osw_depthwise_cut(const osw_depthwise *d);

/* The first row of chunk i, in images of `height` rows one below the other; i == count: the end. */
int64_t osw_depthwise_first_row(const osw_depthwise *d, const osw_depthwise_chunks *chunks,
                                int64_t i, int64_t height);

/* taps[t][c] = weight[c][t], and behind them bias[c] unless it is NULL. dtype: of weight and bias.
 */
void osw_depthwise_pack(const osw_depthwise *d, osw_dtype dtype, const void *weight,
                        const void *bias, void *taps);

/* The sums of `count` chunks, added in their order in double: grad_weight[c][t] for t below tall *
 * wide, grad_bias[c] for the last; either may be NULL. dtype: of the gradients. totals: room for
 * the sums of one chunk. */
void osw_depthwise_finish(const osw_depthwise *d, osw_dtype dtype, int64_t count, const void *sums,
                          double *totals, void *grad_weight, void *grad_bias);

#endif
