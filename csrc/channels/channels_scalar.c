/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"
#include "core/target.h"

#include <string.h>

typedef struct osw_pair {
    uint64_t half[2];
} osw_pair;

#define TIER      scalar
#define MAX_WIDTH 128
#define EACH      "channels/scalar.h"
#include "channels/each_width.h"

static void osw_copy_planes__scalar(const osw_move *moves, int64_t channels, int64_t bytes,
                                    int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        const osw_move *m = &moves[i % channels];
        const int64_t image = i / channels;
        memcpy(osw_at(&m->to, image, 0), osw_at(&m->from, image, 0), (size_t)bytes);
    }
}

#define FILL(operation, rows, width)                                                               \
    table->transpose[OSW_##operation][OSW_ROWS_##rows][OSW_x##width] =                             \
        osw_##operation##_##rows##_x##width##__scalar;

#define FILL_ROWS(operation, width)                                                                \
    FILL(operation, 1, width)                                                                      \
    FILL(operation, 2, width)                                                                      \
    FILL(operation, 3, width)                                                                      \
    FILL(operation, 4, width)                                                                      \
    FILL(operation, 8, width)                                                                      \
    FILL(operation, ANY, width)

#define FILL_WIDTH(width)                                                                          \
    FILL_ROWS(interleave, width)                                                                   \
    FILL_ROWS(deinterleave, width)                                                                 \
    table->move[OSW_x##width] = osw_move_1_x##width##__scalar;

void osw_channels_fill__scalar(osw_channels_table *table)
{
    FILL_WIDTH(8)
    FILL_WIDTH(16)
    FILL_WIDTH(32)
    FILL_WIDTH(64)
    FILL_WIDTH(128)
    table->copy = osw_copy_planes__scalar;
}
