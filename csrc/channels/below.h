/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the width. */
#ifndef OSW_CHANNELS_BELOW_H
#define OSW_CHANNELS_BELOW_H

#include "channels/channels.h"
#include "core/prefetch.h"
#include "core/simd.h"

#include <stdint.h>

enum { MAX_TILE_ROWS = 8 };

/* The kernels of the tier below, for what is too short for vectors. */
static osw_channels_table below;

/* In a kernel of the same operation and rows. */
#define BELOW(operation, rows)                                                                     \
    below.transpose[OSW_##operation][OSW_ROWS_##rows][OSW_JOIN(OSW_, SUFFIX)](run, image, begin,   \
                                                                              end)

/* Fetch the lines that are osw_prefetch_ahead bytes further on. */
OSW_INLINE void prefetch_ahead(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        prefetch_near(at + osw_prefetch_ahead + i);
}

#endif
