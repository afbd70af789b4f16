/* SPDX-License-Identifier: MIT */
/* The kernels of an operation whose units are planes, or blocks of channels of an image, from a
 * function for `count` channels of one image; without the suffix of a dtype. */
#ifndef OSW_POOL_UNITS_H
#define OSW_POOL_UNITS_H

#include "core/names.h"
#include "pool/window.h"

#define UNITS(operation, function)                                                                 \
    static void KERNEL(operation##_planes)(const osw_pool *pool, int64_t begin, int64_t end)       \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++)                                             \
            LOCAL(function)(pool, unit / pool->channels, unit % pool->channels, 1);                \
    }                                                                                              \
                                                                                                   \
    static void KERNEL(operation##_pixels)(const osw_pool *pool, int64_t begin, int64_t end)       \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++) {                                           \
            const osw_block block = osw_block_of(pool, unit);                                      \
            for (int64_t c = block.first; c < block.end; c += OSW_POOL_LANES)                      \
                LOCAL(function)(pool, block.image, c, osw_min(OSW_POOL_LANES, block.end - c));     \
        }                                                                                          \
    }

#endif
