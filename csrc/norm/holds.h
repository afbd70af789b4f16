/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what norm.h, run.h, group_run.h and mean_square.h say of its numbers;
 * asserted when it is prepared and when it runs. */
#ifndef OSW_NORM_HOLDS_H
#define OSW_NORM_HOLDS_H

#include "norm/group_run.h"
#include "norm/mean_square.h"

#include <stddef.h>

static inline bool osw_norm_holds(const osw_norm_job *job)
{
    const osw_norm *n = &job->norm;
    return n->images >= 1 && n->channels >= 1 && n->positions >= 1 &&
           n->activation.kind < OSW_ACTIVATION_COUNT && job->form <= OSW_NORM_PIXELS &&
           job->dtype < OSW_DTYPE_COUNT && (job->grad_weight == NULL) == (job->grad_bias == NULL);
}

/* Images, or rows, that chunks divide among themselves. */
static inline int64_t osw_norm_extent(const osw_norm_job *job)
{
    const osw_norm *n = &job->norm;
    return job->form == OSW_NORM_PLANES ? n->images : n->images * n->positions;
}

/* After osw_norm_prepare or, of one image, osw_group_prepare: chunks cover the extent, and those of
 * pixels begin at a multiple of OSW_NORM_ROWS. */
static inline bool osw_norm_chunks_hold(const osw_norm_job *job, int64_t extent)
{
    return job->chunk >= 1 && job->chunks >= 1 && (job->chunks - 1) * job->chunk < extent &&
           job->chunks * job->chunk >= extent &&
           (job->form != OSW_NORM_PIXELS || job->chunk % OSW_NORM_ROWS == 0);
}

/* The channels of a part for moments and reduce. */
static inline bool osw_norm_block_holds(const osw_norm_job *job, int64_t begin, int64_t end)
{
    return begin >= 0 && begin < end && end <= job->norm.channels &&
           (job->form == OSW_NORM_PIXELS ? end - begin == job->norm.channels
                                         : end - begin <= OSW_NORM_MAX_BLOCK);
}

static inline bool osw_group_holds(const osw_group_job *job)
{
    return osw_norm_holds(&job->all) && job->groups >= 1 &&
           job->all.norm.channels % job->groups == 0 && job->all.form == OSW_NORM_PIXELS &&
           job->all.training;
}

static inline bool osw_mean_square_holds(const osw_mean_square_job *job)
{
    const osw_norm *n = &job->norm.norm;
    return osw_norm_holds(&job->norm) && job->norm.form == OSW_NORM_PLANES && n->channels == 1 &&
           n->activation.kind == OSW_IDENTITY && job->norm.dtype != OSW_F64 && job->norm.eps == 0;
}

#endif
