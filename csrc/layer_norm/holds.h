/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what layer_norm.h and run.h say of its numbers; asserted where it is planned
 * and where it runs. */
#ifndef OSW_LAYER_NORM_HOLDS_H
#define OSW_LAYER_NORM_HOLDS_H

#include "layer_norm/run.h"

static inline bool osw_layer_norm_holds(const osw_layer_norm_job *job)
{
    return job->norm.channels >= 1 && job->rows >= 1 && job->dtype < OSW_DTYPE_COUNT &&
           (job->grad_weight == NULL) == (job->grad_bias == NULL);
}

/* After osw_layer_norm_plan: chunks cover the rows. */
static inline bool osw_layer_norm_chunks_hold(const osw_layer_norm_job *job)
{
    return job->chunk >= 1 && job->chunks >= 1 && (job->chunks - 1) * job->chunk < job->rows &&
           job->chunks * job->chunk >= job->rows;
}

#endif
