/* SPDX-License-Identifier: MIT */
#include "core/prefetch.h"

#include <string.h>

#if defined(__x86_64__)
#    include <cpuid.h>
#endif

int64_t osw_prefetch_ahead;
int64_t osw_prefetch_strips_bytes = 1 << 20;
int64_t osw_prefetch_strips_back_bytes = 1 << 20;
int64_t osw_prefetch_windows_bytes = 1 << 20;
int64_t osw_stream_bytes;
int64_t osw_stream_batch_bytes;

#if defined(__x86_64__)
enum { ZEN5 = 0x1A }; /* of AMD's families; those of Zen 3 and Zen 4 are 0x19 */

static uint32_t family(void)
{
    uint32_t eax = 0, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        return 0;
    const uint32_t base = eax >> 8 & 0xF;
    return base < 0xF ? base : base + (eax >> 20 & 0xFF);
}
#endif

void osw_prefetch_detect(void)
{
#if defined(__x86_64__)
    uint32_t leaf, vendor[3]; /* ebx, edx, ecx */
    if (!__get_cpuid(0, &leaf, &vendor[0], &vendor[2], &vendor[1]))
        return;
    if (memcmp(vendor, "GenuineIntel", sizeof vendor) == 0) {
        osw_prefetch_ahead = 2048;
        osw_prefetch_strips_bytes = 18 << 20;
        osw_prefetch_strips_back_bytes = 12 << 20;
        osw_prefetch_windows_bytes = 8 << 20;
        osw_stream_batch_bytes = 8 << 20;
    }
    if (memcmp(vendor, "AuthenticAMD", sizeof vendor) == 0) {
        osw_stream_bytes = 8 << 20;
        if (family() >= ZEN5) {
            osw_prefetch_strips_bytes = 13 << 20;
            osw_prefetch_strips_back_bytes = 10 << 20;
        }
    }
#endif
}
