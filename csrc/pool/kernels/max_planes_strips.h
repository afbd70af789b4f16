/* SPDX-License-Identifier: MIT */
/* max over planes, any window that a strip has room for.
 *
 * Every row of the input is copied as floats into a buffer with its padding, the columns that have
 * the same remainder modulo the stride side by side (phases), so that every tap of a window row is
 * a plain load. It is reduced along the width once, and kept for the windows that share it; then
 * the reduced rows are compared. Tap order is row-major in both steps, so the first maximum and the
 * last NaN stay what they are in one step. Wide rows are cut into strips. */
#include "core/simd.h"
#include "pool/kernels/best.h"
#include "pool/kernels/strip.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

OSW_INLINE void LOCAL(spread_two)(const ELEMENT *x, int64_t count, float *even, float *odd)
{
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        vf32 a, b;
        unzip_f32(LOCAL(load)(x + i), LOCAL(load)(x + i + LANES), &a, &b);
        store_f32(even + i / 2, a);
        store_f32(odd + i / 2, b);
    }
    for (; i < count; i++)
        (i % 2 ? odd : even)[i / 2] = LOAD(x[i]);
}

/* `count` elements as floats. */
OSW_INLINE void LOCAL(copy_floats)(const ELEMENT *from, float *to, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_f32(to + i, LOCAL(load)(from + i));
    if (i < count && count >= LANES)
        store_f32(to + count - LANES, LOCAL(load)(from + count - LANES));
    else
        for (; i < count; i++)
            to[i] = LOAD(from[i]);
}

/* Row `x` of the input into the phases of the strip. */
OSW_INLINE void LOCAL(spread)(osw_strip *strip, const ELEMENT *x)
{
    const int64_t count = strip->to - strip->from, at = strip->at, stride = strip->stride;
    float *phases = strip->phases;
    if (stride == 1)
        LOCAL(copy_floats)(x + strip->from, phases + at, count);
    else if (stride == 2)
        LOCAL(spread_two)(x + strip->from, count, phases + at % 2 * strip->pitch + at / 2,
                   phases + (at + 1) % 2 * strip->pitch + (at + 1) / 2);
    else
        for (int64_t i = 0; i < count; i++)
            phases[(at + i) % stride * strip->pitch + (at + i) / stride] = LOAD(x[strip->from + i]);
}

/* The reduced row (d, h) of the input plane: its slot, filled if it is not yet there. */
OSW_INLINE int64_t
LOCAL(reduced)(osw_strip *strip, const osw_pool *pool, const ELEMENT *plane, int64_t d,
                           int64_t h, const bool with_taps)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t slot = d % dims[DEPTH].kernel * dims[HEIGHT].kernel + h % dims[HEIGHT].kernel;
    const int64_t row = d * dims[HEIGHT].input + h;
    if (strip->tag[slot] != row) {
        strip->tag[slot] = row;
        LOCAL(spread)(strip, plane + row * dims[WIDTH].input);
        reduce_width(strip, slot, with_taps);
    }
    return slot;
}

OSW_INLINE void LOCAL(put_best)(ELEMENT *y, uint8_t *taps, const osw_best *best, int64_t count)
{
    if (count >= LANES) {
        LOCAL(store)(y, best->value);
        if (taps)
            store_u8_i32(taps, best->tap);
        return;
    }
    ELEMENT values[LANES];
    uint8_t bytes[LANES];
    LOCAL(store)(values, best->value);
    store_u8_i32(bytes, best->tap);
    for (int64_t i = 0; i < count; i++) {
        y[i] = values[i];
        if (taps)
            taps[i] = bytes[i];
    }
}

/* Compare `count` reduced rows; rows is a constant in the calls that matter. */
OSW_INLINE void LOCAL(reduce_rows)(const osw_strip *strip, const osw_reduced *rows, ELEMENT *y,
                            uint8_t *taps, const int count, const bool with_taps)
{
    for (int64_t j = 0; j < strip->count; j += LANES) {
        if (j + LANES > strip->count && strip->count >= LANES)
            j = strip->count - LANES;
        osw_best best = {load_f32(rows[0].values + j), (vi32){0}};
        if (with_taps)
            best.tap = load_i32(rows[0].taps + j) + set1_i32(rows[0].base);
        for (int i = 1; i < count; i++) {
            vi32 tap = (vi32){0};
            if (with_taps)
                tap = load_i32(rows[i].taps + j) + set1_i32(rows[i].base);
            take(&best, load_f32(rows[i].values + j), tap, with_taps);
        }
        LOCAL(put_best)(y + j, with_taps ? taps + j : NULL, &best, strip->count - j);
    }
}

/* One row of the output: gather the reduced rows that its windows need, compare them. */
OSW_INLINE void
LOCAL(strip_row)(osw_strip *strip, const osw_pool *pool, const ELEMENT *plane,
                          const osw_row *row, ELEMENT *y, uint8_t *taps, const bool with_taps)
{
    const osw_span depth = osw_taps(&pool->dims[DEPTH], row->depth);
    const osw_span height = osw_taps(&pool->dims[HEIGHT], row->height);
    osw_reduced rows[MAX_SLOTS];
    int count = 0;
    for (int64_t d = depth.first; d < depth.end; d++) {
        for (int64_t h = height.first; h < height.end; h++) {
            const int64_t slot =
                LOCAL(reduced)(strip, pool, plane, depth.start + d, height.start + h, with_taps);
            rows[count++] = (osw_reduced){strip->values + slot * strip->room,
                                          strip->taps + slot * strip->room, osw_tap(pool, d, h, 0)};
        }
    }
    if (count == 2)
        LOCAL(reduce_rows)(strip, rows, y, taps, 2, with_taps);
    else if (count == 3)
        LOCAL(reduce_rows)(strip, rows, y, taps, 3, with_taps);
    else
        LOCAL(reduce_rows)(strip, rows, y, taps, count, with_taps);
}

/* `count` rows of the output of one plane, from `row` on. */
OSW_INLINE void
LOCAL(plane_rows)(osw_strip *strip, const osw_pool *pool, osw_row row, int64_t count,
                           const bool with_taps)
{
    const ELEMENT *plane =
        OSW_POOL_AT(const ELEMENT, &pool->input, row.image, row.channel * pool->channel_step, 0);
    const int64_t width = pool->dims[WIDTH].output, height = pool->dims[HEIGHT].output;
    const int64_t first = row.depth * height + row.height;
    for (int64_t column = 0; column < width; column += strip->count) {
        begin_strip(strip, pool, column);
        for (int64_t i = first; i < first + count; i++) {
            row.depth = i / height;
            row.height = i % height;
            const int64_t position = i * width + column;
            ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, row.image, row.channel, position);
            uint8_t *taps = OSW_POOL_AT(uint8_t, &pool->offsets, row.image, row.channel, position);
            LOCAL(strip_row)(strip, pool, plane, &row, y, with_taps ? taps : NULL, with_taps);
        }
    }
}

static void LOCAL(max_strips)(const osw_pool *pool, int64_t begin, int64_t end)
{
    osw_strip strip;
    strip.first = -1;
    const int64_t rows = pool->dims[DEPTH].output * pool->dims[HEIGHT].output;
    for (int64_t unit = begin; unit < end;) {
        const int64_t count = osw_min(end - unit, rows - unit % rows);
        const osw_row row = osw_output_row(pool, pool->channels, unit);
        if (pool->offsets.base)
            LOCAL(plane_rows)(&strip, pool, row, count, true);
        else
            LOCAL(plane_rows)(&strip, pool, row, count, false);
        unit += count;
    }
}
