/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table. One row, elements of 128
 * bits and single moves are left to the tier below: plain loops of moves. */
#include "channels/below.h"
#include "channels/channels.h"
#include "channels/copy.h"
#include "core/simd.h"

#define MAX_WIDTH 64
#define EACH      "channels/transpose.h"
#include "channels/each_width.h"

#define FILL(operation, rows, width)                                                               \
    table->transpose[OSW_##operation][OSW_ROWS_##rows][OSW_x##width] =                             \
        TIERED(osw_##operation##_##rows##_x##width);

#define FILL_DIRECTION(operation, width)                                                           \
    FILL(operation, 2, width)                                                                      \
    FILL(operation, 4, width)                                                                      \
    FILL(operation, 8, width)                                                                      \
    FILL(operation, ANY, width)

#define FILL_WIDTH(width)                                                                          \
    FILL_DIRECTION(interleave, width)                                                              \
    FILL_DIRECTION(deinterleave, width)

#define FILL_THREE(width)                                                                          \
    FILL(interleave, 3, width)                                                                     \
    FILL(deinterleave, 3, width)

void TIERED(osw_channels_fill)(osw_channels_table *table)
{
    below = *table;
    FILL_WIDTH(8)
    FILL_WIDTH(16)
    FILL_WIDTH(32)
    FILL_WIDTH(64)
    FILL_THREE(8)
    FILL_THREE(16)
    FILL_THREE(32)
    table->copy = TIERED(osw_copy_planes);
}
