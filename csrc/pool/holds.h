/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what pool.h says of its numbers; asserted where kernels are called. */
#ifndef OSW_POOL_HOLDS_H
#define OSW_POOL_HOLDS_H

#include "pool/window.h"

static inline bool osw_pool_dim_holds(const osw_pool_dim *dim, bool has_window)
{
    return dim->input >= 1 && dim->output >= 1 && dim->kernel >= 1 && dim->stride >= 1 &&
           dim->padding >= 0 && dim->padding <= dim->kernel / 2 && dim->dilation >= 1 &&
           (!has_window || (dim->output - 1) * dim->stride - dim->padding < dim->input);
}

/* Units [0, units); adaptive operations have no window. */
static inline bool osw_pool_holds(const osw_pool *pool, bool has_window, int64_t units)
{
    bool holds = pool->images >= 1 && pool->channels >= 1 && pool->channel_step >= 1 &&
                 pool->input_channels >= 1 && units >= 1 &&
                 pool->channels == osw_ceil_div(pool->input_channels, pool->channel_step) &&
                 pool->block >= OSW_POOL_MIN_BLOCK && pool->block <= OSW_POOL_MAX_BLOCK;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        holds = holds && osw_pool_dim_holds(&pool->dims[i], has_window);
    if (has_window)
        return holds;
    return holds && osw_input_plane(pool) <= INT32_MAX && (pool->wide || !pool->offsets.base);
}

/* Form planes: positions are neighbours; form pixels: channels are. */
static inline bool osw_pool_tensor_holds(const osw_pool_tensor *t, bool pixels, bool one)
{
    return !t->base || one || (pixels ? t->channel_step == 1 : t->pixel_step == 1);
}

#endif
