/* SPDX-License-Identifier: MIT */
/* Whether a job keeps what run.h says of its numbers; asserted when it is run. */
#ifndef OSW_BATCH_HOLDS_H
#define OSW_BATCH_HOLDS_H

#include "batch/run.h"

static inline bool osw_batch_holds(const osw_batch_job *job)
{
    if (job->count < 0 || job->channels < 1 || job->height < 1 || job->width < 1)
        return false;
    if (job->from >= OSW_BATCH_DTYPES || job->to >= OSW_BATCH_F64 ||
        (job->move && job->from != job->to))
        return false;
    const bool is_float =
        job->to == OSW_BATCH_F16 || job->to == OSW_BATCH_BF16 || job->to == OSW_BATCH_F32;
    if (!job->move && (!is_float || job->from == OSW_BATCH_BF16))
        return false;
    for (int64_t n = 0; n < job->count; n++) {
        const osw_batch_image *image = &job->images[n];
        if (image->height < 1 || image->height > job->height || image->width < 1 ||
            image->width > job->width)
            return false;
    }
    return true;
}

#endif
