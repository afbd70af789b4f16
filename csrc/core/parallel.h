/* SPDX-License-Identifier: MIT */
/* The only access to threads. */
#ifndef OSW_CORE_PARALLEL_H
#define OSW_CORE_PARALLEL_H

#include <stdint.h>

/* Bytes that one thread should move at least before a second one is woken: a parallel region costs
 * 1 us with 2 threads and 10 us with 64, and one thread moves 64 KiB in about 4 us. */
#define OSW_GRAIN_BYTES 65536

/* The same in multiplications, of what is bound by them. */
#define OSW_GRAIN_PRODUCTS (1 << 17)

/* body(begin, end, context) works on a part of the range. */
typedef void osw_body(int64_t begin, int64_t end, void *context);

/* Call `body` on disjoint parts that cover [0, count), on torch's own threads if libtorch is
 * loaded (so that torch.set_num_threads is obeyed), else serially. Parts may be smaller than
 * `grain`; body must not fail. */
void osw_parallel_for(int64_t count, int64_t grain, osw_body *body, void *context);

/* Threads that osw_parallel_for uses at most. */
int osw_parallel_threads(void);

/* The grain, in items, at which one part moves at least OSW_GRAIN_BYTES. */
static inline int64_t osw_grain(int64_t bytes_per_item)
{
    return bytes_per_item >= OSW_GRAIN_BYTES ? 1 : OSW_GRAIN_BYTES / (bytes_per_item + 1) + 1;
}

#endif
