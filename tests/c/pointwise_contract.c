/* SPDX-License-Identifier: MIT */
#include "driver_contract.h"
#include "pointwise/run.h"

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(IMAGES)                                                                                      \
    X(PIXELS)                                                                                      \
    X(IN_PLANES)                                                                                   \
    X(OUT_PLANES)                                                                                  \
    X(DTYPE)                                                                                       \
    X(WEIGHT) X(PARTS) X(PART_IMAGES) X(PLANES_OVERLAP) X(IMAGES_OVERLAP) X(GRADIENTS_OVERLAP)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { COUNT = 2, PIXEL_COUNT = 3, INPUTS = 2, OUTPUTS = 2 };

static void call(int breach)
{
    static const float x[COUNT * INPUTS * PIXEL_COUNT], weight[OUTPUTS * INPUTS];
    static float y[COUNT * OUTPUTS * PIXEL_COUNT];
    static uint64_t calls[OSW_POINTWISE_COUNT];
    static char parts[4096];
    const int64_t plane = breach == PLANES_OVERLAP ? PIXEL_COUNT - 1 : PIXEL_COUNT;
    const int64_t image = breach == IMAGES_OVERLAP ? OUTPUTS * plane - 1 : OUTPUTS * plane;
    osw_pointwise_job job = {
        .planes = {.images = breach == IMAGES ? 0 : COUNT,
                   .pixels = breach == PIXELS ? 0 : PIXEL_COUNT,
                   .in_planes = breach == IN_PLANES ? 0 : INPUTS,
                   .out_planes = breach == OUT_PLANES ? 0 : OUTPUTS,
                   .input = {(void *)(uintptr_t)x, INPUTS * PIXEL_COUNT, PIXEL_COUNT},
                   .output = {y, image, plane},
                   .weight = breach == WEIGHT ? NULL : weight},
        .dtype = breach == DTYPE ? OSW_BF16 : OSW_F32,
    };
    if (breach == GRADIENTS_OVERLAP) {
        job.planes.grad_output = job.planes.input;
        job.planes.grad_input = (osw_pointwise_images){y, 0, PIXEL_COUNT};
        job.planes.output.base = NULL;
    }
    osw_pointwise_plan(&job, calls);
    if (breach == PARTS)
        job.planes.parts = 0;
    if (breach == PART_IMAGES)
        job.planes.part_images = COUNT - 1;
    osw_pointwise_run(&job, parts);
}

DRIVER_CONTRACT(pointwise);
