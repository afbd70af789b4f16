/* SPDX-License-Identifier: MIT */
#include "core/ints.h"
#include "core/isa.h"
#include "core/scratch.h"
#include "driver_contract.h"

#define BREACHES(X)                                                                                \
    X(NOTHING) X(OUTER_BYTES) X(INNER_BYTES) X(ISA) X(NEGATIVE) X(DIVISOR) X(MULTIPLE)
enum { BREACHES(DRIVER_BREACH_ID) };

static void call(int breach)
{
    osw_scratch_outer((size_t)OSW_SCRATCH_OUTER + (breach == OUTER_BYTES));
    osw_scratch_inner((size_t)OSW_SCRATCH_INNER + (breach == INNER_BYTES));
    osw_isa_name((osw_isa)(OSW_ISA_COUNT - (breach != ISA)));
    osw_ceil(breach == NEGATIVE ? -1 : 0, breach == DIVISOR ? 0 : 1);
    osw_round_up(INT64_MAX - (breach != MULTIPLE), 2);
}

DRIVER_CONTRACT(core);
