/* SPDX-License-Identifier: MIT */
/* The gradient of the input; included once per dtype. */
#include "core/simd.h"
#include "linear/linear.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/combine.h"
#    include "linear/product_tiles.h"

#    include "linear/product.h" /* of what product_tiles.h defines */
#endif

static void KERNEL(linear_grad_input)(const osw_linear *l, const osw_linear_block *block)
{
    const int64_t dy_step = l->grad_output.row_step, dx_step = l->grad_input.row_step;
    const int64_t rows = block->end - block->begin, features = l->in_features;
    const osw_linear_steps *const steps = l->lines.rows ? &l->grad_input_steps : NULL;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g], outputs = l->first[g + 1] - o;
        const ELEMENT *weight = (const ELEMENT *)l->weight + o * features;
        const ELEMENT *dy = (const ELEMENT *)l->grad_output.base + block->begin * dy_step + o;
        ELEMENT *dx = (ELEMENT *)l->grad_input.base + g * l->grad_input.group_step;
        if (outputs > 0 && outputs <= FEW_OUTPUTS) {
            for (int64_t n = block->begin; n < block->end; n++, dy += dy_step)
                LOCAL(combine)(outputs, false, features, dy, 1, weight, features, NULL,
                        dx + osw_linear_grad_input_at(l, n));
            continue;
        }
        LOCAL(multiply)(&(osw_product){
            .rows = rows,
            .columns = features,
            .terms = outputs,
            .a = dy,
            .a_row = dy_step,
            .a_term = 1,
            .b = weight,
            .b_term = features,
            .c = dx + (steps ? 0 : block->begin * dx_step),
            .c_row = dx_step,
            .lines = &l->lines,
            .c_steps = steps,
            .first = block->begin,
        });
    }
}
