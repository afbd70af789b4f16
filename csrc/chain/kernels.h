/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table. */
#include "chain/blocks.h"
#include "chain/chain.h"
#include "chain/dense.h"
#include "chain/depthwise.h"
#include "chain/pointwise.h"
#include "core/simd.h"

static void TIERED(osw_chain_reduce)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t from = part->begin * s->outputs;
    clear_sums(part, s->outputs);
    reduce_block(s->after, s->outputs, part->end - part->begin, s->output + from, s->grad + from,
                 part);
}

static void TIERED(osw_chain_apply)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t from = part->begin * s->outputs;
    apply_block(s->after, s->outputs, part->end - part->begin, s->output + from, s->normal + from);
}

#define FILL(operation) table[OSW_CHAIN_##operation] = TIERED(osw_chain_##operation);

void TIERED(osw_chain_fill)(osw_chain_fn **table)
{
    OSW_CHAIN_VARIANTS(FILL)
}
