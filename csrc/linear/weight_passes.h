/* SPDX-License-Identifier: MIT */
/* The gradient of a weight as sums of outer products of rows, which are not packed: passes of so
 * many rows. Included once per dtype that sums are taken in. */
#include "core/ahead.h"
#include "core/ints.h"
#include "core/simd.h"
#include "linear/linear.h"
#include "linear/tiles.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/outer.h"
#endif

/* Rows that follow each other, of at least a vector and less than a page, need not be packed: by
 * the sizes alone, so that sums do not depend on blocks. */
static bool LOCAL(has_passes)(const osw_linear *l)
{
    return !l->planes && !l->lines.rows && l->in_features >= VLANES &&
           l->input.row_step * (int64_t)sizeof(ELEMENT) < PAGE_BYTES;
}

/* The rows behind [n, n + rows) of a part, as many of them, if they are not in the caches:
 * grad_output is if the gradient of the input has just read it. */
static osw_pass
LOCAL(next_rows)(const osw_linear *l, int64_t end, int64_t n, int64_t rows, const LOCAL(outer) *t,
                          int64_t outputs, int64_t features)
{
    const int64_t bytes = (int64_t)sizeof(ELEMENT), behind = osw_min_int(end - n - rows, rows);
    const int64_t row = (l->in_features + l->first[l->groups]) * bytes;
    const int64_t tiles = count_tiles(outputs, features, VLANES);
    const bool read = l->grad_input.base && l->part_rows * row <= KEPT_BYTES;
    osw_pass pass = {0};
    if (l->rows * row < NEXT_BYTES)
        return pass;
    if (t->b_pixel <= 2 * features)
        add_stream(&pass, t->b + rows * t->b_pixel, behind * t->b_pixel * bytes, tiles);
    if (!read && t->a_pixel <= 2 * outputs)
        add_stream(&pass, t->a + rows * t->a_pixel, behind * t->a_pixel * bytes, tiles);
    return pass;
}

/* Features [begin, end), at least a vector of them, of the weight of group g; false if its rows
 * must be packed. */
static bool
LOCAL(add_passes)(const osw_linear *l, int64_t g, int64_t part, int64_t begin, int64_t end,
                       ELEMENT *grad_weight)
{
    const int64_t o = l->first[g], outputs = l->first[g + 1] - o, features = end - begin;
    const int64_t last = osw_linear_part_end(l, part);
    if (!LOCAL(has_passes)(l))
        return false;
    assert(features >= VLANES);
    LOCAL(outer) t = {.lines = 1,
               .a_pixel = l->grad_output.row_step,
               .b_pixel = l->input.row_step,
               .sums = grad_weight + o * l->in_features + begin,
               .sums_step = l->in_features};
    for (int64_t m = 0; m < outputs; m++)
        memset(t.sums + m * t.sums_step, 0, (size_t)features * sizeof(ELEMENT));
    for (int64_t n = part * l->part_rows; n < last; n += t.length) {
        t.length = osw_min_int(last - n, FAR_DEPTH);
        t.a = (const ELEMENT *)l->grad_output.base + n * t.a_pixel + o;
        t.b = (const ELEMENT *)l->input.base + g * l->input.group_step + n * t.b_pixel + begin;
        osw_pass pass = LOCAL(next_rows)(l, last, n, t.length, &t, outputs, features);
        LOCAL(add_outer_products)(t, outputs, features, &pass);
    }
    return true;
}
