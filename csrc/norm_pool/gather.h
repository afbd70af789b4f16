/* SPDX-License-Identifier: MIT */
/* The values of the input that a max pool has chosen. */
#ifndef OSW_NORM_POOL_GATHER_H
#define OSW_NORM_POOL_GATHER_H

#include "pool/pool.h"

#include <stdbool.h>
#include <stdint.h>

enum { OSW_MOST_TAPS = 256 };

typedef struct osw_gather {
    const osw_pool *pool;            /* offsets are bytes */
    const void *x;                   /* dense, of the sizes of the pool's input */
    int64_t bytes;                   /* of an element: 2, 4 or 8 */
    int64_t channels;                /* of a pixel; 1 for planes */
    int64_t elements;                /* of x */
    bool asks;                       /* for values ahead: x is large */
    int64_t distance[OSW_MOST_TAPS]; /* of a tap from the first one, in elements */
} osw_gather;

/* Everything of these but x, for pixels or planes. */
void osw_gather_start(osw_gather *gather, const osw_pool *pool, const void *x, int64_t bytes,
                      bool pixels);

/* The values at positions [begin, end) of the output, counted over all images, and all planes of
 * these, to `to`. An offset that names no element gives any value. */
void osw_gather_run(const osw_gather *gather, int64_t begin, int64_t end, void *to);

#endif
