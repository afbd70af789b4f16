/* SPDX-License-Identifier: MIT */
/* max over pixels with a channel step of 2 or 4. The channels that count are copied side by side as
 * floats, a row of the input at a time, and kept for the windows that share it: each is picked out
 * of its neighbours once. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/best.h"
#include "pool/kernels/compact.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Channels c to c + LANES of the output at a position of the input, `step` channels apart. With
 * steps of 2 and 4 the lanes are out of order until `in_order`. */
OSW_INLINE vf32 LOCAL(load_step)(const ELEMENT *x, int64_t c, const int step)
{
    const ELEMENT *p = x + c * step;
    if (step == 1)
        return LOCAL(load)(p);
    const vf32 even = even_f32(LOCAL(load)(p), LOCAL(load)(p + LANES));
    if (step == 2)
        return even;
    return even_f32(even, even_f32(LOCAL(load)(p + 2 * LANES), LOCAL(load)(p + 3 * LANES)));
}

/* The same if whole vectors would read past the last channel. */
OSW_INLINE vf32 LOCAL(load_last)(const ELEMENT *x, int64_t c, int64_t step)
{
    float lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = LOAD(x[(c + i) * step]);
    return load_f32(lanes);
}

/* A vector of channels of the output, from channel c on, `step` apart, in order. */
OSW_INLINE vf32 LOCAL(pick)(const ELEMENT *x, int64_t c, int64_t whole, const int step)
{
    if (c + LANES > whole)
        return LOCAL(load_last)(x, c, step);
    return in_order_f32(LOCAL(load_step)(x, c, step), step);
}

OSW_INLINE void
LOCAL(compact_row)(const osw_pool *pool, const osw_compact *compact, const ELEMENT *x,
                            float *to, const int step)
{
    const int64_t whole = pool->input_channels / step - compact->first;
    x += compact->first * step;
    for (int64_t w = 0; w < pool->dims[WIDTH].input; w++) {
        for (int64_t c = 0; c < compact->channels; c += LANES) {
            c = osw_min(c, compact->channels - LANES);
            store_f32(to + c, LOCAL(pick)(x, c, whole, step));
        }
        to += compact->channels;
        x += pool->input.pixel_step;
    }
}

/* The rows of the input that an output row reads, copied if they are not yet there. */
OSW_INLINE void LOCAL(compact_rows)(const osw_pool *pool, osw_compact *compact, osw_rows *rows,
                             const osw_row *row)
{
    set_input_rows(rows, pool, row, sizeof(ELEMENT));
    for (int r = 0; r < rows->count; r++) {
        const int64_t slot = rows->number[r] % compact->slots;
        float *to = compact->floats + slot * compact->room;
        if (compact->tag[slot] != rows->number[r]) {
            compact->tag[slot] = rows->number[r];
            if (pool->channel_step == 2)
                LOCAL(compact_row)(pool, compact, (const ELEMENT *)rows->at[r], to, 2);
            else
                LOCAL(compact_row)(pool, compact, (const ELEMENT *)rows->at[r], to, 4);
        }
        rows->at[r] = (const char *)to;
    }
}

/* All channels of the block at one position. */
OSW_INLINE void LOCAL(compact_position)(const osw_window *window, int64_t channels, ELEMENT *y,
                                 uint8_t *taps, const int count)
{
    for (int64_t c = 0; c < channels; c += LANES) {
        c = osw_min(c, channels - LANES);
        const osw_best best = window_max_floats(window, c, count);
        LOCAL(store)(y + c, best.value);
        if (taps)
            store_u8_i32(taps + c, best.tap);
    }
}

OSW_INLINE void
LOCAL(compact_output)(const osw_pool *pool, osw_compact *compact, const osw_row *row)
{
    osw_rows rows;
    osw_window window;
    LOCAL(compact_rows)(pool, compact, &rows, row);
    for (int64_t w = 0; w < pool->dims[WIDTH].output; w++) {
        const int64_t position = osw_output_position(pool, row->depth, row->height, w);
        ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, row->image, compact->first, position);
        uint8_t *taps = NULL;
        if (pool->offsets.base)
            taps = OSW_POOL_AT(uint8_t, &pool->offsets, row->image, compact->first, position);
        set_window(&window, &pool->dims[WIDTH], &rows, w,
                   compact->channels * (int64_t)sizeof(float));
        if (window.count == 9)
            LOCAL(compact_position)(&window, compact->channels, y, taps, 9);
        else
            LOCAL(compact_position)(&window, compact->channels, y, taps, window.count);
    }
}
