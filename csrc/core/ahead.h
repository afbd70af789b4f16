/* SPDX-License-Identifier: MIT */
/* Prefetch of the next block's pixels in equal parts between tiles, which touch a block in strides
 * that no prefetcher of a CPU follows. All at once, at the head of a block, gains half as much. */
#ifndef OSW_CORE_AHEAD_H
#define OSW_CORE_AHEAD_H

#include "core/ints.h"
#include "core/simd.h"

#include <stdint.h>

enum { LINE_BYTES = 64 };

typedef struct osw_ahead {
    const char *at, *end;
    int64_t step;
} osw_ahead;

/* `bytes` from `at` on, in `calls` parts. */
static inline osw_ahead ahead_of(const void *at, int64_t bytes, int64_t calls)
{
    const char *begin = at;
    return (osw_ahead){begin, begin + bytes, osw_round_up(osw_ceil(bytes, calls), LINE_BYTES)};
}

OSW_INLINE void ask_ahead(osw_ahead *ahead)
{
    const char *stop = ahead->at + osw_min_int(ahead->step, ahead->end - ahead->at);
    for (; ahead->at < stop; ahead->at += LINE_BYTES)
        prefetch_far(ahead->at);
}

enum { STREAMS = 4 }; /* images that a pass reads and writes */

/* The streams of a pass, and the tiles between which their next blocks are asked for. */
typedef struct osw_pass {
    osw_ahead ahead[STREAMS];
} osw_pass;

OSW_INLINE void ask_all(osw_pass *pass)
{
    OSW_UNROLL
    for (int i = 0; i < STREAMS; i++)
        ask_ahead(&pass->ahead[i]);
}

#endif
