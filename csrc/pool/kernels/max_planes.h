/* SPDX-License-Identifier: MIT */
/* max over planes; windows of two or three rows and columns have code of their own.
 *
 * A block is two lines of the output, LANES columns wide. Every row of the input that it needs is
 * reduced along the width, then these are compared, all in registers. A NaN is found, not followed:
 * what has one is done again by the general code. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/best.h"
#include "pool/kernels/lines.h"
#include "pool/kernels/strip.h"
#include "pool/window.h"

#include <math.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/max_planes_strips.h"
#endif

/* Rows of the input that two lines of the output read, with the first tap of each in the window of
 * the first line. If the first row does not exist, the second is read twice: it cannot win again,
 * and a window starts with a tap that it has. */
typedef struct LOCAL(read) {
    const ELEMENT *row[MAX_ROWS];
    int32_t tap[MAX_ROWS];
} LOCAL(read);

/* One slice of one plane. Rows outside `readable` are copied, as nothing may be read around them.
 */
typedef struct LOCAL(input_slice) {
    const ELEMENT *input;
    int64_t height, width; /* of the input */
    osw_range readable;
    ELEMENT lowest[MAX_LINE + 2 * BEYOND]; /* a row below the input */
    ELEMENT copied[MAX_ROWS][MAX_LINE + 2 * BEYOND];
    ELEMENT unwanted[MAX_LINE + LANES]; /* a line of the output */
    uint8_t unwanted_taps[MAX_LINE + LANES];
} LOCAL(input_slice);

OSW_INLINE const ELEMENT *LOCAL(read_row)(LOCAL(input_slice) *slice, int64_t h, int r)
{
    if (h >= slice->height)
        return slice->lowest + BEYOND;
    const ELEMENT *row = slice->input + h * slice->width;
    if (h >= slice->readable.first && h < slice->readable.end)
        return row;
    return memcpy(slice->copied[r] + BEYOND, row, (size_t)slice->width * sizeof(ELEMENT));
}

/* values[k]: tap k of LANES windows from `column` on. With a stride of 2 the lanes are in the order
 * that `in_order` corrects. */
OSW_INLINE void LOCAL(load_windows)(vf32 *values, const ELEMENT *row, const osw_side columns)
{
    if (columns.stride == 1) {
        for (int k = 0; k < columns.kernel; k++)
            values[k] = LOCAL(load)(row + k);
        return;
    }
    const vf32 a = LOCAL(load)(row), b = LOCAL(load)(row + LANES);
    values[0] = even_f32(a, b);
    values[1] = odd_f32(a, b);
    if (columns.kernel == 3)
        values[2] = even_f32(LOCAL(load)(row + 2), LOCAL(load)(row + LANES + 2));
}

/* The maximum of each window in one row, and its tap, counted from `tap`: the first one that has
 * the bits of the maximum. */
OSW_INLINE osw_best
LOCAL(reduce_row)(const ELEMENT *row, int32_t tap, const vi32 *inside, vf32 *sum,
                               const osw_side columns, const bool with_taps)
{
    const int last = columns.kernel - 1;
    vf32 values[3];
    osw_best best;
    LOCAL(load_windows)(values, row, columns);
    for (int k = 0; inside && k <= last; k++)
        values[k] = select_f32(inside[k], values[k], set1_f32(-INFINITY));
    best.value = max_f32(values[1], values[0]);
    if (last == 2)
        best.value = max_f32(values[2], best.value);
    *sum = best.value; /* NaN if values[0] is NaN */
    for (int k = 1; k <= last; k++)
        if (inside || k < columns.stride)
            *sum += values[k];
    if (!with_taps)
        return best;
    vi32 first = same_lanes(values[0], best.value);
    if (inside)
        first &= inside[0];
    best.tap = set1_i32(last);
    if (last == 2)
        best.tap += same_lanes(values[1], best.value);
    best.tap = (~first & best.tap) + set1_i32(tap);
    return best;
}

/* sum: NaN if one of the values is NaN. */
OSW_INLINE void
LOCAL(max_windows)(const LOCAL(read) *read, int64_t column, const vi32 *inside, ELEMENT *y0,
                            ELEMENT *y1, uint8_t *taps0, uint8_t *taps1, vf32 *sum,
                            const osw_side rows, const osw_side columns, const bool with_taps)
{
    osw_best row[MAX_ROWS], lines[2];
    vf32 block = (vf32){0}, of_row;
    OSW_UNROLL
    for (int r = 0; r < rows.kernel + rows.stride; r++) {
        row[r] = LOCAL(
            reduce_row)(read->row[r] + column, read->tap[r], inside, &of_row, columns, with_taps);
        block += of_row;
        OSW_KEEP(row[r].value);
    }
    *sum += block;
    for (int l = 0; l < 2; l++) {
        const osw_best *of = row + l * rows.stride;
        lines[l] = of[rows.kernel - 1];
        lines[l].value = max_f32(of[1].value, of[0].value);
        if (rows.kernel == 3)
            lines[l].value = max_f32(of[2].value, lines[l].value);
        for (int k = rows.kernel - 2; with_taps && k >= 0; k--)
            lines[l].tap =
                select_i32(same_lanes(of[k].value, lines[l].value), of[k].tap, lines[l].tap);
        if (columns.stride == 2)
            in_order(&lines[l], 2);
    }
    LOCAL(store)(y0, lines[0].value);
    LOCAL(store)(y1, lines[1].value);
    if (!with_taps)
        return;
    store_u8_i32(taps0, lines[0].tap);
    store_u8_i32(taps1, lines[1].tap - set1_i32(rows.stride * columns.kernel));
}

/* Where two lines of the output go. */
typedef struct LOCAL(two_lines) {
    ELEMENT *y[2];
    uint8_t *taps[2];
    int64_t count; /* columns */
} LOCAL(two_lines);

/* The block at column `at` if windows reach over an end of the rows, or fewer are wanted. */
OSW_INLINE void
LOCAL(max_edge)(const LOCAL(read) *read, int64_t width, int64_t padding, const LOCAL(two_lines) *to,
                         int64_t at, vf32 *sum, const osw_side rows, const osw_side columns,
                         const bool with_taps)
{
    const int64_t column = at * columns.stride - padding;
    vi32 inside[3];
    ELEMENT y[2][LANES];
    uint8_t taps[2][LANES];
    find_inside(inside, column, width, columns);
    LOCAL(
        max_windows)(read, column, inside, y[0], y[1], taps[0], taps[1], sum, rows, columns, with_taps);
    const size_t count = (size_t)osw_min(to->count - at, LANES);
    for (int l = 0; l < 2; l++) {
        copy_part(to->y[l] + at, y[l], count * sizeof(ELEMENT), sizeof y[l]);
        if (with_taps)
            copy_part(to->taps[l] + at, taps[l], count, sizeof taps[l]);
    }
}

/* Two lines from rows `width` long. The last block overlaps the one before, if there is one. */
OSW_INLINE void
LOCAL(max_two)(const LOCAL(read) *read, int64_t width, int64_t padding, const LOCAL(two_lines) *to,
                        vf32 *sum, const osw_side rows, const osw_side columns,
                        const bool with_taps)
{
    const int64_t reach = (LANES - 1) * columns.stride + columns.kernel;
    const int64_t room = osw_max(width + padding - reach + columns.stride, 0);
    const int64_t inner = osw_min(room / columns.stride, to->count - LANES + 1);
    int64_t at = 0;
    if (padding > 0) {
        LOCAL(max_edge)(read, width, padding, to, at, sum, rows, columns, with_taps);
        at += LANES;
    }
    for (int r = 0; inner > 0 && r < rows.kernel + rows.stride;
         r++) /* as no other window begins there */
        *sum += LOCAL(load)(read->row[r] + width - LANES);
    for (; at < inner; at += LANES)
        LOCAL(max_windows)(read, at * columns.stride - padding, NULL, to->y[0] + at, to->y[1] + at,
                    to->taps[0] + at, to->taps[1] + at, sum, rows, columns, with_taps);
    for (; at < to->count; at += LANES) {
        at = osw_max(osw_min(at, to->count - LANES), 0);
        LOCAL(max_edge)(read, width, padding, to, at, sum, rows, columns, with_taps);
    }
}

/* Lines [from, to) of a slice of the output. False if there is a NaN. */
OSW_INLINE bool LOCAL(max_slice)(
    LOCAL(input_slice) *slice, const osw_pool *pool, int64_t from, int64_t to,
                          ELEMENT *y, uint8_t *taps, const osw_side rows, const osw_side columns,
                          const bool with_taps)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t count = dims[WIDTH].output;
    LOCAL(read) read;
    vf32 sum = (vf32){0};
    for (int64_t line = from; line < to; line += 2) {
        const LOCAL(two_lines) lines = {
            .y = {y + line * count, line + 1 < to ? y + (line + 1) * count : slice->unwanted},
            .taps = {taps + line * count,
                     line + 1 < to ? taps + (line + 1) * count : slice->unwanted_taps},
            .count = count,
        };
        const int64_t first = line * rows.stride - dims[HEIGHT].padding;
        for (int r = 0; r < rows.kernel + rows.stride; r++) {
            const int skipped = first + r < 0;
            read.row[r] = LOCAL(read_row)(slice, first + r + skipped, r);
            read.tap[r] = (r + skipped) * columns.kernel;
        }
        LOCAL(
            max_two)(&read, slice->width, dims[WIDTH].padding, &lines, &sum, rows, columns, with_taps);
    }
    return !any_i32(sum != sum);
}

/* Lines [begin, end) of the output, counted through image, channel, depth. */
OSW_INLINE void
LOCAL(max_lines)(const osw_pool *pool, int64_t begin, int64_t end, const osw_side rows,
                          const osw_side columns, const bool with_taps)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t extent =
        osw_place(&pool->input, pool->images - 1, pool->input_channels - 1, osw_input_plane(pool));
    LOCAL(input_slice) *const slice = osw_scratch_outer(sizeof *slice);
    slice->height = dims[HEIGHT].input;
    slice->width = dims[WIDTH].input;
    for (int64_t i = 0; i < slice->width + 2 * BEYOND; i++)
        slice->lowest[i] = STORE(-INFINITY);
    for (int64_t unit = begin; unit < end;) {
        const osw_row row = osw_output_row(pool, pool->channels, unit);
        const int64_t to = osw_min(row.height + end - unit, dims[HEIGHT].output);
        const int64_t at =
            osw_place(&pool->input, row.image, row.channel * pool->channel_step,
                      osw_input_position(pool, row.depth * dims[DEPTH].stride, 0, 0));
        const int64_t position = osw_output_position(pool, row.depth, 0, 0);
        ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, row.image, row.channel, position);
        uint8_t *taps = OSW_POOL_AT(uint8_t, &pool->offsets, row.image, row.channel, position);
        slice->input = (const ELEMENT *)pool->input.base + at;
        slice->readable = readable_rows(at, extent, slice->height, slice->width);
        if (!LOCAL(max_slice)(slice, pool, row.height, to, y, taps, rows, columns, with_taps))
            LOCAL(max_strips)(pool, unit, unit + to - row.height);
        unit += to - row.height;
    }
}

#define LINES(name, rows, columns)                                                                 \
    static void LOCAL(name)(const osw_pool *pool, int64_t begin, int64_t end)                      \
    {                                                                                              \
        if (pool->offsets.base)                                                                    \
            LOCAL(max_lines)(pool, begin, end, (osw_side)rows, (osw_side)columns, true);           \
        else                                                                                       \
            LOCAL(max_lines)(pool, begin, end, (osw_side)rows, (osw_side)columns, false);          \
    }
LINES(max_lines_k3s1, SIDE_K3S1, SIDE_K3S1)
LINES(max_lines_k3s12, SIDE_K3S1, SIDE_K3S2)
LINES(max_lines_k3s2, SIDE_K3S2, SIDE_K3S2)
LINES(max_lines_k2s2, SIDE_K2S2, SIDE_K2S2)
#undef LINES

static osw_pool_fn *LOCAL(max_lines_for)(const osw_pool *pool)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    if (!fits_lines(pool) || height->kernel != width->kernel)
        return NULL;
    if (width->kernel == 2 && width->stride == 2 && height->stride == 2)
        return LOCAL(max_lines_k2s2);
    if (width->kernel != 3 || height->stride > width->stride || width->stride > 2)
        return NULL;
    if (width->stride == 1)
        return LOCAL(max_lines_k3s1);
    return height->stride == 1 ? LOCAL(max_lines_k3s12) : LOCAL(max_lines_k3s2);
}

static void KERNEL(max_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    osw_pool_fn *lines = LOCAL(max_lines_for)(pool);
    if (!fits_strip(pool))
        below[ID_OF(max_planes)](pool, begin, end);
    else if (lines)
        lines(pool, begin, end);
    else
        LOCAL(max_strips)(pool, begin, end);
}
