/* SPDX-License-Identifier: MIT */
#include "driver_contract.h"
#include "pool/run.h"

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(INPUT)                                                                                       \
    X(OUTPUT) X(LAST_WINDOW) X(KERNEL) X(STRIDE) X(PADDING) X(DILATION) X(IMAGES) X(CHANNELS)      \
        X(NARROW_BLOCK) X(WIDE_BLOCK) X(UNITS) X(PIXEL_STEP) X(WIDE) X(INDICES)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { SIZE = 8, HALF = SIZE / 2 };

static void call(int breach)
{
    static float x[SIZE], y[SIZE];
    static int32_t offsets[SIZE];
    static int64_t indices[SIZE];
    osw_pool pool = {
        .dims = {{1, 1, 1, 1, 0, 1},
                 {1, 1, 1, 1, 0, 1},
                 {.input = breach == INPUT ? 0 : SIZE,
                  .output = breach == OUTPUT ? 0 : HALF + (breach == LAST_WINDOW),
                  .kernel = breach == KERNEL ? 0 : 2,
                  .stride = breach == STRIDE ? 0 : 2,
                  .padding = breach == PADDING ? 2 : 0,
                  .dilation = breach == DILATION ? 0 : 1}},
        .images = breach == IMAGES ? 0 : 1,
        .channels = breach == CHANNELS ? 2 : 1,
        .input_channels = 1,
        .channel_step = 1,
        .block = breach == NARROW_BLOCK ? OSW_POOL_MIN_BLOCK / 2
                 : breach == WIDE_BLOCK ? 2 * OSW_POOL_MAX_BLOCK
                                        : OSW_POOL_MIN_BLOCK,
        .input = {x, SIZE, SIZE, breach == PIXEL_STEP ? 2 : 1},
        .output = {y, HALF, HALF, 1},
        .offsets = {offsets, HALF, HALF, 1},
        .wide = breach != WIDE,
    };
    osw_pool_job job = {&pool, osw_pool_table[OSW_POOL_max_planes_f32], true, false, 1, sizeof x};
    job.units = breach == UNITS ? 0 : 1;
    osw_pool_run(&job);
    job.kernel = osw_pool_table[OSW_POOL_adaptive_max_planes_f32];
    job.has_window = false;
    osw_pool_run(&job);
    for (int i = 0; i < HALF; i++)
        offsets[i] = 0;
    pool.dims[2].stride *= breach != INDICES;
    const osw_pool_indices work = {.pool = &pool, .indices = {indices, HALF, HALF, 1}};
    osw_pool_run_indices(&work, 1, sizeof indices);
}

DRIVER_CONTRACT(pool);
