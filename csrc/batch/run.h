/* SPDX-License-Identifier: MIT */
/* Images of any strides into a batch of one size, padded at the right and at the bottom. */
#ifndef OSW_BATCH_RUN_H
#define OSW_BATCH_RUN_H

#include "batch/batch.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum osw_batch_dtype {
    OSW_BATCH_U8,
    OSW_BATCH_U16,
    OSW_BATCH_F16,
    OSW_BATCH_BF16,
    OSW_BATCH_F32,
    OSW_BATCH_F64, /* of images only */
    OSW_BATCH_DTYPES
} osw_batch_dtype;

int64_t osw_batch_itemsize(osw_batch_dtype dtype);

/* Pixels from the upper left one on; strides in bytes, of any sign. height and width are at least 1
 * and at most those of the batch. */
typedef struct osw_batch_image {
    const char *data;
    int64_t height, width;
    int64_t row_stride, pixel_stride, channel_stride;
    bool aligned; /* every element is at a multiple of its size */
} osw_batch_image;

typedef struct osw_batch_job {
    const osw_batch_image *images;
    int64_t count;
    int64_t channels;
    osw_batch_dtype from, to;
    bool move;   /* from == to, no arithmetic; else `to` is float and `from` no bfloat16 */
    bool planes; /* the batch is (count, channels, height, width), else (count, height, width,
                    channels) */
    char *batch;
    int64_t height, width;
    const void *padding; /* one element of `to` per channel */
    float scale;
    const float *mean, *std; /* one value per channel */
    int64_t stream_bytes; /* a converted batch of so many bytes goes around the caches; 0: none */
} osw_batch_job;

/* Do the job on this thread with these kernels, a copy of osw_batch_table. -1, before anything is
 * written, if there is no memory. */
int osw_batch_run(const osw_batch_job *job, osw_batch_fn *const kernels[OSW_BATCH_COUNT]);

#endif
