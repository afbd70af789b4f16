/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what dropout.h says of its numbers; asserted when kernels are called. */
#ifndef OSW_DROPOUT_HOLDS_H
#define OSW_DROPOUT_HOLDS_H

#include "dropout/dropout.h"

#include <stdbool.h>

static inline bool osw_draw_holds(const osw_twister *twister, uint64_t threshold, int64_t count)
{
    return twister->next >= 0 && twister->next <= OSW_TWISTER_WORDS &&
           threshold <= (uint64_t)1 << 53 && count >= 0;
}

/* Elements [begin, end) of `count`. */
static inline bool osw_mask_part_holds(int64_t begin, int64_t end, int64_t count)
{
    return begin >= 0 && begin % 8 == 0 && begin <= end && end <= count;
}

#endif
