/* SPDX-License-Identifier: MIT */
/* The maximum of whole planes: amax, and adaptive_max with one output a channel. Planes are read in
 * vectors along the plane. What is shorter than a vector, and what has a NaN, is left to the tier
 * below. */
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/keys.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* The greatest key of one plane of at least a vector, in all lanes; false if it has a NaN. */
OSW_INLINE bool LOCAL(plane_best)(const ELEMENT *x, int64_t count, KEY(keys) * best)
{
    KEY(keys) a = KEY(load_keys)(x), b = a;
    PLACE(places) seen = KEY(watch_keys)((PLACE(places)){0}, a);
    for (int64_t i = KEYS; i < count; i += 2 * KEYS) {
        const KEY(keys) first = KEY(load_keys)(x + osw_min(i, count - KEYS));
        const KEY(keys) second = KEY(load_keys)(x + osw_min(i + KEYS, count - KEYS));
        seen = KEY(watch_keys)(KEY(watch_keys)(seen, first), second);
        a = KEY(max)(first, a);
        b = KEY(max)(second, b);
    }
    *best = KEY(max_lanes)(KEY(max)(b, a));
    return !KEY(saw_nan)(seen, *best, KEY_INFINITY);
}

/* A bit for every key among up to CHUNK, at least a vector of them, that equals the best. */
OSW_INLINE uint64_t LOCAL(equal_keys)(const ELEMENT *x, int64_t count, KEY(keys) best)
{
    uint64_t mask = 0;
    for (int64_t i = 0; i < count; i += KEYS) {
        const int64_t at = osw_min(i, count - KEYS);
        mask |= (uint64_t)PLACE(bits)(KEY(load_keys)(x + at) == best) << at;
    }
    return mask;
}

/* The first position of the best key. */
OSW_INLINE int32_t LOCAL(plane_position)(const ELEMENT *x, int64_t count, KEY(keys) best)
{
    for (int64_t i = 0;; i += CHUNK) {
        const int64_t at = osw_min(i, count - KEYS);
        const uint64_t mask = LOCAL(equal_keys)(x + at, osw_min(CHUNK, count - at), best);
        if (mask)
            return (int32_t)(at + __builtin_ctzll(mask));
    }
}

/* What amax notes of a plane. In planes of several chunks that costs more than it saves. */
OSW_INLINE int32_t LOCAL(plane_note)(const ELEMENT *x, int64_t count, KEY(keys) best)
{
    if (count > CHUNK)
        return OSW_POOL_SOMEWHERE;
    const uint64_t mask = LOCAL(equal_keys)(x, count, best);
    const int32_t first = (int32_t)__builtin_ctzll(mask);
    return (mask & (mask - 1)) ? ~first : first;
}

/* One plane; false if it has a NaN. */
OSW_INLINE bool LOCAL(plane_max)(const ELEMENT *x, int64_t count, ELEMENT *y, int32_t *position,
                          const bool ties)
{
    KEY(keys) best;
    if (!LOCAL(plane_best)(x, count, &best))
        return false;
    if (position)
        *position = ties ? LOCAL(plane_note)(x, count, best) : LOCAL(plane_position)(x, count, best);
    /* Of two zeros the first counts, and the sign of the best key is that of any. */
    if (PLACE(any)(best == (KEY(keys)){0}))
        *y = x[LOCAL(plane_position)(x, count, best)];
    else
        *y = (ELEMENT)KEY(elements_of)(best)[0];
    return true;
}

OSW_INLINE void LOCAL(max_of_planes)(const osw_pool *pool, int64_t begin, int64_t end,
                              osw_pool_fn *exactly, const bool ties)
{
    const int64_t count = osw_input_plane(pool);
    if (count < KEYS) {
        exactly(pool, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t n = unit / pool->channels, c = unit % pool->channels;
        const ELEMENT *x = OSW_POOL_AT(const ELEMENT, &pool->input, n, c, 0);
        ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, n, c, 0);
        int32_t *position = NULL;
        if (pool->offsets.base)
            position = OSW_POOL_AT(int32_t, &pool->offsets, n, c, 0);
        if (!LOCAL(plane_max)(x, count, y, position, ties))
            exactly(pool, unit, unit + 1);
    }
}

static void KERNEL(amax_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(max_of_planes)(pool, begin, end, below[ID_OF(amax_planes)], true);
}
