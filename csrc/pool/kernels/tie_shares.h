/* SPDX-License-Identifier: MIT */
/* What amax_backward gives to the positions of a maximum and to the others. */
#include "core/simd.h"
#include "pool/kernels/ties.h"
#include "pool/pool.h"

#include <math.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* What positions get that are the maximum, and what the others get. */
OSW_INLINE void LOCAL(tie_share)(osw_tie *tie, vf32 gradient, vi32 ties)
{
    const vf32 count = LOCAL(round)(__builtin_convertvector(ties, vf32));
    const vf32 zero = LOCAL(round)(gradient * ((vf32){0}));
    tie->hit = LOCAL(round)(gradient / count);
    tie->miss = LOCAL(round)(zero / count);
}

/* What positions get that are not the maximum. */
OSW_INLINE ELEMENT LOCAL(missed)(ELEMENT gradient, int32_t position)
{
    return position == OSW_POOL_NOWHERE ? STORE(NAN) : STORE(LOAD(gradient) * 0);
}
