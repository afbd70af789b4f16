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

#    if defined(__x86_64__)
static const uint64_t flush_bits = 1u << 15 | 1u << 6; /* of results, and of operands */
#    else
static const uint64_t flush_bits = 1u << 24; /* of both */
#    endif

/* The register that holds these bits, of the thread. */
static uint64_t read_control(void)
{
#    if defined(__x86_64__)
    return __builtin_ia32_stmxcsr();
#    else
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
#    endif
}

static void set_flush_bits(uint64_t bits)
{
    const uint64_t control = (read_control() & ~flush_bits) | bits;
#    if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((unsigned)control);
#    else
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
#    endif
}

enum { FLUSH_OFF, FLUSH_ON, FLUSH_SAVE, FLUSH_RESTORE };

static void flush_here(int what)
{
    /* Bits that osw_memory_flush_restore brings back, if any were saved. */
    static _Thread_local uint64_t saved_bits;
    static _Thread_local int is_saved;
    if (what == FLUSH_SAVE) {
        saved_bits = read_control() & flush_bits;
        is_saved = 1;
    } else if (what == FLUSH_RESTORE) {
        if (is_saved)
            set_flush_bits(saved_bits);
        is_saved = 0;
    } else {
        set_flush_bits(what == FLUSH_ON ? flush_bits : 0);
    }
}

typedef struct {
    int what;
    int expected;
    int64_t deadline;
    atomic_int arrived;
    atomic_int met;
} flush_job;

/* By a clock that cannot be set. */
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

/* One item a thread. A thread that is done stays until all have come, so that it cannot run the
 * item of another. On a busy machine, or with more threads than cores, that takes a while. */
static void flush_item(int64_t begin, int64_t end, void *context)
{
    flush_job *job = context;
    flush_here(job->what);
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

static int flush_everywhere(int what)
{
    const int64_t longest_wait = 10000;
    flush_job job = {.what = what, .expected = osw_parallel_threads()};
    job.deadline = milliseconds() + longest_wait;
    flush_here(what);
    osw_parallel_for(job.expected, 1, flush_item, &job);
    return atomic_load(&job.met);
}

int osw_memory_flush(int on)
{
    return flush_everywhere(on ? FLUSH_ON : FLUSH_OFF);
}

int osw_memory_flush_save(void)
{
    return flush_everywhere(FLUSH_SAVE);
}

int osw_memory_flush_restore(void)
{
    return flush_everywhere(FLUSH_RESTORE);
}

#else

int osw_memory_flush(int on)
{
    (void)on;
    return 0;
}

int osw_memory_flush_save(void)
{
    return 0;
}

int osw_memory_flush_restore(void)
{
    return 0;
}

#endif
