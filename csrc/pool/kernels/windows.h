/* SPDX-License-Identifier: MIT */
/* The taps of one window over pixels. */
#ifndef OSW_POOL_WINDOWS_H
#define OSW_POOL_WINDOWS_H

#include "core/target.h"
#include "pool/kernels/rows.h"
#include "pool/window.h"

/* The valid taps of one window: where channel 0 of each lies. */
typedef struct osw_window {
    int count;
    struct {
        const void *at;
        int32_t tap;
    } taps[MAX_TAPS];
} osw_window;

static inline void set_input_rows(osw_rows *rows, const osw_pool *pool, const osw_row *row,
                                  int64_t element)
{
    const osw_span depth = osw_taps(&pool->dims[DEPTH], row->depth);
    const osw_span height = osw_taps(&pool->dims[HEIGHT], row->height);
    rows->count = 0;
    for (int64_t d = depth.first; d < depth.end; d++) {
        for (int64_t h = height.first; h < height.end; h++) {
            OSW_FEW_TURNS(h);
            const int64_t position = osw_input_position(pool, depth.start + d, height.start + h, 0);
            rows->at[rows->count] = (const char *)pool->input.base +
                                    osw_place(&pool->input, row->image, 0, position) * element;
            rows->number[rows->count] =
                (depth.start + d) * pool->dims[HEIGHT].input + height.start + h;
            rows->tap[rows->count++] = osw_tap(pool, d, h, 0);
        }
    }
}

/* The window of output column w; a column is `step` bytes. */
static inline void set_window(osw_window *window, const osw_pool_dim *dim, const osw_rows *rows,
                              int64_t w, int64_t step)
{
    const int64_t start = w * dim->stride - dim->padding;
    const int64_t first = osw_max(0, -start), end = osw_min(dim->kernel, dim->input - start);
    int count = 0;
    for (int r = 0; r < rows->count; r++) {
        const char *at = rows->at[r] + (start + first) * step;
        for (int64_t k = first; k < end; k++, at += step) {
            OSW_FEW_TURNS(at);
            window->taps[count].at = at;
            window->taps[count++].tap = rows->tap[r] + (int32_t)k;
        }
    }
    window->count = count;
}

#endif
