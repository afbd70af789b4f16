/* SPDX-License-Identifier: MIT */
/* max over pixels if windows share rows: the maxima along a row of the input, and with offsets
 * their columns, are found once and kept for the windows that read them. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/best.h"
#include "pool/kernels/compact.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/max_pixels_strided.h"
#endif

OSW_INLINE vf32 LOCAL(load_either)(const void *x, int64_t i, const bool copied)
{
    return copied ? load_f32((const float *)x + i) : LOCAL(load)((const ELEMENT *)x + i);
}

/* The maximum of `count` neighbours, `step` elements apart, of every channel of the block; the
 * first of them is column `first` of the window. */
OSW_INLINE void
LOCAL(maxima_of)(const void *x, int64_t step, int first, int64_t channels, float *to,
                          uint8_t *taps, const int count, const bool copied, const bool with_taps)
{
    for (int64_t c = 0; c < channels; c += LANES) {
        c = osw_min(c, channels - LANES);
        osw_best best = {LOCAL(load_either)(x, c, copied), set1_i32(first)};
        for (int k = 1; k < count; k++)
            take(&best,
                 LOCAL(load_either)(x, k * step + c, copied), set1_i32(first + k), with_taps);
        store_f32(to + c, best.value);
        if (with_taps)
            store_u8_i32(taps + c, best.tap);
    }
}

OSW_INLINE void
LOCAL(maxima_row)(const osw_compact *compact, const osw_pool_dim *dim, const void *x,
                           int64_t step, float *to, const bool copied, const bool with_taps)
{
    const int64_t size = copied ? (int64_t)sizeof(float) : (int64_t)sizeof(ELEMENT);
    const int64_t channels = compact->channels;
    uint8_t *taps = (uint8_t *)(to + compact->room);
    for (int64_t w = 0; w < dim->output; w++, to += channels, taps += channels) {
        const int64_t start = w * dim->stride - dim->padding;
        const int first = (int)osw_max(0, -start);
        const int count = (int)osw_min(dim->kernel, dim->input - start) - first;
        const void *at = (const char *)x + (start + first) * step * size;
        if (count == 3)
            LOCAL(maxima_of)(at, step, first, channels, to, taps, 3, copied, with_taps);
        else
            LOCAL(maxima_of)(at, step, first, channels, to, taps, count, copied, with_taps);
    }
}

/* The maxima along the rows of the input that an output row reads, found if they are not yet
 * there. */
OSW_INLINE void LOCAL(maxima_rows)(const osw_pool *pool, osw_compact *compact, osw_rows *rows,
                            const osw_row *row, const bool with_taps)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    set_input_rows(rows, pool, row, sizeof(ELEMENT));
    for (int r = 0; r < rows->count; r++) {
        const int64_t slot = rows->number[r] % compact->slots;
        const ELEMENT *x = (const ELEMENT *)rows->at[r];
        float *to = compact->floats + slot * compact->pitch;
        rows->at[r] = (const char *)to;
        if (compact->tag[slot] == rows->number[r])
            continue;
        compact->tag[slot] = rows->number[r];
        if (pool->channel_step == 1) {
            x += compact->first;
            LOCAL(maxima_row)(compact, dim, x, pool->input.pixel_step, to, false, with_taps);
            continue;
        }
        if (pool->channel_step == 2)
            LOCAL(compact_row)(pool, compact, x, compact->line, 2);
        else
            LOCAL(compact_row)(pool, compact, x, compact->line, 4);
        LOCAL(maxima_row)(compact, dim, compact->line, compact->channels, to, true, with_taps);
    }
}

/* The maximum over rows of all channels of the block at one position, `at` floats into them. */
OSW_INLINE void LOCAL(maxima_position)(const osw_compact *compact, const osw_rows *rows, int64_t at,
                                ELEMENT *y, void *offsets, const bool wide, const int count,
                                const bool with_taps)
{
    for (int64_t c = 0; c < compact->channels; c += LANES) {
        c = osw_min(c, compact->channels - LANES);
        osw_best best = maxima_at(compact, rows, 0, at + c, with_taps);
        for (int r = 1; r < count; r++) {
            const osw_best next = maxima_at(compact, rows, r, at + c, with_taps);
            take(&best, next.value, next.tap, with_taps);
        }
        LOCAL(store)(y + c, best.value);
        if (with_taps && wide)
            store_i32((int32_t *)offsets + c, best.tap);
        else if (with_taps)
            store_u8_i32((uint8_t *)offsets + c, best.tap);
    }
}

OSW_INLINE void LOCAL(maxima_output)(const osw_pool *pool, osw_compact *compact, const osw_row *row,
                              const bool with_taps)
{
    osw_rows rows;
    LOCAL(maxima_rows)(pool, compact, &rows, row, with_taps);
    const int64_t size = pool->wide ? (int64_t)sizeof(int32_t) : 1;
    for (int64_t w = 0; w < pool->dims[WIDTH].output; w++) {
        const int64_t position = osw_output_position(pool, row->depth, row->height, w);
        ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, row->image, compact->first, position);
        void *offsets = NULL;
        if (with_taps)
            offsets = (char *)pool->offsets.base +
                      osw_place(&pool->offsets, row->image, compact->first, position) * size;
        const int64_t at = w * compact->channels;
        if (rows.count == 3 && !pool->wide)
            LOCAL(maxima_position)(compact, &rows, at, y, offsets, false, 3, with_taps);
        else
            LOCAL(
                maxima_position)(compact, &rows, at, y, offsets, pool->wide, rows.count, with_taps);
    }
}
