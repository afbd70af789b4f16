/* SPDX-License-Identifier: MIT */
/* max_backward over planes; windows of two or three rows and columns have code of their own.
 *
 * A block is two lines of the input, LANES times the stride wide: all windows that overlap it are
 * read once, where they lie. Rows that are not there are read as zeros, what lies beyond the ends
 * of a row is masked. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/line_blocks.h"
#include "pool/kernels/lines.h"
#include "pool/kernels/margin.h"
#include "pool/kernels/rounding.h"
#include "pool/window.h"

#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/scatter.h"

#    include "pool/kernels/max_planes_strips.h"

#    include "pool/kernels/max_backward_planes_strips.h"
#endif

/* Rows of the output that overlap a block, one after the other. */
typedef struct LOCAL(met) {
    const ELEMENT *gradient;
    const uint8_t *offsets;
    int64_t width;
} LOCAL(met);

/* One slice of one plane. Rows outside `readable` are copied, as nothing may be read around them.
 */
typedef struct LOCAL(slice) {
    const ELEMENT *gradient;
    const uint8_t *offsets;
    int64_t height, width; /* of the output */
    osw_range readable;
    ELEMENT copied[MAX_MET * MAX_LINE + 2 * BEYOND];
    uint8_t copied_offsets[MAX_MET * MAX_LINE + 2 * BEYOND];
    _Alignas(64) ELEMENT unwanted[MAX_LINE]; /* a line of the input */
} LOCAL(slice);

/* Rows [h, h + count) of the output. */
OSW_INLINE LOCAL(met) LOCAL(meet_rows)(LOCAL(slice) *slice, int64_t h, const int count)
{
    const int64_t width = slice->width;
    if (h >= slice->readable.first && h + count <= slice->readable.end)
        return (LOCAL(met)){slice->gradient + h * width, slice->offsets + h * width, width};
    const int64_t first = osw_min(osw_max(h, 0), slice->height);
    const int64_t end = osw_max(osw_min(h + count, slice->height), first);
    ELEMENT *gradient = slice->copied + BEYOND;
    uint8_t *offsets = slice->copied_offsets + BEYOND;
    memset(gradient, 0, (size_t)(count * width) * sizeof(ELEMENT));
    memcpy(gradient + (first - h) * width, slice->gradient + first * width,
           (size_t)((end - first) * width) * sizeof(ELEMENT));
    memcpy(offsets + (first - h) * width, slice->offsets + first * width,
           (size_t)((end - first) * width));
    return (LOCAL(met)){gradient, offsets, width};
}

/* totals[2 * s + l]: line l, LANES columns of remainder s modulo the stride. */
OSW_INLINE void
LOCAL(sum_windows)(vf32 *totals, const LOCAL(met) *met, int64_t at, const vi32 *inside,
                            const osw_side rows, const osw_side columns)
{
    for (int i = 0; i < 2 * columns.stride; i++)
        totals[i] = (vf32){0};
    OSW_UNROLL
    for (int r = 0; r < windows_met(rows, 2); r++)
        OSW_UNROLL
    for (int o = 0; o < windows_met(columns, columns.stride); o++) {
        const vi32 offset = load_u8_i32(met->offsets + r * met->width + at + o);
        vf32 gradient = LOCAL(load)(met->gradient + r * met->width + at + o);
        if (inside)
            gradient = keep_f32(inside[o], gradient);
        OSW_KEEP(gradient);
        OSW_UNROLL
        for (int i = 0; i < 2 * columns.stride; i++) {
            const int kh = rows.tap + i % 2 - r * rows.stride;
            const int kw = columns.tap + i / 2 - o * columns.stride;
            if (kh < 0 || kh >= rows.kernel || kw < 0 || kw >= columns.kernel)
                continue;
            const vi32 tap = set1_i32(kh * columns.kernel + kw);
            totals[i] += keep_f32(offset == tap, gradient);
            if (kh + rows.stride < rows.kernel || kw + columns.stride < columns.kernel)
                totals[i] = LOCAL(round_moderate)(totals[i]);
            OSW_KEEP(totals[i]);
        }
    }
}

OSW_INLINE void
LOCAL(put_windows)(const LOCAL(met) *met, int64_t at, const vi32 *inside, ELEMENT *const *to,
                            int64_t c, const bool stream, const osw_side rows,
                            const osw_side columns)
{
    vf32 totals[4];
    LOCAL(sum_windows)(totals, met, at, inside, rows, columns);
    for (int l = 0; l < 2; l++) {
        if (columns.stride == 1)
            LOCAL(store)(to[l] + c, totals[l]);
        else
            LOCAL(store_zip)(to[l] + c, totals[l], totals[2 + l], stream);
    }
}

/* The same if vectors reach over an end of the rows, or of the lines. */
OSW_INLINE void
LOCAL(put_edge)(const LOCAL(met) *met, const osw_edge *edge, ELEMENT *const *to, int64_t width,
                         const bool stream, const osw_side rows, const osw_side columns)
{
    ELEMENT part[2][2 * LANES];
    ELEMENT *const parts[2] = {part[0], part[1]};
    if (edge->column + LANES * columns.stride <= width) {
        LOCAL(put_windows)(met, edge->at, edge->inside, to, edge->column, stream, rows, columns);
        return;
    }
    LOCAL(put_windows)(met, edge->at, edge->inside, parts, 0, false, rows, columns);
    for (int l = 0; l < 2; l++)
        for (int64_t i = edge->column; i < width; i++)
            to[l][i] = part[l][i - edge->column];
}

/* With a stride, few steps a line, the end of the line is written first, so that it is fetched
 * while the rest is summed. */
OSW_INLINE void
LOCAL(put_lines)(const LOCAL(met) *met, const osw_cut *cut, ELEMENT *const *to, const bool stream,
                          const osw_side rows, const osw_side columns)
{
    const int step = LANES * columns.stride;
    const int before = columns.stride > 1 ? cut->edges : cut->column > 0;
    int e = 0;
    for (; e < before; e++)
        LOCAL(put_edge)(met, &cut->edge[e], to, cut->width, stream, rows, columns);
    for (int64_t at = cut->first, c = cut->column; at <= cut->last; at += LANES, c += step)
        LOCAL(put_windows)(met, at, NULL, to, c, stream, rows, columns);
    for (; e < cut->edges; e++)
        LOCAL(put_edge)(met, &cut->edge[e], to, cut->width, stream, rows, columns);
}

/* Lines [from, to) of a slice of the input; `line` is where the first of them goes. */
OSW_INLINE void LOCAL(slice_lines)(
    LOCAL(slice) *slice, const osw_pool *pool, const osw_cut *cut, int64_t from,
                            int64_t to, ELEMENT *line, const bool stream, const osw_side rows,
                            const osw_side columns)
{
    const int64_t first_row = first_window(&pool->dims[HEIGHT], rows);
    ELEMENT *block[2];
    for (int64_t i = from - from % rows.stride; i < to; i += 2) {
        for (int l = 0; l < 2; l++)
            block[l] =
                i + l >= from && i + l < to ? line + (i + l - from) * cut->width : slice->unwanted;
        const LOCAL(met) met =
            LOCAL(meet_rows)(slice, first_row + i / rows.stride, windows_met(rows, 2));
        LOCAL(put_lines)(&met, cut, block, stream, rows, columns);
    }
}

/* Begin with the output slice that a slice of the input belongs to. False if sums of its
 * gradients need more care. */
OSW_INLINE bool LOCAL(find_slice)(
    LOCAL(slice) *slice, const osw_pool *pool, int64_t image, int64_t channel,
                           int64_t depth)
{
    const int64_t position = osw_output_position(pool, depth, 0, 0);
    const int64_t gradient = osw_place(&pool->grad_output, image, channel, position);
    const int64_t offsets = osw_place(&pool->offsets, image, channel, position);
    const osw_range a =
        readable_rows(gradient, extent_of(pool, &pool->grad_output), slice->height, slice->width);
    const osw_range b =
        readable_rows(offsets, extent_of(pool, &pool->offsets), slice->height, slice->width);
    slice->gradient = (const ELEMENT *)pool->grad_output.base + gradient;
    slice->offsets = (const uint8_t *)pool->offsets.base + offsets;
    slice->readable = (osw_range){osw_max(a.first, b.first), osw_min(a.end, b.end)};
    return LOCAL(all_moderate)(slice->gradient, slice->height * slice->width);
}

/* Lines [begin, end) of the input, counted through image, channel, depth. */
OSW_INLINE void
LOCAL(all_lines)(const osw_pool *pool, int64_t begin, int64_t end, const bool stream,
                          const osw_side rows, const osw_side columns)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t height = dims[HEIGHT].input, width = dims[WIDTH].input;
    LOCAL(slice) *const slice = osw_scratch_outer(sizeof *slice);
    osw_cut cut;
    set_cut(&cut, &dims[WIDTH], columns);
    slice->height = dims[HEIGHT].output;
    slice->width = dims[WIDTH].output;
    for (int64_t unit = begin; unit < end;) {
        const osw_row row = osw_input_row(pool, pool->input_channels, unit);
        const int64_t to = osw_min(row.height + end - unit, height);
        const int64_t c = row.channel / pool->channel_step;
        const int64_t d = osw_output_of(&dims[DEPTH], row.depth, 0);
        const int64_t position = osw_input_position(pool, row.depth, row.height, 0);
        ELEMENT *line = OSW_POOL_AT(ELEMENT, &pool->grad_input, row.image, row.channel, position);
        const size_t size = (size_t)((to - row.height) * width) * sizeof(ELEMENT);
        if (c * pool->channel_step != row.channel || d < 0)
            memset(line, 0, size);
        else if (!LOCAL(find_slice)(slice, pool, row.image, c, d))
            LOCAL(gradient_units)(pool, unit, unit + to - row.height);
        else
            LOCAL(slice_lines)(slice, pool, &cut, row.height, to, line, stream, rows, columns);
        unit += to - row.height;
    }
    if (stream)
        stream_fence();
}

#define LINES(name, stream, rows, columns)                                                         \
    static void LOCAL(name)(const osw_pool *pool, int64_t begin, int64_t end)                      \
    {                                                                                              \
        LOCAL(all_lines)(pool, begin, end, stream, (osw_side)rows, (osw_side)columns);             \
    }
LINES(lines_k3s1, false, SIDE_K3S1, SIDE_K3S1)
LINES(lines_k3s12, false, SIDE_K3S1, SIDE_K3S2)
LINES(lines_k3s2, false, SIDE_K3S2, SIDE_K3S2)
LINES(lines_k3s2p1, false, SIDE_K3S2P1, SIDE_K3S2P1)
LINES(lines_k2s2, false, SIDE_K2S2, SIDE_K2S2)
LINES(lines_k2s2_stream, true, SIDE_K2S2, SIDE_K2S2)
#undef LINES

/* Whether lines can be written around the caches, in whole vectors. */
static bool LOCAL(streams_lines)(const osw_pool *pool)
{
    const osw_pool_tensor *t = &pool->grad_input;
    const int64_t width = pool->dims[WIDTH].input, vector = VEC_BYTES / (int64_t)sizeof(ELEMENT);
    return pool->stream && width >= 2 * LANES && (uintptr_t)t->base % VEC_BYTES == 0 &&
           (width | t->channel_step | t->image_step) % vector == 0;
}

/* The function for this window, NULL if it has no function of its own. */
static osw_pool_fn *LOCAL(lines_for)(const osw_pool *pool)
{
    static const struct {
        osw_side rows, columns;
        osw_pool_fn *run;
    } all[] = {
        {SIDE_K3S1, SIDE_K3S1, LOCAL(lines_k3s1)}, {SIDE_K3S1, SIDE_K3S2, LOCAL(lines_k3s12)},
        {SIDE_K3S2, SIDE_K3S2, LOCAL(lines_k3s2)}, {SIDE_K3S2P1, SIDE_K3S2P1, LOCAL(lines_k3s2p1)},
        {SIDE_K2S2, SIDE_K2S2, LOCAL(lines_k2s2)},
    };
    const osw_side rows = side_of(&pool->dims[HEIGHT]), columns = side_of(&pool->dims[WIDTH]);
    for (size_t i = 0; fits_lines(pool) && i < sizeof all / sizeof *all; i++)
        if (same_side(rows, all[i].rows) && same_side(columns, all[i].columns))
            return all[i].run == LOCAL(lines_k2s2) && LOCAL(streams_lines)(pool) ? LOCAL(lines_k2s2_stream) : all[i].run;
    return NULL;
}

/* If the planes of any other window are narrow, what has to be done once per line weighs more
 * than a scalar loop, above all for floats, whose sums need no rounding. */
static bool LOCAL(is_narrow)(const osw_pool *pool)
{
    return pool->dims[WIDTH].output <= 4 * (int64_t)sizeof(ELEMENT);
}

/* Lines shorter than a block of 64 bytes: half as wide ones are faster. Zen 4, 28 columns, a stride
 * of 2: 0.44 ms, 0.58 by blocks of 32 columns. */
static bool LOCAL(is_half_empty)(const osw_pool *pool)
{
    return VEC_BYTES == 64 && pool->dims[WIDTH].input < LANES * pool->dims[WIDTH].stride;
}

static void KERNEL(max_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    osw_pool_fn *lines = LOCAL(lines_for)(pool);
    if (!fits_margin(pool) || LOCAL(is_half_empty)(pool))
        below[ID_OF(max_backward_planes)](pool, begin, end);
    else if (lines)
        lines(pool, begin, end);
    else if (LOCAL(scatters)(pool) && (LOCAL(is_narrow)(pool) || count_taps(pool) > FEW_TAPS))
        LOCAL(scatter_rows)(pool, begin, end, LOCAL(gradient_units));
    else
        LOCAL(gradient_units)(pool, begin, end);
}
