/* SPDX-License-Identifier: MIT */
#include "driver_contract.h"
#include "layer_norm/run.h"

#include <stdlib.h>

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(CHANNELS) X(ROWS) X(DTYPE) X(GRADIENTS) X(CHUNK) X(CHUNKS)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { WIDTH = 4, LENGTH = 70 };

static void call(int breach)
{
    static float x[WIDTH * LENGTH], y[WIDTH * LENGTH];
    static double statistics[2 * LENGTH], gradients[2][WIDTH];
    static uint64_t calls[OSW_LAYER_NORM_COUNT];
    osw_layer_norm_job job = {
        .norm = {.channels = breach == CHANNELS ? 0 : WIDTH,
                 .eps = 1e-5,
                 .x = x,
                 .y = y,
                 .dy = x,
                 .dx = y,
                 .statistics = statistics},
        .dtype = breach == DTYPE ? OSW_DTYPE_COUNT : OSW_F32,
        .rows = breach == ROWS ? 0 : LENGTH,
        .grad_weight = gradients[0],
        .grad_bias = breach == GRADIENTS ? NULL : gradients[1],
    };
    for (int backward = 0; backward < 2; backward++) {
        char *const room = malloc(osw_layer_norm_plan(&job, backward, calls));
        job.chunk = breach == CHUNK ? LENGTH - 1 : job.chunk;
        job.chunks += breach == CHUNKS;
        (backward ? osw_layer_norm_backward : osw_layer_norm_forward)(&job, room);
        free(room);
    }
}

DRIVER_CONTRACT(layer_norm);
