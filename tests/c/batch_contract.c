/* SPDX-License-Identifier: MIT */
#include "batch/run.h"
#include "driver_contract.h"

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(COUNT)                                                                                       \
    X(CHANNELS) X(HEIGHT) X(WIDTH) X(TALL_IMAGE) X(EMPTY_IMAGE) X(FROM) X(TO_DOUBLE) X(TO_BYTES)   \
        X(FROM_BFLOAT16) X(MOVED)
enum { BREACHES(DRIVER_BREACH_ID) };

static void call(int breach)
{
    static const float pixels[16], mean[2], std[2] = {1, 1};
    static float batch[64];
    const osw_batch_image image = {.data = (const char *)pixels,
                                   .height = breach == TALL_IMAGE ? 3 : 2,
                                   .width = breach == EMPTY_IMAGE ? 0 : 2,
                                   .row_stride = 16,
                                   .pixel_stride = 8,
                                   .channel_stride = 4,
                                   .aligned = true};
    const osw_batch_job job = {
        .images = &image,
        .count = breach == COUNT ? -1 : 1,
        .channels = breach == CHANNELS ? 0 : 2,
        .from = breach == FROM            ? OSW_BATCH_DTYPES
                : breach == FROM_BFLOAT16 ? OSW_BATCH_BF16
                                          : OSW_BATCH_F32,
        .to = breach == TO_DOUBLE  ? OSW_BATCH_F64
              : breach == TO_BYTES ? OSW_BATCH_U8
              : breach == MOVED    ? OSW_BATCH_F16
                                   : OSW_BATCH_F32,
        .move = breach == MOVED,
        .batch = (char *)batch,
        .height = breach == HEIGHT ? 0 : 2,
        .width = breach == WIDTH ? 0 : 3,
        .padding = mean,
        .scale = 1,
        .mean = mean,
        .std = std,
    };
    osw_batch_run(&job, osw_batch_table);
}

DRIVER_CONTRACT(batch);
