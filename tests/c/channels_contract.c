/* SPDX-License-Identifier: MIT */
#include "channels/plan.h"
#include "driver_contract.h"

#include <stdlib.h>

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(GROUPS)                                                                                      \
    X(ELEMENT_BYTES) X(CHANNELS) X(INPUTS) X(OUTPUTS) X(CHANNEL_STEP) X(IMAGES) X(PIXELS)          \
        X(PLANE_BYTES) X(ROWS) X(COLUMNS)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { WIDTH = 6 };

static void call(int breach)
{
    static float x[2 * WIDTH], y[2 * WIDTH];
    const int64_t bytes = sizeof *x, step = breach == CHANNEL_STEP ? 2 * bytes : bytes;
    const osw_segment in = {(char *)x, WIDTH - (breach == INPUTS), step, WIDTH * bytes,
                            WIDTH * bytes};
    const osw_segment out = {(char *)y, WIDTH + (breach == OUTPUTS), bytes, WIDTH * bytes,
                             WIDTH * bytes};
    const osw_shuffle shuffle = {
        .inputs = {&in, 1},
        .outputs = {&out, 1},
        .groups = breach == GROUPS ? 4 : 2,
        .channels = breach == CHANNELS ? 0 : WIDTH,
        .element_bytes = breach == ELEMENT_BYTES ? 3 : bytes,
    };
    osw_plan plan;
    void *const scratch = malloc(osw_plan_bytes(&shuffle));
    osw_plan_pixels(&plan, &shuffle, breach == IMAGES ? 0 : 1, breach == PIXELS ? 0 : 2, scratch);
    plan.runs[0].rows *= breach != ROWS;
    plan.runs[0].columns *= breach != COLUMNS;
    osw_plan_execute(&plan);
    osw_plan_planes(&plan, &shuffle, 1, breach == PLANE_BYTES ? 0 : bytes, scratch);
    osw_plan_execute(&plan);
    free(scratch);
}

DRIVER_CONTRACT(channels);
