/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* madvise */
#include "binding_np/pages.h"

#include <stdint.h>

#if defined(__linux__)
#    include <sys/mman.h>
#endif

void osw_huge_pages(void *memory, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const size_t page = (size_t)2 << 20;
    const size_t before = -(uintptr_t)memory % page;
    if (bytes >= before + page)
        (void)madvise((char *)memory + before, (bytes - before) / page * page, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}
