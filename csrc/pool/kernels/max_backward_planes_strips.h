/* SPDX-License-Identifier: MIT */
/* max_backward over planes, any window that a margin has room for.
 *
 * Rows of the output are copied with a margin, gradients as floats, and kept for the input rows
 * that share them. Columns of the input that have the same remainder modulo the stride see the same
 * taps: for each remainder, a pixel is the sum of the gradients whose offset is the tap, row after
 * row in the order of the output. */
#include "core/simd.h"
#include "pool/indices.h"
#include "pool/kernels/margin.h"
#include "pool/kernels/rounding.h"
#include "pool/window.h"

#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/max_planes_strips.h"
#    include "pool/scatter.h"
#endif

/* Output row (d, h) of the channel, in its slot, filled if it is not yet there. */
OSW_INLINE const osw_margin_row *LOCAL(margin_row)(osw_margin *margin, const osw_pool *pool,
                                            const osw_row *row, int64_t d, int64_t h)
{
    const int64_t number = d * pool->dims[HEIGHT].output + h;
    const int64_t slot = margin_slot(margin, d, h);
    osw_margin_row *to = &margin->rows[slot];
    if (margin->tag[slot] == number)
        return to;
    margin->tag[slot] = number;
    const int64_t position = osw_output_position(pool, d, h, margin->from);
    const ELEMENT *gradient =
        OSW_POOL_AT(const ELEMENT, &pool->grad_output, row->image, row->channel, position);
    const uint8_t *offsets =
        OSW_POOL_AT(const uint8_t, &pool->offsets, row->image, row->channel, position);
    const int64_t count = margin->to - margin->from, at = margin->from - margin->first;
    LOCAL(copy_floats)(gradient, to->gradient + at, count);
    copy_bytes(offsets, to->offset + at, count);
    return to;
}

OSW_INLINE void
LOCAL(meet)(osw_met *met, osw_margin *margin, const osw_pool *pool, const osw_row *row)
{
    const osw_pool_dim *dims = pool->dims;
    meet_outputs(margin, pool, row);
    met->count = 0;
    for (int64_t d = margin->depth.first; d < margin->depth.end; d++)
        for (int64_t h = margin->height.first; h < margin->height.end; h++) {
            met->row[met->count] = LOCAL(margin_row)(margin, pool, row, d, h);
            met->tap[met->count++] =
                osw_tap(pool, row->depth + dims[DEPTH].padding - d * dims[DEPTH].stride,
                        row->height + dims[HEIGHT].padding - h * dims[HEIGHT].stride, 0);
        }
}

/* Copy the rows that the next input rows overlap: what has just been stored cannot be loaded at
 * once at another alignment. */
OSW_INLINE void LOCAL(meet_ahead)(osw_margin *margin, const osw_pool *pool, const osw_row *row)
{
    const int64_t end = osw_min(margin->height.end + AHEAD, pool->dims[HEIGHT].output);
    for (int64_t d = margin->depth.first; d < margin->depth.end; d++)
        for (int64_t h = margin->height.end; h < end; h++)
            LOCAL(margin_row)(margin, pool, row, d, h);
}

/* The same for any dilation. */
static void
LOCAL(meet_dilated)(osw_met *met, osw_margin *margin, const osw_pool *pool, const osw_row *row)
{
    osw_walk walk = osw_walk_begin(pool, row);
    met->count = 0;
    while (osw_walk_next(&walk)) {
        met->row[met->count] = LOCAL(margin_row)(margin, pool, row, walk.od, walk.oh);
        met->tap[met->count++] = osw_tap(pool, walk.kd, walk.kh, 0);
    }
}

/* sums[i] of the columns of one remainder, for any window. */
static void LOCAL(sum_columns)(const osw_met *met, const osw_remainder *remainder, float *sums,
                        int64_t columns)
{
    for (int64_t i = 0; i < columns; i += LANES) {
        vf32 total = (vf32){0};
        for (int r = 0; r < met->count; r++)
            for (int k = remainder->count - 1; k >= 0; k--) {
                const int64_t at = remainder->at[k] + i;
                const vi32 hit = load_u8_i32(met->row[r]->offset + at) ==
                                 set1_i32(met->tap[r] + remainder->tap[k]);
                const vf32 gradient = load_f32(met->row[r]->gradient + at);
                total = LOCAL(round_sum)(total + keep_f32(hit, gradient));
            }
        store_f32(sums + i, total);
    }
}

/* The sums of all remainders, a column after the other. */
OSW_INLINE void LOCAL(merge)(const osw_margin *margin, ELEMENT *to)
{
    const int64_t stride = margin->stride;
    for (int64_t s = 0; s < stride; s++) {
        const float *sums = margin->sums + s * margin->room;
        for (int64_t i = s; i < margin->columns; i += stride)
            to[i] = STORE(*sums++);
    }
}

/* Writes columns of one row of the input, from `to` on. `row` holds the channel of the output; in
 * the plane of the row, `above` rows are written. */
typedef void
    LOCAL(osw_line)(osw_margin *margin, const osw_pool *pool, const osw_row *row, ELEMENT *to,
                      int64_t above);

/* `count` rows of one plane, from `row` on, strip by strip. */
OSW_INLINE void
LOCAL(gradient_rows)(osw_margin *margin, const osw_pool *pool, osw_row row, int64_t count,
                     LOCAL(osw_line) *line)
{
    const int64_t width = pool->dims[WIDTH].input, height = pool->dims[HEIGHT].input;
    const int64_t first = row.depth * height + row.height;
    ELEMENT *plane = OSW_POOL_AT(ELEMENT, &pool->grad_input, row.image, row.channel, first * width);
    if (row.channel % pool->channel_step != 0) {
        memset(plane, 0, (size_t)(count * width) * sizeof(ELEMENT));
        return;
    }
    row.channel /= pool->channel_step;
    for (int64_t column = 0; column < width; column += margin->columns) {
        begin_margin(margin, pool, column);
        for (int64_t i = 0; i < count; i++) {
            row.depth = (first + i) / height;
            row.height = (first + i) % height;
            line(margin, pool, &row, plane + i * width + column, i);
        }
    }
}

/* Units of a backward over planes, whose windows fit a margin. */
OSW_INLINE void LOCAL(gradient_strips)(const osw_pool *pool, int64_t begin, int64_t end,
                                       LOCAL(osw_line) *line)
{
    osw_margin margin;
    margin.column = -1;
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    for (int64_t unit = begin; unit < end;) {
        const int64_t count = osw_min(end - unit, rows - unit % rows);
        const osw_row row = osw_input_row(pool, pool->input_channels, unit);
        LOCAL(gradient_rows)(&margin, pool, row, count, line);
        unit += count;
    }
}

static void
LOCAL(gradient_line)(osw_margin *margin, const osw_pool *pool, const osw_row *row, ELEMENT *to,
                          int64_t above)
{
    osw_met met;
    (void)above;
    if (is_dilated(pool)) {
        LOCAL(meet_dilated)(&met, margin, pool, row);
    } else {
        LOCAL(meet)(&met, margin, pool, row);
        LOCAL(meet_ahead)(margin, pool, row);
    }
    for (int64_t s = 0; s < margin->stride; s++)
        LOCAL(sum_columns)(&met, &margin->remainders[s], margin->sums + s * margin->room,
                    osw_ceil_div(margin->columns, margin->stride));
    LOCAL(merge)(margin, to);
}

static void LOCAL(gradient_units)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(gradient_strips)(pool, begin, end, LOCAL(gradient_line));
}
