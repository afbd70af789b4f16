/* SPDX-License-Identifier: MIT */
/* Whether a shuffle keeps what plan.h and channels.h say of its numbers; asserted when it is cut
 * and when it runs. */
#ifndef OSW_CHANNELS_HOLDS_H
#define OSW_CHANNELS_HOLDS_H

#include "channels/plan.h"

#include <stdbool.h>

static inline bool osw_side_holds(osw_side side, int64_t channels)
{
    for (int64_t i = 0; i < side.count; i++) {
        if (side.segments[i].channels < 0 || side.segments[i].channels > channels)
            return false;
        channels -= side.segments[i].channels;
    }
    return channels == 0;
}

static inline bool osw_shuffle_holds(const osw_shuffle *s)
{
    const int64_t bytes = s->element_bytes;
    return s->channels >= 1 && s->groups >= 1 && s->channels % s->groups == 0 && bytes >= 1 &&
           bytes <= 1 << OSW_x128 && (bytes & (bytes - 1)) == 0 &&
           osw_side_holds(s->inputs, s->channels) && osw_side_holds(s->outputs, s->channels);
}

/* Channels are neighbours: the step of a segment with memory is the element. */
static inline bool osw_side_is_dense(osw_side side, int64_t element_bytes)
{
    for (int64_t i = 0; i < side.count; i++) {
        const osw_segment *s = &side.segments[i];
        if (s->base && s->channels > 1 && s->channel_step != element_bytes)
            return false;
    }
    return true;
}

static inline bool osw_plan_holds(const osw_plan *plan)
{
    for (int64_t i = 0; i < plan->run_count; i++)
        if (plan->runs[i].rows < 1 || plan->runs[i].columns < 1)
            return false;
    return plan->images >= 1 && plan->move_count >= 0 && plan->run_count >= 0 &&
           (plan->plane_bytes >= 1 ? plan->run_count == 0
                                   : plan->pixels >= 1 && plan->pixel_bytes >= 1);
}

#endif
