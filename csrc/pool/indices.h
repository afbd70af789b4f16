/* SPDX-License-Identifier: MIT */
/* From offsets to the flat indices that torch returns. */
#ifndef OSW_POOL_INDICES_H
#define OSW_POOL_INDICES_H

#include "pool/pool.h"

/* The offsets of a max pooling, and where the indices go: int64, position in the input plane. */
typedef struct osw_pool_indices {
    const osw_pool *pool; /* dims, channels, offsets and wide are used */
    osw_pool_tensor indices;
    const int64_t *distance; /* by tap: from the first tap of a window to this one, in positions;
                              * NULL: worked out for every output */
    bool pixels;             /* the form of both tensors */
} osw_pool_indices;

/* Taps up to which a table of their distances pays. */
enum { OSW_POOL_TABLE_TAPS = 1 << 12 };

/* Fill distance[i] of the first `count` taps. */
void osw_pool_distances(const osw_pool *pool, int64_t *distance, int64_t count);

/* Units as those of max in the same form. A tap that the window has not gives index -1. */
void osw_pool_write_indices(const osw_pool_indices *work, int64_t begin, int64_t end);

#endif
