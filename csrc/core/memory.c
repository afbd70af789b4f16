/* SPDX-License-Identifier: MIT */
#include "core/memory.h"

#include "core/parallel.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#if defined(__GLIBC__)
#    include <malloc.h>
#endif
#if defined(__x86_64__)
#    include <xmmintrin.h>
#endif
#if !defined(_WIN32)
#    include <sched.h>
#endif

#if defined(__GLIBC__)

/* Turned off, the thresholds are those that glibc's own rule ends at once a block of 32 MB has been
 * freed; the rule itself cannot be turned on again. */
int osw_memory_reuse(int on)
{
    const int large = 32 << 20;
    const int done = mallopt(M_MMAP_MAX, on ? 0 : 65536) && mallopt(M_MMAP_THRESHOLD, large) &&
                     mallopt(M_TRIM_THRESHOLD, on ? INT_MAX : 2 * large) &&
                     mallopt(M_TOP_PAD, on ? 2 * large : 128 << 10);
    if (!on)
        malloc_trim(0);
    return done;
}

#else

int osw_memory_reuse(int on)
{
    (void)on;
    return 0;
}

#endif

#if defined(__x86_64__) || defined(__aarch64__)

static void flush_here(int on)
{
#    if defined(__x86_64__)
    const unsigned flush_to_zero = 1u << 15, denormals_are_zero = 1u << 6;
    const unsigned bits = flush_to_zero | denormals_are_zero;
    _mm_setcsr(on ? _mm_getcsr() | bits : _mm_getcsr() & ~bits);
#    else
    const uint64_t flush_to_zero = 1ull << 24; /* of operands as well */
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    control = on ? control | flush_to_zero : control & ~flush_to_zero;
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
#    endif
}

typedef struct {
    int on;
    int expected;
    int64_t deadline;
    atomic_int arrived;
    atomic_int met;
} flush_job;

/* By a clock that nobody sets. */
static int64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void let_others_run(void)
{
#    if !defined(_WIN32)
    sched_yield();
#    endif
}

/* One item a thread. A thread that is done stays until all have come, so that none takes the item
 * of another. On a busy machine, or with more threads than cores, that takes a while. */
static void flush_item(int64_t begin, int64_t end, void *context)
{
    flush_job *job = context;
    flush_here(job->on);
    if (end - begin > 1) { /* torch runs this in series, and no other thread will come */
        atomic_fetch_add(&job->met, 1);
        return;
    }
    atomic_fetch_add(&job->arrived, 1);
    while (atomic_load(&job->arrived) < job->expected) {
        if (milliseconds() > job->deadline)
            return;
        let_others_run();
    }
    atomic_fetch_add(&job->met, 1);
}

int osw_memory_flush(int on)
{
    const int64_t longest_wait = 10000;
    flush_job job = {.on = on, .expected = osw_parallel_threads()};
    job.deadline = milliseconds() + longest_wait;
    flush_here(on);
    osw_parallel_for(job.expected, 1, flush_item, &job);
    return atomic_load(&job.met);
}

#else

int osw_memory_flush(int on)
{
    (void)on;
    return 0;
}

#endif
