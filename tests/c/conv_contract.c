/* SPDX-License-Identifier: MIT */
#include "conv/run.h"
#include "driver_contract.h"

#include <stdlib.h>

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(BATCH)                                                                                       \
    X(CHANNELS) X(OUTPUTS) X(SIZE) X(TAPS) X(STRIDE) X(PADDING) X(DILATION) X(OUT_SIZE)            \
        X(ELEMENT_BYTES) X(DATA) X(BLOCK_ROWS) X(PARTS)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { SIDE = 20, IN = 2, OUT = 3 };

static void call(int breach)
{
    static const float x[SIDE * SIDE * IN], dy[SIDE * SIDE * OUT];
    static float dw[OUT * 14 * IN];
    const osw_conv_axis rows = {.size = breach == SIZE ? 0 : SIDE,
                                .out_size = breach == OUT_SIZE ? SIDE + 1 : 1,
                                .taps = breach == TAPS ? OSW_CONV_MOST_TAPS + 1 : 2,
                                .stride = breach == STRIDE ? 0 : 1,
                                .padding = breach == PADDING ? -1 : 0,
                                .dilation = breach == DILATION ? 0 : 1};
    osw_conv_job job = {
        .conv = {.batch = breach == BATCH ? 0 : 1,
                 .channels = breach == CHANNELS ? 0 : IN,
                 .outputs = breach == OUTPUTS ? 0 : OUT,
                 .rows = rows,
                 .columns = {SIDE, SIDE, 1, 1, 0, 1},
                 .input = {breach == DATA ? NULL : x, SIDE * SIDE * IN, SIDE * IN, IN},
                 .grad_output = {dy, SIDE * SIDE * OUT, SIDE * OUT, OUT}},
        .kernel = osw_conv_table[OSW_CONV_grad_weight_f32],
        .element_bytes = breach == ELEMENT_BYTES ? 2 : sizeof(float),
        .grad_weight = dw,
    };
    const size_t bytes = osw_conv_plan(&job);
    char *const sums = bytes ? malloc(bytes) : NULL;
    job.conv.block_rows -= breach == BLOCK_ROWS;
    job.conv.parts -= breach == PARTS;
    osw_conv_run(&job, sums);
    free(sums);
}

DRIVER_CONTRACT(conv);
