/* SPDX-License-Identifier: MIT */
#include "depthwise/run.h"
#include "driver_contract.h"

#include <stdlib.h>

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(BATCH)                                                                                       \
    X(CHANNELS)                                                                                    \
    X(TALL)                                                                                        \
    X(WIDE)                                                                                        \
    X(STRIDE)                                                                                      \
    X(TOP) X(LEFT) X(OUT_HEIGHT) X(OUT_WIDTH) X(DTYPE) X(DILATION) X(DILATION_OF_A_STRIDE)         \
        X(LARGE_SIDE) X(BATCH_OF_A_RUN)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { WIDTH = 2, HEIGHT = 9 };

static void call(int breach)
{
    static const float x[HEIGHT * HEIGHT * WIDTH], weight[WIDTH * 11 * 11];
    static float y[2 * HEIGHT * HEIGHT * WIDTH];
    static uint64_t calls[OSW_DEPTHWISE_COUNT];
    osw_depthwise_job job = {
        .d = {.batch = breach == BATCH ? 0 : 1,
              .channels = breach == CHANNELS ? 0 : WIDTH,
              .height = HEIGHT,
              .width = HEIGHT,
              .tall = breach == TALL ? 4 : 3,
              .wide = breach == WIDE         ? 0
                      : breach == LARGE_SIDE ? 11
                                             : 3,
              .stride = breach == STRIDE                 ? 3
                        : breach == DILATION_OF_A_STRIDE ? 2
                                                         : 1,
              .dilation = breach == DILATION               ? 0
                          : breach == DILATION_OF_A_STRIDE ? 2
                                                           : 1,
              .top = breach == TOP ? -1 : 1,
              .left = breach == LEFT ? -1 : 1,
              .input = x,
              .output = y},
        .weight_dtype = breach == DTYPE ? OSW_F16 : OSW_F32,
        .weight = weight,
    };
    osw_depthwise *d = &job.d;
    d->out_height = osw_depthwise_outputs(d, d->tall, HEIGHT, d->top) + (breach == OUT_HEIGHT);
    d->out_width = osw_depthwise_outputs(d, d->wide, HEIGHT, d->left) + (breach == OUT_WIDTH);
    char *const room = malloc(osw_depthwise_plan(&job, false, calls));
    d->batch -= breach == BATCH_OF_A_RUN;
    osw_depthwise_forward(&job, room);
    free(room);
}

DRIVER_CONTRACT(depthwise);
