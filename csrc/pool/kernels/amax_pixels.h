/* SPDX-License-Identifier: MIT */
/* The maximum of whole planes of pixels: amax, and adaptive_max with one output a channel. Pixels
 * are read in vectors of channels, position by position. What is shorter than a vector, and what
 * has a NaN, is left to the tier below. */
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/keys.h"
#include "pool/window.h"

#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* The best key of every channel of a block so far, its first position and its last. */
typedef struct LOCAL(state) {
    ELEMENT best[OSW_POOL_MAX_BLOCK];
    PLACE(place) first[OSW_POOL_MAX_BLOCK];
    PLACE(place) last[OSW_POOL_MAX_BLOCK];
} LOCAL(state);

/* `count` positions from p on of one vector of channels; x is channel 0 of the first. */
OSW_INLINE PLACE(places)
    LOCAL(take_keys)(LOCAL(state) *state, int64_t c, const ELEMENT *x, int64_t step,
                                   int64_t p, PLACE(places) seen, const int found, const int count)
{
    KEY(keys) best = KEY(load)(state->best + c);
    PLACE(places) first = {0}, last = {0};
    if (found != VALUES)
        first = PLACE(load)(state->first + c);
    if (found == FIRST_AND_LAST)
        last = PLACE(load)(state->last + c);
    for (int k = 0; k < count; k++) {
        const KEY(keys) keys = KEY(load_keys)(x + k * step + c);
        const PLACE(places) at = PLACE(set1)((PLACE(place))(p + k));
        if (found != VALUES)
            first = PLACE(select)(keys > best, at, first);
        if (found == FIRST_AND_LAST)
            last = PLACE(select)(best > keys, last, at);
        best = KEY(max)(keys, best);
        seen = KEY(watch_keys)(seen, keys);
    }
    KEY(store)(state->best + c, best);
    if (found != VALUES)
        PLACE(store)(state->first + c, first);
    if (found == FIRST_AND_LAST)
        PLACE(store)(state->last + c, last);
    return seen;
}

/* The same of all channels, of which the last vector overlaps: nothing changes when a position is
 * taken twice. */
OSW_INLINE PLACE(places) LOCAL(take_pixels)(
    LOCAL(state) *state, int64_t channels, const ELEMENT *x, int64_t step, int64_t p,
                PLACE(places) seen, const int found, const int count)
{
    int64_t c = 0;
    for (; c + KEYS <= channels; c += KEYS)
        seen = LOCAL(take_keys)(state, c, x, step, p, seen, found, count);
    if (c < channels)
        seen = LOCAL(take_keys)(state, channels - KEYS, x, step, p, seen, found, count);
    return seen;
}

/* Whether the input may still be in the caches. */
OSW_INLINE bool LOCAL(is_cached)(const osw_pool *pool)
{
    const int64_t elements = pool->images * pool->channels * osw_input_plane(pool);
    return elements * (int64_t)sizeof(ELEMENT) <= 8 << 20;
}

/* All positions of `channels` channels, at least a vector. Several short ones are taken together,
 * which spares the state; long ones are read faster one after the other, as they lie in memory
 * (Zen 4, 1 KB: 1.5 times), unless the state is large and the input is in the caches. */
OSW_INLINE bool LOCAL(pass_pixels)(const osw_pool *pool, const ELEMENT *x, int64_t channels,
                                   LOCAL(state) *state,
                            const int found)
{
    enum { SHORT = 256 / (int)sizeof(ELEMENT), TOGETHER = 4 };
    const int64_t count = osw_input_plane(pool), step = pool->input.pixel_step;
    PLACE(places) seen = {0};
    KEY(keys) best = {0};
    for (int64_t i = 0; i < channels; i += KEYS) {
        const int64_t c = osw_min(i, channels - KEYS);
        KEY(store)(state->best + c, KEY(load_keys)(x + c));
        seen = KEY(watch_keys)(seen, KEY(load_keys)(x + c));
    }
    memset(state->first, 0, (size_t)channels * sizeof *state->first);
    memset(state->last, 0, (size_t)channels * sizeof *state->last);
    int64_t p = 1;
    const bool together = step <= SHORT || (found == FIRST_AND_LAST && LOCAL(is_cached)(pool));
    for (; together && p + TOGETHER <= count; p += TOGETHER)
        seen = LOCAL(take_pixels)(state, channels, x + p * step, step, p, seen, found, TOGETHER);
    for (; p < count; p++)
        seen = LOCAL(take_pixels)(state, channels, x + p * step, step, p, seen, found, 1);
    for (int64_t i = 0; i < channels; i += KEYS)
        best = KEY(max)(KEY(load)(state->best + osw_min(i, channels - KEYS)), best);
    return !KEY(saw_nan)(seen, best, KEY_INFINITY);
}

/* Best keys as elements; a zero has the sign of the first one of its channel. */
OSW_INLINE void LOCAL(store_best)(const osw_pool *pool, const ELEMENT *x, int64_t channels,
                           const LOCAL(state) *state, ELEMENT *y)
{
    for (int64_t i = 0; i < channels; i += KEYS) {
        const int64_t c = osw_min(i, channels - KEYS);
        const KEY(keys) keys = KEY(load)(state->best + c);
        KEY(store)(y + c, KEY(elements_of)(keys));
        if (!KEY(lost_sign)(keys))
            continue;
        for (int64_t lane = c; lane < c + KEYS; lane++) {
            const ELEMENT *zero = x + lane;
            while (state->best[lane] == 0 && LOAD(*zero) != 0)
                zero += pool->input.pixel_step;
            if (state->best[lane] == 0)
                y[lane] = *zero;
        }
    }
}

/* The first positions, inverted if there are others. */
OSW_INLINE void
LOCAL(store_positions)(const LOCAL(state) *state, int64_t channels, int32_t *to, const int found)
{
    for (int64_t i = 0; i < channels; i += LANES) {
        const int64_t c = osw_min(i, channels - LANES);
        vi32 first = PLACE(wide_places)(state->first + c);
        if (found == FIRST_AND_LAST) {
            const vi32 last = PLACE(wide_places)(state->last + c);
            first ^= first != last;
        }
        store_i32(to + c, first);
    }
}

/* One block of channels; false if it is too short, has a NaN, or too many positions. */
OSW_INLINE bool LOCAL(max_of_pixels)(const osw_pool *pool, const osw_block *block, const int found)
{
    const int64_t channels = block->end - block->first, n = block->image, c = block->first;
    const ELEMENT *x = OSW_POOL_AT(const ELEMENT, &pool->input, n, c, 0);
    ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, n, c, 0);
    const bool countable = sizeof(PLACE(place)) > 2 || osw_input_plane(pool) <= UINT16_MAX;
    LOCAL(state) state;
    if (channels < KEYS || !countable || !LOCAL(pass_pixels)(pool, x, channels, &state, found))
        return false;
    LOCAL(store_best)(pool, x, channels, &state, y);
    if (found != VALUES)
        LOCAL(
            store_positions)(&state, channels, OSW_POOL_AT(int32_t, &pool->offsets, n, c, 0), found);
    return true;
}

static void KERNEL(amax_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_block block = osw_block_of(pool, unit);
        if (!LOCAL(max_of_pixels)(pool, &block, FIRST_AND_LAST))
            below[ID_OF(amax_pixels)](pool, unit, unit + 1);
    }
}
