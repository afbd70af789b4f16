/* SPDX-License-Identifier: MIT */
/* avg over pixels. */
#include "core/ahead.h"
#include "core/prefetch.h"
#include "core/simd.h"
#include "pool/kernels/avg_windows.h"
#include "pool/kernels/below.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Sums of `vectors` vectors of channels from c on, one tap after another, over the divisor. With
 * each of them what lies so many elements ahead is prefetched; 0: nothing is. */
OSW_INLINE int64_t
LOCAL(avg_channels)(const osw_taps_at *taps, int64_t c, float divisor, int64_t ahead,
                                ELEMENT *y, const int vectors)
{
    vf32 sums[8];
    for (int v = 0; v < vectors; v++)
        sums[v] = (vf32){0};
    for (int k = 0; k < taps->count; k++) {
        const ELEMENT *x = (const ELEMENT *)taps->at[k] + c;
        for (int v = 0; v < vectors; v++) {
            sums[v] = sums[v] + LOCAL(load)(x + v * LANES);
            if (ahead && v * LANES * sizeof(ELEMENT) % LINE_BYTES == 0)
                prefetch_near(x + v * LANES + ahead);
        }
    }
    for (int v = 0; v < vectors; v++)
        LOCAL(store)(y + c + v * LANES, LOCAL(round)(sums[v] / set1_f32(divisor)));
    return c + vectors * LANES;
}

/* All channels of a position. */
OSW_INLINE void
LOCAL(avg_dense)(const osw_taps_at *taps, int64_t channels, float divisor, int64_t ahead,
                          ELEMENT *y)
{
    int64_t c = 0;
    while (c + 8 * LANES <= channels)
        c = LOCAL(avg_channels)(taps, c, divisor, ahead, y, 8);
    if (c + 4 * LANES <= channels)
        c = LOCAL(avg_channels)(taps, c, divisor, ahead, y, 4);
    if (c + 2 * LANES <= channels)
        c = LOCAL(avg_channels)(taps, c, divisor, ahead, y, 2);
    while (c < channels)
        c = LOCAL(avg_channels)(taps, osw_min(c, channels - LANES), divisor, ahead, y, 1);
}

/* sums[c] += the channels of `count` taps, of which the first ones start the sums. */
OSW_INLINE void LOCAL(add_taps)(const void *const *at, int64_t from, int64_t channels, bool start,
                         float *sums, const int count)
{
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        vf32 sum = start ? (vf32){0} : load_f32(sums + c);
        for (int k = 0; k < count; k++)
            sum = sum + LOCAL(load)((const ELEMENT *)at[k] + from + c);
        store_f32(sums + c, sum);
    }
    for (; c < channels; c++) {
        float sum = start ? 0 : sums[c];
        for (int k = 0; k < count; k++)
            sum += LOAD(((const ELEMENT *)at[k])[from + c]);
        sums[c] = sum;
    }
}

/* Every step-th channel of a position, of sums of all. */
static void
LOCAL(avg_strided)(const osw_pool *pool, const osw_taps_at *taps, float divisor, ELEMENT *y)
{
    const int64_t step = pool->channel_step, most = OSW_POOL_MAX_BLOCK / step * step;
    float sums[OSW_POOL_MAX_BLOCK];
    for (int64_t from = 0; from < pool->input_channels; from += most) {
        const int64_t channels = osw_min(most, pool->input_channels - from);
        int k = 0;
        for (; k + 4 <= taps->count; k += 4)
            LOCAL(add_taps)(taps->at + k, from, channels, k == 0, sums, 4);
        for (; k < taps->count; k++)
            LOCAL(add_taps)(taps->at + k, from, channels, k == 0, sums, 1);
        for (int64_t c = 0; c < channels; c += step)
            y[(from + c) / step] = STORE(sums[c] / divisor);
    }
}

/* Elements from a window to the one beside it, if it pays to prefetch that: in a large input, if
 * they share nothing or have many taps. Measured on AMD Zen 5, one thread: such ones gain 1.1 to
 * 2.2; of 3 x 3 and stride 1 or 2 they lose 10 to 30 %. */
static int64_t LOCAL(next_window)(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t pixels =
        pool->images * dims[DEPTH].input * dims[HEIGHT].input * dims[WIDTH].input;
    const bool large =
        pixels * pool->input_channels * (int64_t)sizeof(ELEMENT) >= osw_prefetch_windows_bytes;
    const bool pays =
        dims[WIDTH].stride >= dims[WIDTH].kernel || count_taps(pool) >= PREFETCHED_TAPS;
    return large && pays ? dims[WIDTH].stride * pool->input.pixel_step : 0;
}

static void KERNEL(avg_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_sum(pool)) {
        below[ID_OF(avg_pixels)](pool, begin, end);
        return;
    }
    const int64_t ahead = LOCAL(next_window)(pool);
    osw_taps_at taps;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, 1, unit);
        ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, row.image, 0,
                                 osw_output_position(pool, row.depth, row.height, 0));
        for (int64_t w = 0; w < pool->dims[WIDTH].output; w++, y += pool->output.pixel_step) {
            set_taps_at(&taps, pool, &row, w, sizeof(ELEMENT));
            const float divisor = (float)osw_avg_divisor(pool, row.depth, row.height, w);
            if (pool->channel_step == 1)
                LOCAL(avg_dense)(&taps, pool->channels, divisor, ahead, y);
            else
                LOCAL(avg_strided)(pool, &taps, divisor, y);
        }
    }
}
