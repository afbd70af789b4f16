/* SPDX-License-Identifier: MIT */
/* Chains of convolutions, each with a batch normalisation and an activation behind it, of float32
 * images whose channels come last: what every kernel of the family does.
 *
 * A stage computes the outputs z of a convolution, 1 x 1 or depthwise, or in evaluation dense: with
 * any window, of all channels. Between two stages stands
 * the normalisation `before` the later one: its input is not what the earlier stage wrote, but
 *
 *     x = f((z - center) * scale + shift)
 *
 * per channel, with f as in norm/norm.h. Nothing normalised is written to memory but the result of
 * the chain. The backward of a stage gets d, the gradient of what its normalisation `after` makes
 * of z, and computes, block by block,
 *
 *     dz = d * f'((z - center) * scale + shift) * scale + (z - center) * tilt + offset
 *
 * Operations, per part of a stage:
 *
 *     pointwise_forward,   output = z; center = the mean of a few values of each output channel,
 *     depthwise_forward    first = sum of z - center, second = sum of (z - center)^2 over the part
 *     pointwise_backward,  weights = the part's share of the gradient of the weight; grad_input =
 *     depthwise_backward   the gradient of x, unless it is NULL; then, with a normalisation before,
 *                          first = sum of d, second = sum of d * (z - center), where d =
 *                          grad_input * f'(...), z = input
 *     reduce               first and second as above, of grad and output, by `after`
 *     apply                normal = f((z - center) * scale + shift) of output, by `after`
 *     pack                 the weight of a 1 x 1 convolution as the tier's products read it, for
 *                          forward or backward
 *
 *     pointwise_folded,    output = f(z + shift) for the weight as `fold` makes it, in evaluation:
 *     depthwise_folded,    pixels, or rows of the output, [begin, end) of one image. Only shift and
 *     dense_folded         activation of `after` are read. No sums
 *
 * Sums over pixels are added in float for at most 64 pixels, then in double. Their order
 * depends on the sizes and the tier alone. A place outside of an image has no term, but
 * of a dense convolution is a zero. */
#ifndef OSW_CHAIN_CHAIN_H
#define OSW_CHAIN_CHAIN_H

#include "core/isa.h"
#include "norm/norm.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    OSW_CHAIN_MOST_STAGES = 8,
    OSW_CHAIN_FEWEST_CHANNELS = 16, /* a vector of the widest tier: no kernel has a case for less */
    OSW_CHAIN_MOST_CHANNELS = 1024,
    OSW_CHAIN_MOST_WEIGHTS = 1 << 17, /* of a 1 x 1 convolution: more gain nothing in training, */
    OSW_CHAIN_MOST_FOLDED = 1 << 19,  /* and in evaluation, of a dense one too */
    OSW_CHAIN_ROOM = 320 << 10,       /* bytes of scratch memory for the images of a band */
};

/* Arrays of a value per channel; tilt and offset for gradients only. activation: OSW_IDENTITY,
 * OSW_RELU, OSW_HARDTANH or OSW_HARDSWISH. */
typedef struct osw_chain_norm {
    float *center, *scale, *shift, *tilt, *offset;
    osw_activation activation;
} osw_chain_norm;

/* Rows and columns of taps, steps between windows, and rows and columns of zeros around the image:
 * fewer than the window has. */
typedef struct osw_chain_window {
    int64_t height, width, stride_y, stride_x, top, left;
} osw_chain_window;

/* All images are dense: pixels of `channels` or `outputs` values. What is read is not written, and
 * does not overlap what is. */
typedef struct osw_chain_stage {
    bool depthwise, dense; /* else 1 x 1 */
    int64_t batch;
    int64_t height, width, channels; /* of the input */
    int64_t out_height, out_width, outputs;
    int64_t side, stride;    /* depthwise: 3 or 5, 1 or 2; padding: side / 2. Else 1 and 1 */
    osw_chain_window window; /* of all kinds, in evaluation */
    const float *weight;     /* [outputs][terms], or depthwise [side][side][channels] */
    float *packed;           /* unless depthwise: osw_chain_packed floats, written by pack */
    bool packs_backward;
    const float *input;
    const osw_chain_norm *before; /* NULL: x is the input as it is */
    float *output;                /* z */
    float *normal;                /* written by apply */
    const float *grad;
    const osw_chain_norm *after;
    float *grad_input;
    /* Set by osw_chain_cut. */
    bool crossed;  /* the sums of the weight: [channels][outputs] in place of [outputs][channels] */
    int64_t block; /* 1 x 1: pixels that pass through the caches together; dense: rows that do */
    int64_t bands; /* depthwise: of rows of an image, that do; dense: rows */
    int64_t parts; /* with sums of their own */
    int64_t length; /* of a part, but the last: pixels, or depthwise bands of all images */
} osw_chain_stage;

/* Pixels [begin, end), bands of depthwise_forward and depthwise_backward, or rows of
 * depthwise_folded and dense_folded. */
typedef struct osw_chain_part {
    int64_t begin, end;
    double *first, *second; /* one value per channel; overwritten */
    float *center;          /* written by the forwards */
    float *weights;         /* written by the backwards: as many as the weight has */
} osw_chain_part;

typedef void osw_chain_fn(const osw_chain_stage *stage, const osw_chain_part *part);

/* The list of variants. X(operation) makes the numbers, the table and the list that tests walk. */
#define OSW_CHAIN_VARIANTS(X)                                                                      \
    X(pack)                                                                                        \
    X(pointwise_forward)                                                                           \
    X(pointwise_backward)                                                                          \
    X(depthwise_forward)                                                                           \
    X(depthwise_backward)                                                                          \
    X(reduce)                                                                                      \
    X(apply)                                                                                       \
    X(pointwise_folded)                                                                            \
    X(depthwise_folded)                                                                            \
    X(dense_folded)

#define OSW_CHAIN_ID(operation) OSW_CHAIN_##operation,
typedef enum osw_chain_id { OSW_CHAIN_VARIANTS(OSW_CHAIN_ID) OSW_CHAIN_COUNT } osw_chain_id;

/* Kernels in use, by osw_chain_id. A packed weight is for the kernels of the tier that packed it: a
 * run takes all kernels from the table at once. */
OSW_DECLARE_TABLE(osw_chain_fn, osw_chain_table, OSW_CHAIN_COUNT, osw_chain_select, osw_chain_fill);

/* Whether the kernels for `isa` are worth it: where they have vectors, and in tests. Nobody has
 * measured neon. */
bool osw_chain_leads(osw_isa isa);

static inline int64_t osw_chain_pixels(const osw_chain_stage *stage)
{
    return stage->batch * stage->out_height * stage->out_width;
}

/* Products that an output of a 1 x 1 or dense convolution is the sum of: by row, column, channel.
 */
static inline int64_t osw_chain_terms(const osw_chain_stage *stage)
{
    return stage->dense ? stage->window.height * stage->window.width * stage->channels
                        : stage->channels;
}

/* Of these, the terms of a row of the window: neighbours in the image. */
static inline int64_t osw_chain_run(const osw_chain_stage *stage)
{
    return stage->dense ? stage->window.width * stage->channels : stage->channels;
}

/* Whether zeros lie around the image of a dense convolution, and a row of it with those beside. */
static inline bool osw_chain_padded(const osw_chain_stage *stage)
{
    return stage->window.top || stage->window.left;
}

static inline int64_t osw_chain_padded_row(const osw_chain_stage *stage)
{
    return (stage->width + 2 * stage->window.left) * stage->channels;
}

static inline int64_t osw_chain_weights(const osw_chain_stage *stage)
{
    return stage->depthwise ? stage->side * stage->side * stage->channels
                            : stage->outputs * osw_chain_terms(stage);
}

/* Row 0 of an image that has rows from `first` on at `rows`: only those are used. */
static inline float *osw_chain_row_zero(float *rows, int64_t first, int64_t row)
{
    return (float *)((uintptr_t)rows - (uintptr_t)(first * row) * sizeof(float));
}

/* Floats of the packed weight, whatever the tier and the direction. */
int64_t osw_chain_packed(const osw_chain_stage *stage);

/* Whether the kernels can, in evaluation or else in training: sizes that the scratch memory has
 * room for. */
bool osw_chain_fits(const osw_chain_stage *stage, bool folded);

/* Pixels of a part, at least. Sums of parts are added up afterwards, which costs one thread time
 * and is what several ones need to share the work: on Zen 5 a step of ShuffleNetV2 with 8 images
 * takes 1.01 of the time of parts of 960 pixels on one thread, 0.8 on two. */
int64_t osw_chain_part_pixels(const osw_chain_stage *stage);

/* Set what follows from the sizes. */
void osw_chain_cut(osw_chain_stage *stage);

/* Part i, without its sums. */
osw_chain_part osw_chain_part_at(const osw_chain_stage *stage, int64_t i);

/* Band i of all images: rows [top, bottom) of the output of an image, and rows [in_top, in_bottom)
 * of its input; the bands of an image cover both. The window rows of these outputs begin with input
 * row `under`, the windows that reach these inputs with output row `over`; `under_end` and
 * `over_end` are behind the last. All of them are inside of the image. */
typedef struct osw_chain_band {
    int64_t image;
    int64_t top, bottom, in_top, in_bottom;
    int64_t under, under_end, over, over_end;
} osw_chain_band;

osw_chain_band osw_chain_band_at(const osw_chain_stage *stage, int64_t i);

#endif
