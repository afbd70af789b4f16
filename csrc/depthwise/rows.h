/* SPDX-License-Identifier: MIT */
/* Kernels of one dtype: the rows of images, in strips. Included once per dtype. */
#include "core/ints.h"
#include "core/prefetch.h"
#include "core/simd.h"
#include "depthwise/below.h"
#include "depthwise/depthwise.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

#include "depthwise/strips.h"

#include "depthwise/forms.h" /* of what strips.h defines */

static int64_t LOCAL(size_of)(const osw_depthwise *d)
{
    const int64_t pixels = d->height * d->width + d->out_height * d->out_width;
    return d->batch * pixels * d->channels * (int64_t)sizeof(ELEMENT);
}

/* Whether the tier below is faster, or the only one that can. */
static bool LOCAL(leaves)(const osw_depthwise *d)
{
    if (d->channels < VLANES)
        return true;
#ifdef OSW_LEAVES_SPLIT_LINES
    return d->channels % VLANES != 0 && d->stride == 1 && (d->tall == 1 || d->wide == 1);
#else
    return false;
#endif
}

/* Whether a backward prefetches: images beyond L2. */
static bool LOCAL(is_large)(const osw_depthwise *d)
{
    return LOCAL(size_of)(d) >= osw_prefetch_strips_back_bytes;
}

/* What of a window of so many columns is outside of the lines. */
OSW_INLINE int LOCAL(margin)(const LOCAL(strip) *s, int64_t side, int64_t window)
{
    const int64_t before = -s->first, behind = s->first + window - s->columns;
    if (before <= 0 && behind <= 0)
        return LOCAL(NONE);
    return before <= side / 2 && behind <= side / 2 ? LOCAL(OUTER) : LOCAL(ANY);
}

/* Walk a row in strips, pixel by pixel if most of a window is outside. The window of the first
 * pixel begins at column `first`; the row below needs `lines` more of those under it, 0 if they are
 * at hand. */
static void LOCAL(walk)(LOCAL(strip) *s,
                        LOCAL(strip_fn) *const *strips, int64_t side, int64_t stride, int64_t first,
                 int64_t lines)
{
    int64_t length;
    s->new_lines = HAS_BOTH && s->both ? 2 * lines : lines;
    for (s->place = 0; s->place < s->row_length; s->place += length) {
        s->first = first + s->place * stride;
        int which = 0, margin;
        for (;; which++) {
            length = LOCAL(lengths)[which];
            margin = LOCAL(margin)(s, side, (length - 1) * stride + side);
            if (length == 1 || (length <= s->row_length - s->place && margin != LOCAL(ANY)))
                break;
        }
        const int64_t rest = s->row_length - s->place; /* for which shorter strips do not ask */
        s->pixels_ahead = (int)(rest < 2 * length ? rest : length);
        strips[which](s, s->asks && which == 0 ? LOCAL(ASKING) : margin);
    }
}

/* Walk a row whose pixel 0 has a window that begins at column `first`, which may be outside. Pixels
 * and columns `apart` from each other are a row and lines of their own. */
static void LOCAL(walk_row)(const LOCAL(strip) *row,
                            LOCAL(strip_fn) *const *strips, int64_t side, int64_t apart,
                     int64_t stride, int64_t first, int64_t lines)
{
    const int64_t next = row->step / apart;
    for (int64_t phase = 0; phase < osw_min_int(apart, row->row_length); phase++) {
        const int64_t begin = phase * stride + first;
        const int64_t rest = (begin % apart + apart) % apart;
        LOCAL(strip) s = *row;
        s.row += phase * next;
        s.row_length = osw_ceil(row->row_length - phase, apart);
        s.columns = osw_ceil(osw_max_int(row->columns - rest, 0), apart);
        for (int l = 0; l < s.lines; l++)
            s.line[l].pixels += rest * next;
        LOCAL(walk)(&s, strips, side, stride, (begin - rest) / apart, lines);
    }
}

/* Walk rows [begin, end) of images down their columns, as many rows at a time as a strip is long:
 * the columns of `from` are the lines, those of `to`, from row `begin` on, the rows. Row i of an
 * image has a window that begins at row i + first. */
static void LOCAL(walk_columns)(
    LOCAL(strip) *s, LOCAL(strip_fn) *const *strips, const osw_depthwise *d,
                         const ELEMENT *from, int64_t from_height, ELEMENT *to, int64_t to_height,
                         int64_t first, int64_t begin, int64_t end)
{
    const int64_t most = LOCAL(lengths)[0] * d->dilation, channels = d->channels;
    s->step = d->dilation * d->width * channels;
    s->columns = from_height;
    s->asks = false;
    s->lines = 1;
    int64_t stop;
    for (int64_t row = begin; row < end; row = stop) {
        const int64_t n = row / to_height, i = row % to_height;
        stop = osw_min_int(osw_min_int(end, row + most), (n + 1) * to_height);
        s->row_length = stop - row;
        for (int64_t x = 0; x < d->width; x++) {
            s->line[0] = (LOCAL(line)){from + (n * from_height * d->width + x) * channels, 0, 0};
            s->row = to + (row * d->width + x) * channels;
            LOCAL(walk_row)(s, strips, d->tall, d->dilation, 1, i + first, 0);
        }
    }
}

/* The lines of the input under the windows of an output row. */
static void LOCAL(find_input)(LOCAL(strip) *s, const osw_depthwise *d, int64_t row)
{
    const int64_t n = row / d->out_height, top = row % d->out_height * d->stride - d->top;
    s->lines = 0;
    for (int64_t r = 0; r < d->tall; r++) {
        const int64_t y = top + r * d->dilation;
        if (y >= 0 && y < d->height)
            s->line[s->lines++] =
                (LOCAL(
                    line)){(const ELEMENT *)d->input + (n * d->height + y) * d->width * d->channels,
                       r * d->wide * d->channels, 0};
    }
}

/* The lines of the output whose windows reach an input row, from the top. */
static void LOCAL(find_output)(LOCAL(strip) *s, const osw_depthwise *d, int64_t row)
{
    const int64_t n = row / d->height, y = row % d->height + d->top;
    s->lines = 0;
    for (int64_t r = d->tall - 1; r >= 0; r--) {
        const int64_t below = y - r * d->dilation, i = below / d->stride;
        if (below >= 0 && below % d->stride == 0 && i < d->out_height)
            s->line[s->lines++] = (LOCAL(
                line)){(const ELEMENT *)d->grad_output +
                                             (n * d->out_height + i) * d->out_width * d->channels,
                                         r * d->wide * d->channels, 0};
    }
}

/* Add the lines of the row below, which begin among those of this row. */
static void LOCAL(add_below)(LOCAL(strip) *s, const LOCAL(strip) *below)
{
    int first = 0;
    while (first < s->lines && (!below->lines || s->line[first].pixels != below->line[0].pixels))
        first++;
    s->both = true;
    s->first_of_both = first;
    s->end_of_both = s->lines;
    for (int l = 0; l < below->lines; l++) {
        LOCAL(line) *line = &s->line[first + l];
        line->pixels = below->line[l].pixels;
        line->taps_below = below->line[l].taps;
    }
    s->lines = first + below->lines;
}

typedef void LOCAL(find_fn)(LOCAL(strip) *s, const osw_depthwise *d, int64_t row);

/* Walk rows [begin, end) of images of `height` rows, as many at a time as have strips of their own:
 * two of an image if `both` has. */
OSW_INLINE void LOCAL(walk_rows)(
    LOCAL(strip) *s, LOCAL(strip_fn) *const *strips, LOCAL(strip_fn) *const *both,
    LOCAL(find_fn) *find,
                          const osw_depthwise *d, int64_t height, int64_t stride, int64_t first,
                          int64_t lines, int64_t begin, int64_t end)
{
    ELEMENT *const to = s->row;
    const bool pairs = HAS_BOTH && both[0] && d->dilation == 1 && d->tall > d->stride;
    for (int64_t row = begin; row < end; row++) {
        find(s, d, row);
        s->row = to + row * s->row_step;
        s->both = false;
        s->first_of_both = 0;
        if (pairs && row + 1 < end && row % height + 1 < height) {
            LOCAL(strip) below = {.lines = 0};
            find(&below, d, ++row);
            LOCAL(add_below)(s, &below);
        }
        LOCAL(
            walk_row)(s, HAS_BOTH && s->both ? both : strips, d->wide, columns_apart(d), stride, first,
                 lines);
    }
}

static void
KERNEL(depthwise_forward)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    if (LOCAL(leaves)(d)) {
        below[ID_OF(forward)](d, begin, end, sums);
        return;
    }
    LOCAL(strip_fn) *const *strips = LOCAL(gathers)[strip_taps(d) / 2][d->stride - 1];
    struct LOCAL(strip) s = {.channels = d->channels,
                      .step = columns_apart(d) * d->channels,
                      .asks = LOCAL(size_of)(d) >= osw_prefetch_strips_bytes,
                      .line_step = d->width * d->channels,
                      .row_step = d->out_width * d->channels,
                      .columns = d->width,
                      .row_length = d->out_width,
                      .taps = d->taps,
                      .start = d->bias};
    if (goes_down(d)) {
        LOCAL(
            walk_columns)(&s, strips, d, d->input, d->height, d->output, d->out_height, -d->top, begin,
                     end);
        return;
    }
    s.row = d->output;
    LOCAL(walk_rows)(&s, strips, LOCAL(gathers_of_both)[d->wide / 2][d->stride - 1],
                     LOCAL(find_input), d, d->out_height,
              d->stride, -d->left, d->stride, begin, end);
}

/* sums[tall * wide][c] += sum of grad_output[row][j][c] over j */
static void LOCAL(add_pixels)(const osw_depthwise *d, int64_t row, VALUE *sums)
{
    const int64_t channels = d->channels;
    const ELEMENT *dy = (const ELEMENT *)d->grad_output + row * d->out_width * channels;
    VALUE *to = sums + d->tall * d->wide * channels;
    int64_t done = 0;
    for (int64_t c = 0; c < channels; c = LOCAL(next)(c, channels)) {
        const VECTOR before = VALUED(load)(to + c);
        VECTOR sum = before;
        for (int64_t j = 0; j < d->out_width; j++)
            sum += LOCAL(load)(dy + j * channels + c);
        if (c < done)
            sum = VALUED(select)(VALUED(first_lanes)(done - c), before, sum);
        VALUED(store)(to + c, sum);
        done = c + VLANES;
    }
}

static void
KERNEL(depthwise_grad_weight)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    if (LOCAL(leaves)(d)) {
        below[ID_OF(grad_weight)](d, begin, end, sums);
        return;
    }
    memset(sums, 0, (size_t)((d->tall * d->wide + 1) * d->channels) * sizeof(VALUE));
    LOCAL(strip_fn) *const *strips = LOCAL(correlates)[strip_taps(d) / 2][d->stride - 1];
    struct LOCAL(strip) s = {.channels = d->channels,
                      .step = columns_apart(d) * d->channels,
                      .asks = LOCAL(is_large)(d),
                      .line_step = d->width * d->channels,
                      .row_step = d->out_width * d->channels,
                      .columns = d->width,
                      .row_length = d->out_width,
                      .sums = sums};
    if (goes_down(d))
        LOCAL(
            walk_columns)(&s, strips, d, d->input, d->height, (ELEMENT *)d->grad_output, d->out_height,
                     -d->top, begin, end);
    for (int64_t row = begin; row < end; row++) {
        if (d->sums_output)
            LOCAL(add_pixels)(d, row, sums);
        if (goes_down(d))
            continue;
        LOCAL(find_input)(&s, d, row);
        s.row = (ELEMENT *)d->grad_output + row * d->out_width * d->channels;
        LOCAL(walk_row)(&s, strips, d->wide, columns_apart(d), d->stride, -d->left, d->stride);
    }
}

/* A row of the gradient of windows of stride 2, from the last even place of the padded row that is
 * not behind its first pixel. */
static void LOCAL(walk_pairs)(LOCAL(strip) *s, LOCAL(strip_fn) *spread, int64_t side, int64_t left)
{
    const int64_t pairs = LOCAL(MOST_PIXELS) / 2;
    s->pixels_ahead = LOCAL(MOST_PIXELS);
    for (int64_t q = left / 2; 2 * q - left < s->row_length; q += pairs) {
        s->first = q - side / 2;
        s->place = 2 * q - left;
        const int margin = LOCAL(margin)(s, side, pairs + side / 2);
        const bool inner = s->place >= 0 && s->place + 2 * pairs <= s->row_length;
        spread(s, inner || margin ? margin : LOCAL(OUTER));
    }
}

/* Callers run this on rows that they have just read for grad_weight: the lines are at hand. */
static void
KERNEL(depthwise_grad_input)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    if (LOCAL(leaves)(d)) {
        below[ID_OF(grad_input)](d, begin, end, sums);
        return;
    }
    LOCAL(strip_fn) *const *flippeds = LOCAL(flippeds)[strip_taps(d) / 2];
    LOCAL(strip_fn) *const spread = LOCAL(spreads)[d->wide / 2];
    struct LOCAL(strip) s = {.channels = d->channels,
                      .step = columns_apart(d) * d->channels,
                      .asks = LOCAL(is_large)(d),
                      .line_step = d->out_width * d->channels,
                      .row_step = d->width * d->channels,
                      .columns = d->out_width,
                      .row_length = d->width,
                      .taps = d->taps};
    if (goes_down(d)) {
        LOCAL(
            walk_columns)(&s, flippeds, d, d->grad_output, d->out_height, d->grad_input, d->height,
                     d->top - (d->tall - 1) * d->dilation, begin, end);
        return;
    }
    if (d->stride == 1) {
        s.row = d->grad_input;
        LOCAL(walk_rows)(&s, flippeds, LOCAL(flippeds_of_both)[d->wide / 2],
                         LOCAL(find_output), d, d->height, 1,
                  d->left - (d->wide - 1) * d->dilation, 0, begin, end);
        return;
    }
    for (int64_t row = begin; row < end; row++) {
        LOCAL(find_output)(&s, d, row);
        s.row = (ELEMENT *)d->grad_input + row * d->width * d->channels;
        LOCAL(walk_pairs)(&s, spread, d->wide, d->left);
    }
}
