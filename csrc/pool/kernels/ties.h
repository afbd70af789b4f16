/* SPDX-License-Identifier: MIT */
/* Positions that equal a maximum, and what they share. */
#ifndef OSW_POOL_TIES_H
#define OSW_POOL_TIES_H

#include "core/simd.h"
#include "pool/window.h"

typedef struct osw_ties {
    float best[OSW_POOL_MAX_BLOCK];
    float hit[OSW_POOL_MAX_BLOCK];
    float miss[OSW_POOL_MAX_BLOCK];
    int32_t count[OSW_POOL_MAX_BLOCK];
} osw_ties;

typedef struct osw_tie {
    vf32 best;
    vf32 hit;
    vf32 miss;
} osw_tie;

OSW_INLINE vi32 count_hits(vi32 ties, vf32 x, vf32 best)
{
    return ties - (x == best);
}

OSW_INLINE vf32 tie_pick(const osw_tie *tie, vf32 x)
{
    return select_f32(x == tie->best, tie->hit, tie->miss);
}

/* Maxima of a block that are not alone are looked for one by one only if they are few. */
static inline bool mostly_alone(const osw_pool *pool, const osw_block *block)
{
    enum { FEW = 4 };
    if (!pool->offsets.base)
        return false;
    const int32_t *position =
        OSW_POOL_AT(const int32_t, &pool->offsets, block->image, block->first, 0);
    int64_t shared = 0;
    for (int64_t c = 0; c < block->end - block->first; c++)
        shared += position[c] < 0;
    return shared * FEW <= block->end - block->first;
}

#endif
