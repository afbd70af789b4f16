/* SPDX-License-Identifier: MIT */
#include "core/scratch.h"

#include <assert.h>

static _Thread_local struct {
    _Alignas(64) char outer[OSW_SCRATCH_OUTER];
    _Alignas(64) char inner[OSW_SCRATCH_INNER];
    _Alignas(64) char caller[OSW_SCRATCH_CALLER];
} scratch;

void *osw_scratch_outer(size_t bytes)
{
    assert(bytes <= sizeof scratch.outer);
    (void)bytes;
    return scratch.outer;
}

void *osw_scratch_inner(size_t bytes)
{
    assert(bytes <= sizeof scratch.inner);
    (void)bytes;
    return scratch.inner;
}

void *osw_scratch_caller(size_t bytes)
{
    assert(bytes <= sizeof scratch.caller);
    (void)bytes;
    return scratch.caller;
}
