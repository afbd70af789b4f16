/* SPDX-License-Identifier: MIT */
/* Whether a job keeps what run.h says of it; asserted when it runs. */
#ifndef OSW_NORM_POOL_HOLDS_H
#define OSW_NORM_POOL_HOLDS_H

#include "norm/holds.h"
#include "norm_pool/run.h"
#include "pool/holds.h"

static inline bool osw_norm_pool_holds(const osw_norm_pool_job *job, bool backward)
{
    const osw_norm *n = &job->norm.norm;
    const osw_pool *p = &job->pool;
    const bool pixels = job->norm.form == OSW_NORM_PIXELS;
    return osw_norm_holds(&job->norm) && osw_pool_holds(p, true, 1) &&
           osw_pool_tensors_hold(p, pixels) && osw_norm_pool_fits(job) && p->images == n->images &&
           p->channels == n->channels && p->channel_step == 1 && p->dims[DEPTH].input == 1 &&
           p->dims[HEIGHT].input * p->dims[WIDTH].input == n->positions &&
           n->x.image_step == n->channels * n->positions && !n->y.base && !n->dy.base &&
           !p->input.base && !p->grad_input.base &&
           (backward ? p->grad_output.base && p->offsets.base : p->output.base != NULL);
}

#endif
