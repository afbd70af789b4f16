/* SPDX-License-Identifier: MIT */
#include "dropout/run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "dropout/holds.h"

#include <assert.h>

void osw_dropout_draw(osw_draw_fn *draw, osw_twister *twister, uint64_t threshold, uint8_t *mask,
                      int64_t count)
{
    assert(osw_draw_holds(twister, threshold, count));
    draw(twister, threshold, mask, count);
}

/* Parts are counted in bytes of the mask. */
static void apply_part(int64_t begin, int64_t end, void *context)
{
    const osw_dropout_job *job = context;
    const int64_t last = osw_min_int(8 * end, job->count);
    assert(osw_mask_part_holds(8 * begin, last, job->count));
    job->apply(job->input, job->mask, job->scale, job->output, 8 * begin, last);
}

void osw_dropout_apply(const osw_dropout_job *job)
{
    assert(job->count >= 0 && job->element_bytes >= 1);
    osw_parallel_for(osw_ceil(job->count, 8), osw_grain(8 * 2 * job->element_bytes), apply_part,
                     (void *)job);
}
