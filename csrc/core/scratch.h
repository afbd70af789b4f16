/* SPDX-License-Identifier: MIT */
/* Working memory of the thread that runs a kernel, for what would not fit a small stack: threads of
 * musl have 128 KiB, those of macOS 512. One block per thread, there for as long as the thread is;
 * its contents are whatever the last kernel left. A kernel has no more than 48 KiB on the stack
 * (setup.py warns), and its callers little beside. */
#ifndef OSW_CORE_SCRATCH_H
#define OSW_CORE_SCRATCH_H

#include <stddef.h>

enum {
    OSW_SCRATCH_OUTER = 336 << 10,
    OSW_SCRATCH_INNER = 256 << 10,
    OSW_SCRATCH_CALLER = 256 << 10,
};

/* `bytes`, at most OSW_SCRATCH_OUTER, at a multiple of 64: for a kernel, until it returns. */
void *osw_scratch_outer(size_t bytes);

/* `bytes`, at most OSW_SCRATCH_INNER, apart from the outer part: for a function that kernels with
 * an outer part call. */
void *osw_scratch_inner(size_t bytes);

/* `bytes`, at most OSW_SCRATCH_CALLER, apart from both: for what calls kernels one after the other.
 */
void *osw_scratch_caller(size_t bytes);

#endif
