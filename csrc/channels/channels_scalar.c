/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"
#include "core/target.h"

#include <string.h>

typedef struct osw_pair {
    uint64_t half[2];
} osw_pair;

#define WIDTH   8
#define ELEMENT uint8_t
#include "channels/scalar_width.h"

#define WIDTH   16
#define ELEMENT uint16_t
#include "channels/scalar_width.h"

#define WIDTH   32
#define ELEMENT uint32_t
#include "channels/scalar_width.h"

#define WIDTH   64
#define ELEMENT uint64_t
#include "channels/scalar_width.h"

#define WIDTH   128
#define ELEMENT osw_pair
#include "channels/scalar_width.h"

static void osw_copy_PLANES_x8__scalar(const osw_move *moves, int64_t channels, int64_t bytes,
                                       int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        const osw_move *m = &moves[i % channels];
        const int64_t image = i / channels;
        memcpy(osw_at(&m->to, image, 0), osw_at(&m->from, image, 0), (size_t)bytes);
    }
}

#define FILL(operation, type, rows, width)                                                         \
    table->operation##_##rows##_x##width = osw_##operation##_##rows##_x##width##__scalar;

void osw_channels_fill__scalar(osw_channels_table *table)
{
    OSW_CHANNELS_VARIANTS(FILL)
}
