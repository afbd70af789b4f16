/* SPDX-License-Identifier: MIT */
/* max over pixels. A vector holds channels of a position; the taps of a window are read where they
 * lie. */
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/best.h"
#include "pool/kernels/compact.h"
#include "pool/kernels/windows.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/max_pixels_strided.h"

#    include "pool/kernels/max_pixels_shared.h"
#endif

/* One vector of channels; count is a constant in the calls that matter. */
OSW_INLINE osw_best
LOCAL(window_max)(const osw_window *window, int64_t c, const int count, const int step,
                               const bool with_taps)
{
    osw_best best = {LOCAL(load_step)((const ELEMENT *)window->taps[0].at, c, step),
                     set1_i32(window->taps[0].tap)};
    for (int k = 1; k < count; k++)
        take(&best, LOCAL(load_step)((const ELEMENT *)window->taps[k].at, c, step),
             set1_i32(window->taps[k].tap), with_taps);
    in_order(&best, step);
    return best;
}

OSW_INLINE osw_best LOCAL(window_last)(const osw_window *window, int64_t c, int64_t step)
{
    osw_best best = {LOCAL(load_last)((const ELEMENT *)window->taps[0].at, c, step),
                     set1_i32(window->taps[0].tap)};
    for (int k = 1; k < window->count; k++)
        take(&best, LOCAL(load_last)((const ELEMENT *)window->taps[k].at, c, step),
             set1_i32(window->taps[k].tap), true);
    return best;
}

/* All channels of one position. */
OSW_INLINE void LOCAL(window_position)(const osw_pool *pool, const osw_window *window, ELEMENT *y,
                                uint8_t *taps, const int count, const int step)
{
    const int64_t whole = pool->input_channels / step;
    int64_t c = 0;
    for (; c + LANES <= whole; c += LANES) {
        const osw_best best = taps ? LOCAL(window_max)(window, c, count, step, true)
                                   : LOCAL(window_max)(window, c, count, step, false);
        LOCAL(store)(y + c, best.value);
        if (taps)
            store_u8_i32(taps + c, best.tap);
    }
    if (c == pool->channels)
        return;
    c = pool->channels - LANES;
    const osw_best best =
        step == 1 ? LOCAL(window_max)(window, c, count, 1, true) : LOCAL(window_last)(window, c, step);
    LOCAL(store)(y + c, best.value);
    if (taps)
        store_u8_i32(taps + c, best.tap);
}

OSW_INLINE void LOCAL(window_steps)(const osw_pool *pool, const osw_window *window, ELEMENT *y,
                             uint8_t *taps, const int count)
{
    if (pool->channel_step == 1)
        LOCAL(window_position)(pool, window, y, taps, count, 1);
    else if (pool->channel_step == 2)
        LOCAL(window_position)(pool, window, y, taps, count, 2);
    else
        LOCAL(window_position)(pool, window, y, taps, count, 4);
}

OSW_INLINE void LOCAL(window_row)(const osw_pool *pool, const osw_row *row)
{
    osw_rows rows;
    osw_window window;
    const int64_t step = pool->input.pixel_step * (int64_t)sizeof(ELEMENT);
    set_input_rows(&rows, pool, row, sizeof(ELEMENT));
    for (int64_t w = 0; w < pool->dims[WIDTH].output; w++) {
        const int64_t position = osw_output_position(pool, row->depth, row->height, w);
        ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, row->image, 0, position);
        uint8_t *taps = NULL;
        if (pool->offsets.base)
            taps = OSW_POOL_AT(uint8_t, &pool->offsets, row->image, 0, position);
        set_window(&window, &pool->dims[WIDTH], &rows, w, step);
        if (window.count == 9)
            LOCAL(window_steps)(pool, &window, y, taps, 9);
        else if (window.count == 4)
            LOCAL(window_steps)(pool, &window, y, taps, 4);
        else
            LOCAL(window_steps)(pool, &window, y, taps, window.count);
    }
}

/* Output rows [begin, end), a block of channels of one image after another. */
static void LOCAL(kept_rows)(const osw_pool *pool, int64_t begin, int64_t end)
{
    const bool maxima = fits_maxima(pool);
    const int64_t rows = pool->dims[DEPTH].output * pool->dims[HEIGHT].output;
    osw_compact *const compact = osw_scratch_outer(sizeof *compact);
    set_compact(compact, pool, maxima);
    for (int64_t unit = begin; unit < end;) {
        const int64_t last = osw_min(end, unit - unit % rows + rows);
        for (int64_t c = 0; c < pool->channels; c += compact->channels) {
            begin_compact(compact, pool, c);
            for (int64_t i = unit; i < last; i++) {
                const osw_row row = osw_output_row(pool, 1, i);
                if (maxima && pool->offsets.base)
                    LOCAL(maxima_output)(pool, compact, &row, true);
                else if (maxima)
                    LOCAL(maxima_output)(pool, compact, &row, false);
                else
                    LOCAL(compact_output)(pool, compact, &row);
            }
        }
        unit = last;
    }
}

static void KERNEL(max_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (fits_maxima(pool) || fits_compact(pool)) {
        LOCAL(kept_rows)(pool, begin, end);
        return;
    }
    if (!fits_window(pool)) {
        below[ID_OF(max_pixels)](pool, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, 1, unit);
        LOCAL(window_row)(pool, &row);
    }
}
