/* SPDX-License-Identifier: MIT */
/* Rows of pixels copied with every second or fourth channel side by side, kept for the windows that
 * share them. */
#ifndef OSW_POOL_COMPACT_H
#define OSW_POOL_COMPACT_H

#include "pool/kernels/best.h"
#include "pool/kernels/windows.h"
#include "pool/window.h"

enum { COMPACT_FLOATS = 1 << 16 };

/* Rows of the input that have been copied with the channels of a block side by side, or the maxima
 * along them, and behind these their columns if offsets are wanted. */
typedef struct osw_compact {
    int64_t first, channels;
    int64_t slots;
    int64_t room;  /* floats of a row, or columns, a byte each */
    int64_t pitch; /* floats from one row to the next */
    int64_t tag[MAX_TAPS];
    float *line; /* behind the rows: a copied row whose maxima are kept */
    float floats[COMPACT_FLOATS + MAX_TAPS];
} osw_compact;

/* Quarters of floats per channel. */
static inline int64_t compact_size(const osw_pool *pool, bool maxima)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t copied = pool->channel_step > 1 ? 4 * dims[WIDTH].input : 0;
    const int64_t kept = dims[HEIGHT].kernel * dims[WIDTH].output;
    return maxima ? kept * (pool->offsets.base ? 5 : 4) + copied : dims[HEIGHT].kernel * copied;
}

static inline bool fits_channels(const osw_pool *pool, int64_t channels, bool maxima)
{
    return channels * compact_size(pool, maxima) <= 4 * COMPACT_FLOATS;
}

/* Rows of one image that stay: any kernel[HEIGHT] neighbours of kernel[DEPTH] neighbouring slices
 * have slots of their own only if there is one slice. */
static inline bool fits_compact(const osw_pool *pool)
{
    return pool->dims[DEPTH].kernel == 1 && pool->channel_step > 1 && fits_window(pool) &&
           fits_channels(pool, LANES, false);
}

/* Rows whose maxima serve several rows of the output, so that fewer values are compared. Blocks of
 * channels take longer to read from memory than all channels of a position: for them the gain must
 * be greater. */
static inline bool fits_maxima(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t taps = dims[HEIGHT].kernel * dims[WIDTH].kernel;
    const int64_t compared = dims[HEIGHT].stride * dims[WIDTH].kernel + dims[HEIGHT].kernel;
    return dims[DEPTH].kernel == 1 && compared < taps && fits_rows(pool) &&
           (fits_channels(pool, pool->channels, true) ||
            (2 * compared < taps && fits_channels(pool, LANES, true)));
}

/* Blocks of channels of one size, whole vectors unless there is one block only. */
static inline void set_compact(osw_compact *compact, const osw_pool *pool, bool maxima)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t most = 4 * COMPACT_FLOATS / compact_size(pool, maxima);
    const int64_t blocks = osw_ceil_div(pool->channels, most / LANES * LANES);
    const int64_t vectors = osw_ceil_div(osw_ceil_div(pool->channels, blocks), LANES);
    compact->channels = blocks == 1 ? pool->channels : vectors * LANES;
    compact->slots = dims[HEIGHT].kernel;
    compact->room = (maxima ? dims[WIDTH].output : dims[WIDTH].input) * compact->channels;
    compact->pitch = compact->room;
    if (maxima && pool->offsets.base)
        compact->pitch += osw_ceil_div(compact->room, 4);
    compact->line = compact->floats + compact->slots * compact->pitch;
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

/* A vector of the maxima along a row, `at` floats into it, and which taps they are. */
OSW_INLINE osw_best maxima_at(const osw_compact *compact, const osw_rows *rows, int r, int64_t at,
                              const bool with_taps)
{
    const float *row = (const float *)rows->at[r];
    osw_best best = {load_f32(row + at), set1_i32(rows->tap[r])};
    if (with_taps)
        best.tap += load_u8_i32((const uint8_t *)(row + compact->room) + at);
    return best;
}

#endif
