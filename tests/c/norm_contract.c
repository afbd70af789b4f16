/* SPDX-License-Identifier: MIT */
#include "driver_contract.h"
#include "norm/group_run.h"

#include <stdlib.h>

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(IMAGES)                                                                                      \
    X(CHANNELS) X(POSITIONS) X(ACTIVATION) X(FORM) X(DTYPE) X(GRADIENTS) X(CHUNK) X(CHUNKS)        \
        X(GROUPS) X(GROUPS_OF_PLANES) X(GROUPS_OF_NO_BATCH) X(GROUP_CHUNK)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { WIDTH = 4, PIXELS = 70 };

static float x[WIDTH * PIXELS], y[WIDTH * PIXELS];
static double vectors[8][WIDTH];
static uint64_t calls[OSW_NORM_COUNT];

/* Pixels in training; whose backward gets its gradients only later. */
static osw_norm_job make_job(int breach)
{
    return (osw_norm_job){
        .norm = {.images = breach == IMAGES ? 0 : 1,
                 .channels = breach == CHANNELS ? 0 : WIDTH,
                 .positions = breach == POSITIONS ? 0 : PIXELS,
                 .x = {x, WIDTH * PIXELS},
                 .y = {y, WIDTH * PIXELS},
                 .activation.kind = breach == ACTIVATION ? OSW_ACTIVATION_COUNT : OSW_RELU},
        .form = breach == FORM ? OSW_NORM_PIXELS + 1 : OSW_NORM_PIXELS,
        .dtype = breach == DTYPE ? OSW_DTYPE_COUNT : OSW_F32,
        .training = true,
        .eps = 1e-5,
        .mean = vectors[0],
        .var = vectors[1],
    };
}

static void normalise(int breach)
{
    osw_norm_job job = make_job(breach);
    double *const scratch = calloc((size_t)osw_norm_prepare(&job), sizeof *scratch);
    osw_norm_choose(&job, false, calls);
    job.chunk -= breach == CHUNK;
    job.chunks += breach == CHUNKS;
    osw_norm_forward(&job, scratch);
    job.norm.y.base = NULL;
    job.norm.dy = job.norm.x;
    job.norm.dx = (osw_norm_tensor){y, WIDTH * PIXELS};
    job.grad_weight = vectors[2];
    job.grad_bias = breach == GRADIENTS ? NULL : vectors[3];
    osw_norm_choose(&job, true, calls);
    osw_norm_backward(&job, scratch);
    free(scratch);
}

static void normalise_groups(int breach)
{
    osw_group_job job = {.all = make_job(breach), .statistics = vectors[4]};
    job.groups = breach == GROUPS ? WIDTH - 1 : WIDTH / 2;
    job.all.form = breach == GROUPS_OF_PLANES ? OSW_NORM_PLANES : OSW_NORM_PIXELS;
    job.all.training = breach != GROUPS_OF_NO_BATCH;
    double *const scratch = calloc((size_t)osw_group_prepare(&job), sizeof *scratch);
    osw_norm_choose(&job.all, false, calls);
    job.all.chunk -= breach == GROUP_CHUNK;
    osw_group_forward(&job, scratch);
    free(scratch);
}

static void call(int breach)
{
    normalise(breach);
    normalise_groups(breach);
}

DRIVER_CONTRACT(norm);
