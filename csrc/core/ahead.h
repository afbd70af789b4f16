/* SPDX-License-Identifier: MIT */
/* Prefetch of what the tiles of the next block or pass read and write. Tiles touch it in strides
 * that no prefetcher of a CPU follows. Each tile asks for its share, a line or less per term: all
 * lines of a share at once, at the head of a tile, gain half as much. */
#ifndef OSW_CORE_AHEAD_H
#define OSW_CORE_AHEAD_H

#include "core/ints.h"
#include "core/simd.h"

#include <stddef.h>
#include <stdint.h>

enum { LINE_BYTES = 64, STREAMS = 4 };

/* The memory that the tiles of a pass ask for, one stream after the other, in equal shares. */
typedef struct osw_pass {
    struct {
        const char *at, *end;
    } streams[STREAMS];
    int first, count;
    int64_t share; /* bytes */
} osw_pass;

/* What a tile prefetches: `step` bytes further with each term; NULL: nothing. */
typedef struct osw_share {
    const char *at;
    int64_t step;
} osw_share;

/* `bytes` from `at` on, for so many tiles. */
static inline void add_stream(osw_pass *pass, const void *at, int64_t bytes, int64_t tiles)
{
    if (bytes <= 0)
        return;
    const char *begin = at;
    pass->streams[pass->count].at = begin;
    pass->streams[pass->count++].end = begin + bytes;
    pass->share += osw_ceil(bytes, tiles);
}

/* `bytes` from `from` on for a tile of so many terms. What is more than a line per term is asked
 * for here. */
OSW_INLINE osw_share share_of(const void *from, int64_t bytes, int64_t terms)
{
    const char *const at = from;
    const int64_t inside = osw_min_int(bytes, terms * LINE_BYTES);
    if (inside <= 0)
        return (osw_share){NULL, 0};
    for (int64_t i = inside; i < bytes; i += LINE_BYTES)
        prefetch_far(at + i);
    return (osw_share){at, osw_ceil(inside, terms)};
}

/* The share of a tile of so many terms. */
OSW_INLINE osw_share take_share(osw_pass *pass, int64_t terms)
{
    if (pass->first == pass->count)
        return (osw_share){NULL, 0};
    const char *const at = pass->streams[pass->first].at;
    const char *const end = pass->streams[pass->first].end;
    const int64_t bytes = osw_min_int(pass->share, end - at);
    pass->streams[pass->first].at += bytes;
    pass->first += at + bytes == end;
    return share_of(at, bytes, terms);
}

#endif
