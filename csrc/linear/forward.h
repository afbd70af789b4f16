/* SPDX-License-Identifier: MIT */
/* forward: by a packed weight, or as dot products. Included once per dtype. */
#include "core/ints.h"
#include "core/simd.h"
#include "linear/linear.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/dot.h"
#    include "linear/product_tiles.h"

#    include "linear/product.h" /* of what product_tiles.h defines */
#endif

/* Packing costs by the weight, the sums over the lanes of dot products by the output: packing is
 * cheaper from one row per four input features on, and from MANY_ROWS on in any case, since tiles
 * of packed products are faster. */
static bool LOCAL(pays_packing)(const osw_linear *l, int64_t outputs)
{
    return outputs >= VLANES && (4 * l->rows >= l->in_features || l->rows >= MANY_ROWS);
}

/* The first `outputs` outputs of group g, by a packed weight. */
static void LOCAL(packed_forward)(const osw_linear *l, int64_t g, int64_t begin, int64_t end,
                           int64_t outputs)
{
    const int64_t x_step = l->input.row_step, y_step = l->output.row_step, o = l->first[g];
    const osw_linear_steps *const steps = l->lines.rows ? &l->input_steps : NULL;
    LOCAL(multiply)(&(osw_product){
        .rows = end - begin,
        .columns = outputs,
        .terms = l->in_features,
        .a =
            (const ELEMENT *)l->input.base + (steps ? 0 : begin * x_step) + g * l->input.group_step,
        .a_row = x_step,
        .a_term = osw_linear_feature_step(l),
        .b = (const ELEMENT *)l->weight + o * l->in_features,
        .b_term = l->in_features,
        .start = l->bias ? (const ELEMENT *)l->bias + o : NULL,
        .c = (ELEMENT *)l->output.base + begin * y_step + o,
        .c_row = y_step,
        .transposed = true,
        .lines = &l->lines,
        .a_steps = steps,
        .first = begin,
    });
}

/* A few outputs behind whole vectors of them are dot products: as a tile they would cost as much as
 * a vector. */
static void KERNEL(linear_forward)(const osw_linear *l, const osw_linear_block *block)
{
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g], outputs = l->first[g + 1] - o, rest = outputs % VLANES;
        if (l->planes) {
            LOCAL(packed_forward)(l, g, block->begin, block->end, outputs);
        } else if (!LOCAL(pays_packing)(l, outputs)) {
            LOCAL(dot_forward)(l, g, block->begin, block->end);
        } else if (rest == 0 || rest > osw_min_int(VLANES / 2, FEW_DOTS) || outputs > 2 * VLANES) {
            LOCAL(packed_forward)(l, g, block->begin, block->end, outputs);
        } else {
            LOCAL(packed_forward)(l, g, block->begin, block->end, outputs - rest);
            LOCAL(dot_outputs)(l, g, block->begin, block->end, o + outputs - rest, o + outputs);
        }
    }
}
