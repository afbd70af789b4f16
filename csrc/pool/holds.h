/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what pool.h says of its numbers; asserted when kernels are called. */
#ifndef OSW_POOL_HOLDS_H
#define OSW_POOL_HOLDS_H

#include "pool/window.h"

static inline bool osw_pool_dim_holds(const osw_pool_dim *dim, bool has_window)
{
    return dim->input >= 1 && dim->output >= 1 && dim->kernel >= 1 && dim->stride >= 1 &&
           dim->padding >= 0 && dim->padding <= dim->kernel / 2 && dim->dilation >= 1 &&
           (!has_window || (dim->output - 1) * dim->stride - dim->padding < dim->input);
}

static inline bool osw_pool_dims_hold(const osw_pool *pool, bool has_window)
{
    bool holds = true;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        holds = holds && osw_pool_dim_holds(&pool->dims[i], has_window);
    return holds;
}

/* Units [0, units); adaptive operations have no window. */
static inline bool osw_pool_holds(const osw_pool *pool, bool has_window, int64_t units)
{
    const bool holds = osw_pool_dims_hold(pool, has_window) && pool->images >= 1 &&
                       pool->channels >= 1 && pool->channel_step >= 1 &&
                       pool->input_channels >= 1 && units >= 1 &&
                       pool->channels == osw_ceil_div(pool->input_channels, pool->channel_step) &&
                       pool->block >= OSW_POOL_MIN_BLOCK && pool->block <= OSW_POOL_MAX_BLOCK;
    if (has_window)
        return holds;
    return holds && osw_input_plane(pool) <= INT32_MAX && (pool->wide || !pool->offsets.base);
}

/* Form planes: positions are neighbours; form pixels: channels are. */
static inline bool osw_pool_tensor_holds(const osw_pool_tensor *t, bool pixels, bool one)
{
    return !t->base || one || (pixels ? t->channel_step == 1 : t->pixel_step == 1);
}

static inline bool osw_pool_tensors_hold(const osw_pool *p, bool pixels)
{
    const bool one_in = pixels ? p->input_channels == 1 : osw_input_plane(p) == 1;
    const bool one_out = pixels ? p->channels == 1 : osw_output_plane(p) == 1;
    return osw_pool_tensor_holds(&p->input, pixels, one_in) &&
           osw_pool_tensor_holds(&p->grad_input, pixels, one_in) &&
           osw_pool_tensor_holds(&p->output, pixels, one_out) &&
           osw_pool_tensor_holds(&p->offsets, pixels, one_out) &&
           osw_pool_tensor_holds(&p->grad_output, pixels, one_out);
}

#endif
