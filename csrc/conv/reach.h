/* SPDX-License-Identifier: MIT */
/* Taps inside of an image, and the terms that they are. */
#ifndef OSW_CONV_REACH_H
#define OSW_CONV_REACH_H

#include "conv/conv.h"
#include "core/ints.h"

#include <stdbool.h>
#include <stdint.h>

enum { FEW_PIXELS = 4 }; /* of a line, fewer than those that have lines of the other direction */

typedef struct osw_conv_span {
    int64_t begin, end;
} osw_conv_span;

static inline osw_conv_span common_span(osw_conv_span a, int64_t begin, int64_t end)
{
    return (osw_conv_span){osw_max_int(a.begin, begin), osw_min_int(a.end, end)};
}

/* Terms by which the pixels of a patch are computed: groups, runs of them and terms of these, and
 * the elements from one to the next. */
typedef struct osw_conv_reach {
    osw_conv_span groups, runs, terms;
    int64_t group_step, run_step;
} osw_conv_reach;

/* Of the taps of so many rows and columns. */
static osw_conv_reach reach_of(const osw_conv *conv, osw_conv_span rows, osw_conv_span columns)
{
    const int64_t row = conv->rows.dilation * conv->input.row_step;
    const int64_t channels = conv->channels;
    if (conv->terms.groups == 1 && conv->terms.runs == conv->rows.taps &&
        conv->terms.run == conv->columns.taps * channels)
        return (osw_conv_reach){.groups = {0, 1},
                                .runs = rows,
                                .terms = {columns.begin * channels, columns.end * channels},
                                .run_step = row};
    return (osw_conv_reach){.groups = rows,
                            .runs = columns,
                            .terms = {0, channels},
                            .group_step = row,
                            .run_step = conv->columns.dilation * conv->input.pixel_step};
}

/* The taps of output place i inside of the image. */
static osw_conv_span taps_inside(const osw_conv_axis *axis, int64_t i)
{
    const int64_t before = axis->padding - i * axis->stride; /* so far outside is tap 0 */
    const int64_t begin = before > 0 ? osw_ceil(before, axis->dilation) : 0;
    const int64_t left = axis->size + before;
    const int64_t end = left > 0 ? osw_ceil(left, axis->dilation) : 0;
    return (osw_conv_span){begin, osw_max_int(osw_min_int(end, axis->taps), begin)};
}

/* The taps of output place i, and the place, at most `end`, up to which others have the same. */
static int64_t same_taps(const osw_conv_axis *axis, int64_t i, int64_t end, osw_conv_span *taps)
{
    *taps = taps_inside(axis, i);
    if (taps->begin == 0 && taps->end == axis->taps) { /* all: up to the last place of which */
        const int64_t last = axis->size - 1 + axis->padding - (axis->taps - 1) * axis->dilation;
        return osw_min_int(last / axis->stride + 1, end);
    }
    const bool none = taps->begin >= taps->end;
    for (i++; i < end; i++) {
        const osw_conv_span next = taps_inside(axis, i);
        const bool same =
            none ? next.begin >= next.end : next.begin == taps->begin && next.end == taps->end;
        if (!same)
            break;
    }
    return i;
}

#endif
