/* SPDX-License-Identifier: MIT */
/* Strips of neighbouring pixels of a row, all their channels: one vector of channels after the
 * other, every pixel of the strip in a register of its own. The last vector of channels overlaps
 * the one before it. With a dilation, neighbours are that many columns apart. Included once per
 * dtype. */
#include "core/simd.h"
#include "depthwise/below.h"
#include "depthwise/depthwise.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Whether there are registers for the sums of two rows, and for a value while products read it:
 * without them a product reads memory. */
#if (REGISTERS) == 32
#    define HAS_BOTH           true
#    define KEEP_LOADED(value) OSW_KEEP(value)
#else
#    define HAS_BOTH           false
#    define KEEP_LOADED(value) ((void)(value))
#endif

/* A row of an image, and where its taps are. */
typedef struct LOCAL(line) {
    const ELEMENT *pixels; /* [columns][channels], columns `step` apart */
    int64_t taps;          /* offset in [tall][side][channels] */
    int64_t taps_below;    /* the same for the row below; gather_both */
} LOCAL(line);

typedef struct LOCAL(strip) {
    int64_t channels;
    int64_t step;       /* elements from one column or pixel to its neighbour */
    int64_t line_step;  /* elements from one line to the one below it */
    int64_t row_step;   /* the same of the row that the strip is a part of */
    int64_t columns;    /* of a line */
    int64_t first;      /* column of the lines with which the window begins; may be outside */
    int64_t row_length; /* of the row that the strip is a part of */
    int64_t place;      /* of the strip's first pixel in that row; spread: may be outside */
    ELEMENT *row;       /* [row_length][channels], `step` apart: written, by correlate read */
    const VALUE *taps;  /* [tall][side][channels]; gather, spread */
    const VALUE *start; /* [channels], or NULL: zero; gather */
    VALUE *sums;        /* [tall][side][channels], written by correlate */
    bool asks;          /* for the row below it */
    int pixels_ahead;   /* of that row that it asks for */
    int64_t new_lines;  /* that are read for it, 0 if they are at hand */
    bool both;          /* rows are written, this one and the one below it: gather_both */
    int first_of_both;  /* lines [first_of_both, end_of_both) are lines of both rows, those */
    int end_of_both;    /* before them of the upper one, those behind of the lower one */
    int lines;
    LOCAL(line) line[OSW_DEPTHWISE_MOST_SIDE + (HAS_BOTH ? 2 : 0)]; /* of two rows, of stride 2 */
} LOCAL(strip);

enum { LOCAL(MOST_PIXELS) = 8 };

/* Columns [low, high) of a window are inside of the lines. */
OSW_INLINE int LOCAL(low)(const LOCAL(strip) *s)
{
    return s->first < 0 ? (int)-s->first : 0;
}

OSW_INLINE int LOCAL(high)(const LOCAL(strip) *s)
{
    return (int)(s->columns - s->first);
}

/* Whether to pass over a column of a window; only the first and last `checked` ones may be outside
 * of the lines. */
OSW_INLINE bool LOCAL(outside)(int column, const int window, const int checked, int low, int high)
{
    return (column < checked || column >= window - checked) && (column < low || column >= high);
}

/* Channels that come after those of the vector at c. */
OSW_INLINE int64_t LOCAL(next)(int64_t c, int64_t channels)
{
    const bool whole = c + VLANES >= channels || c + 2 * VLANES <= channels;
    return whole ? c + VLANES : channels - VLANES;
}

/* Bring into L2 what the strip below this one reads anew of channels c and on: a strip goes from
 * pixel to pixel for a few channels at a time, which no prefetcher of a CPU follows. In shares,
 * after each of the lines, because more requests at once wait for each other. */
OSW_INLINE void
LOCAL(ask_lines)(const LOCAL(strip) *s, const LOCAL(line) *after, const int stride, int64_t c)
{
    const int64_t share = after - s->line - s->first_of_both;
    for (int64_t l = share; l < s->new_lines; l += s->lines) {
        const ELEMENT *x =
            s->line[s->lines - 1].pixels + (l + 1) * s->line_step + s->first * s->step + c;
        for (int column = 0; column < s->pixels_ahead * stride; column++, x += s->step)
            prefetch_far(x);
    }
}

/* The same of what it writes, so many rows below. */
OSW_INLINE void LOCAL(ask_row)(const LOCAL(strip) *s, int64_t below, int64_t c)
{
    const ELEMENT *to = s->row + below * s->row_step + s->place * s->step + c;
    for (int p = 0; p < s->pixels_ahead; p++, to += s->step)
        prefetch_far(to);
}

/* sums[p] += sum of taps[t] * x at p * stride + t over t, or, flipped, with the taps in reverse;
 * the same with the taps and sums of the row below. Either row may have no taps, and then no sums.
 */
OSW_INLINE void
LOCAL(add_line)(const int side, const int stride, const int pixels, const bool flipped,
                         const int checked, const int low, const int high, const int64_t step,
                         const int64_t channels, const ELEMENT *x, const VALUE *taps, VECTOR *sums,
                         const VALUE *taps_below, VECTOR *sums_below)
{
    const int window = (pixels - 1) * stride + side;
    VECTOR w[OSW_DEPTHWISE_MOST_SIDE], w_below[OSW_DEPTHWISE_MOST_SIDE];
    OSW_UNROLL
    for (int t = 0; t < side; t++) {
        const int64_t tap = (flipped ? side - 1 - t : t) * channels;
        if (sums)
            w[t] = VALUED(load)(taps + tap);
        if (sums_below)
            w_below[t] = VALUED(load)(taps_below + tap);
    }
    OSW_UNROLL_LONG
    for (int column = 0; column < window; column++, x += step) {
        if (LOCAL(outside)(column, window, checked, low, high))
            continue;
        VECTOR value = LOCAL(load)(x);
        KEEP_LOADED(value);
        OSW_UNROLL
        for (int p = 0; p < pixels; p++) {
            const int t = column - p * stride;
            if (sums && t >= 0 && t < side)
                sums[p] = VALUED(fma)(value, w[t], sums[p]);
            if (sums_below && t >= 0 && t < side)
                sums_below[p] = VALUED(fma)(value, w_below[t], sums_below[p]);
        }
    }
}

/* pixel p = start + sum of taps[l][t] * line l at p * stride + t over the lines and t, or, flipped,
 * with the taps of every line in reverse */
OSW_INLINE void
LOCAL(gather)(const int side, const int stride, const int pixels, const bool flipped,
                       const bool asks, const int checked, const LOCAL(strip) *s)
{
    const int64_t step = s->step, channels = s->channels, first = s->first * step;
    const int low = LOCAL(low)(s), high = LOCAL(high)(s);
    for (int64_t c = 0; c < channels; c = LOCAL(next)(c, channels)) {
        VECTOR sums[LOCAL(MOST_PIXELS)];
        OSW_UNROLL
        for (int p = 0; p < pixels; p++)
            sums[p] = s->start ? VALUED(load)(s->start + c) : (VECTOR){0};
        const VALUE *const taps = s->taps + c;
        for (const LOCAL(line) *line = s->line, *const end = line + s->lines; line < end; line++) {
            LOCAL(add_line)(side, stride, pixels, flipped, checked, low, high, step, channels,
                     line->pixels + first + c, taps + line->taps, sums, NULL, NULL);
            if (asks)
                LOCAL(ask_lines)(s, line, stride, c);
        }
        if (asks)
            LOCAL(ask_row)(s, 1, c);
        ELEMENT *const row = s->row + s->place * step + c;
        OSW_UNROLL
        for (int p = 0; p < pixels; p++)
            LOCAL(store_rounded)(row + p * step, sums[p]);
    }
}

/* What `gather` does, of two rows: what is loaded of the lines that both have is used twice. The
 * order of the terms of a pixel is that of `gather`. */
OSW_INLINE void
LOCAL(gather_both)(const int side, const int stride, const int pixels, const bool flipped,
                            const bool asks, const int checked, const LOCAL(strip) *s)
{
    const int64_t step = s->step, channels = s->channels, first = s->first * step;
    const int low = LOCAL(low)(s), high = LOCAL(high)(s);
    for (int64_t c = 0; c < channels; c = LOCAL(next)(c, channels)) {
        VECTOR sums[LOCAL(MOST_PIXELS)], sums_below[LOCAL(MOST_PIXELS)];
        OSW_UNROLL
        for (int p = 0; p < pixels; p++)
            sums[p] = sums_below[p] = s->start ? VALUED(load)(s->start + c) : (VECTOR){0};
        const VALUE *const taps = s->taps + c;
        const LOCAL(line) *line = s->line, *const end = line + s->lines;
        for (; line < s->line + s->first_of_both; line++)
            LOCAL(add_line)(side, stride, pixels, flipped, checked, low, high, step, channels,
                     line->pixels + first + c, taps + line->taps, sums, NULL, NULL);
        for (; line < s->line + s->end_of_both; line++) {
            LOCAL(
                add_line)(side, stride, pixels, flipped, checked, low, high, step, channels,
                     line->pixels + first + c, taps + line->taps, sums, taps + line->taps_below,
                     sums_below);
            if (asks)
                LOCAL(ask_lines)(s, line, stride, c);
        }
        for (; line < end; line++) {
            LOCAL(
                add_line)(side, stride, pixels, flipped, checked, low, high, step, channels,
                     line->pixels + first + c, NULL, NULL, taps + line->taps_below, sums_below);
            if (asks)
                LOCAL(ask_lines)(s, line, stride, c);
        }
        ELEMENT *const row = s->row + s->place * step + c;
        if (asks) {
            LOCAL(ask_row)(s, 2, c);
            LOCAL(ask_row)(s, 3, c);
        }
        OSW_UNROLL
        for (int p = 0; p < pixels; p++) {
            LOCAL(store_rounded)(row + p * step, sums[p]);
            LOCAL(store_rounded)(row + s->row_step + p * step, sums_below[p]);
        }
    }
}

/* The gradient of a window of stride 2, for pixels at even places of the padded row and their right
 * neighbours: pixel p = sum of taps[l][t] * line l at (p - t) / 2 + side / 2 over the lines and all
 * t of the same parity as p */
OSW_INLINE void LOCAL(spread)(const int side, const int checked, const LOCAL(strip) *s)
{
    const int pixels = LOCAL(MOST_PIXELS), half = side / 2, window = pixels / 2 + half;
    const int64_t step = s->step, channels = s->channels;
    const int low = LOCAL(low)(s), high = LOCAL(high)(s);
    for (int64_t c = 0; c < channels; c = LOCAL(next)(c, channels)) {
        VECTOR sums[LOCAL(MOST_PIXELS)], w[OSW_DEPTHWISE_MOST_SIDE];
        OSW_UNROLL
        for (int p = 0; p < pixels; p++)
            sums[p] = (VECTOR){0};
        for (int l = 0; l < s->lines; l++) {
            const ELEMENT *dy = s->line[l].pixels + s->first * step + c;
            const VALUE *taps = s->taps + s->line[l].taps + c;
            OSW_UNROLL
            for (int t = 0; t < side; t++)
                w[t] = VALUED(load)(taps + t * channels);
            OSW_UNROLL_LONG
            for (int column = 0; column < window; column++, dy += step) {
                if (LOCAL(outside)(column, window, checked, low, high))
                    continue;
                VECTOR value = LOCAL(load)(dy);
                KEEP_LOADED(value);
                OSW_UNROLL
                for (int p = 0; p < pixels; p++) {
                    const int t = 2 * (p / 2 + half - column) + p % 2;
                    if (t >= 0 && t < side)
                        sums[p] = VALUED(fma)(value, w[t], sums[p]);
                }
            }
        }
        if (s->asks)
            LOCAL(ask_row)(s, 1, c);
        OSW_UNROLL
        for (int p = 0; p < pixels; p++)
            if (!checked || (p ? s->place + p < s->row_length : s->place >= 0))
                LOCAL(store_rounded)(s->row + (s->place + p) * step + c, sums[p]);
    }
}

/* sums[l][t] += sum of pixel p * line l at p * stride + t over p */
OSW_INLINE void
LOCAL(correlate)(const int side, const int stride, const int pixels, const bool asks,
                          const int checked, const LOCAL(strip) *s)
{
    const int window = (pixels - 1) * stride + side;
    const int64_t step = s->step, channels = s->channels;
    const int low = LOCAL(low)(s), high = LOCAL(high)(s);
    int64_t done = 0;
    for (int64_t c = 0; c < channels; c = LOCAL(next)(c, channels)) {
        VECTOR dy[LOCAL(MOST_PIXELS)], sums[OSW_DEPTHWISE_MOST_SIDE];
        OSW_UNROLL
        for (int p = 0; p < pixels; p++)
            dy[p] = LOCAL(load)(s->row + (s->place + p) * step + c);
        for (int l = 0; l < s->lines; l++) {
            const ELEMENT *x = s->line[l].pixels + s->first * step + c;
            VALUE *to = s->sums + s->line[l].taps + c;
            OSW_UNROLL
            for (int t = 0; t < side; t++)
                sums[t] = VALUED(load)(to + t * channels);
            OSW_UNROLL_LONG
            for (int column = 0; column < window; column++, x += step) {
                if (LOCAL(outside)(column, window, checked, low, high))
                    continue;
                VECTOR value = LOCAL(load)(x);
                KEEP_LOADED(value);
                OSW_UNROLL
                for (int p = 0; p < pixels; p++) {
                    const int t = column - p * stride;
                    if (t >= 0 && t < side)
                        sums[t] = VALUED(fma)(value, dy[p], sums[t]);
                }
            }
            if (c < done) {
                const MASK before = VALUED(first_lanes)(done - c);
                for (int t = 0; t < side; t++)
                    sums[t] = VALUED(select)(before, VALUED(load)(to + t * channels), sums[t]);
            }
            OSW_UNROLL
            for (int t = 0; t < side; t++)
                VALUED(store)(to + t * channels, sums[t]);
            if (asks)
                LOCAL(ask_lines)(s, &s->line[l], stride, c);
        }
        if (asks)
            LOCAL(ask_row)(s, 1, c);
        done = c + VLANES;
    }
}
