/* SPDX-License-Identifier: MIT */
#include "driver_contract.h"
#include "linear/run.h"

#define BREACHES(X)                                                                                \
    X(NOTHING)                                                                                     \
    X(ROWS)                                                                                        \
    X(GROUPS)                                                                                      \
    X(IN_FEATURES)                                                                                 \
    X(FIRST)                                                                                       \
    X(FALLING) X(DTYPE) X(WEIGHT) X(PART_ROWS) X(ROW_PARTS) X(PARTS_OF_16_BITS) X(LINES)           \
        X(LINE_COUNT) X(PART_OF_AN_IMAGE) X(LINES_OF_16_BITS) X(LINES_OF_GROUPS) X(STEP_OF_A_LINE) \
            X(STEP_OF_A_PIXEL) X(PLANES_WITHOUT_LINES)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { FEATURES = 3, OUTPUTS = 3, COUNT = 2 };

static void call(int breach)
{
    static const float x[2 * COUNT * FEATURES], weight[OUTPUTS * FEATURES];
    static float y[COUNT * OUTPUTS];
    static uint64_t calls[OSW_LINEAR_COUNT];
    static char parts[4096];
    const int64_t first[] = {breach == FIRST, breach == FALLING ? OUTPUTS + 1 : 1, OUTPUTS};
    osw_linear_job job = {
        .linear = {.rows = breach == ROWS ? 0 : COUNT,
                   .groups = breach == GROUPS ? 0 : 2,
                   .in_features = breach == IN_FEATURES ? 0 : FEATURES,
                   .first = first,
                   .input = {(void *)(uintptr_t)x, 2 * FEATURES, FEATURES},
                   .output = {y, OUTPUTS, 0},
                   .weight = breach == WEIGHT ? NULL : weight},
        .dtype = breach == DTYPE ? OSW_DTYPE_COUNT : OSW_F32,
    };
    if (breach >= LINES) {
        job.linear.lines.rows = breach == LINES ? -1 : breach == PART_OF_AN_IMAGE ? 3 : 1;
        job.linear.lines.count = breach == LINE_COUNT ? 0 : 1;
        job.linear.groups = breach == LINES_OF_GROUPS ? 2 : 1;
        job.dtype = breach == LINES_OF_16_BITS ? OSW_F16 : OSW_F32;
        if (breach == STEP_OF_A_LINE) /* rows of the gradient overlap */
            job.linear.grad_input = (osw_linear_rows){y, FEATURES - 1, 0};
        if (breach == STEP_OF_A_PIXEL || breach == PLANES_WITHOUT_LINES)
            job.linear.planes = true;
        if (breach == PLANES_WITHOUT_LINES)
            job.linear.lines.rows = 0;
    }
    osw_linear_plan(&job, calls);
    if (breach == PART_ROWS)
        job.linear.part_rows = COUNT - 1;
    if (breach == ROW_PARTS)
        job.linear.row_parts = 0;
    if (breach == PARTS_OF_16_BITS) {
        job.dtype = OSW_F16;
        job.linear.row_parts = COUNT;
        job.linear.part_rows = 1;
    }
    osw_linear_run(&job, parts);
}

DRIVER_CONTRACT(linear);
