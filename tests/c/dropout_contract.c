/* SPDX-License-Identifier: MIT */
#include "driver_contract.h"
#include "dropout/run.h"

#define BREACHES(X) X(NOTHING) X(THRESHOLD) X(NEXT) X(NEXT_BEYOND) X(DRAWN) X(APPLIED)
enum { BREACHES(DRIVER_BREACH_ID) };
enum { COUNT = 17 };

static void call(int breach)
{
    static osw_twister twister;
    static float values[COUNT];
    static uint8_t mask[3];
    twister.next = breach == NEXT          ? -1
                   : breach == NEXT_BEYOND ? OSW_TWISTER_WORDS + 1
                                           : OSW_TWISTER_WORDS;
    osw_dropout_draw(osw_dropout.draw, &twister, ((uint64_t)1 << 53) + (breach == THRESHOLD), mask,
                     breach == DRAWN ? -1 : COUNT);
    osw_dropout_apply(&(osw_dropout_job){.input = (const char *)values,
                                         .mask = mask,
                                         .output = (char *)values,
                                         .scale = 2,
                                         .count = breach == APPLIED ? -1 : COUNT,
                                         .element_bytes = sizeof *values,
                                         .apply = osw_dropout.apply[OSW_F32]});
}

DRIVER_CONTRACT(dropout);
