/* SPDX-License-Identifier: MIT */
/* Rows of pixels copied with every second or fourth channel side by side, kept for the windows that
 * share them. */
#ifndef OSW_POOL_COMPACT_H
#define OSW_POOL_COMPACT_H

#include "pool/kernels/best.h"
#include "pool/kernels/windows.h"
#include "pool/window.h"

enum { COMPACT_FLOATS = 1 << 15 };

/* Rows of the input that have been copied with the channels of a block side by side. */
typedef struct osw_compact {
    int64_t first, channels;
    int64_t slots;
    int64_t room; /* floats of a row */
    int64_t tag[MAX_TAPS];
    float floats[COMPACT_FLOATS];
} osw_compact;

/* Rows of one image that stay: any kernel[HEIGHT] neighbours of kernel[DEPTH] neighbouring slices
 * have slots of their own only if there is one slice. */
static inline bool fits_compact(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[DEPTH].kernel == 1 && pool->channel_step > 1 &&
           LANES * dims[WIDTH].input * dims[HEIGHT].kernel <= COMPACT_FLOATS;
}

/* Blocks of channels of one size, whole vectors unless there is one block only. */
static inline void set_compact(osw_compact *compact, const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t most = COMPACT_FLOATS / (dims[WIDTH].input * dims[HEIGHT].kernel);
    const int64_t blocks = osw_ceil_div(pool->channels, most / LANES * LANES);
    const int64_t vectors = osw_ceil_div(osw_ceil_div(pool->channels, blocks), LANES);
    compact->channels = blocks == 1 ? pool->channels : vectors * LANES;
    compact->slots = dims[HEIGHT].kernel;
    compact->room = dims[WIDTH].input * compact->channels;
}

/* Begin with an image; the last block overlaps the one before. */
static inline void begin_compact(osw_compact *compact, const osw_pool *pool, int64_t first)
{
    compact->first = osw_min(first, pool->channels - compact->channels);
    for (int64_t i = 0; i < compact->slots; i++)
        compact->tag[i] = -1;
}

/* A vector of channels of a window over copied rows; count is a constant in the calls that matter.
 */
OSW_INLINE osw_best window_max_floats(const osw_window *window, int64_t c, const int count)
{
    osw_best best = {load_f32((const float *)window->taps[0].at + c),
                     set1_i32(window->taps[0].tap)};
    for (int k = 1; k < count; k++)
        take(&best, load_f32((const float *)window->taps[k].at + c), set1_i32(window->taps[k].tap),
             true);
    return best;
}

#endif
