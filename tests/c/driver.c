/* SPDX-License-Identifier: MIT */
#include "driver.h"

#include "core/parallel.h"
#include "core/prefetch.h"
#include "driver_compare.h"
#include "driver_rooms.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state;

void driver_seed(uint64_t seed)
{
    state = seed;
}

uint32_t driver_draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

int64_t driver_below(int64_t end)
{
    return (int64_t)(driver_draw() % (uint64_t)end);
}

void driver_case(driver *d, const char *variant, const char *format, ...)
{
    driver_give_back(d);
    osw_prefetch_ahead = driver_below(2) ? 2048 : 0; /* as on CPUs of Intel, or not */
    osw_prefetch_strips_bytes = driver_below(2) ? 0 : INT64_MAX;
    osw_prefetch_strips_back_bytes = driver_below(2) ? 0 : INT64_MAX;
    snprintf(d->variant, sizeof d->variant, "%s", variant);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(d->size, sizeof d->size, format, arguments);
    va_end(arguments);
}

int driver_lengths(const driver *d, int64_t element_bytes, int64_t lengths[DRIVER_MOST_LENGTHS])
{
    const int64_t lanes = d->vector_bytes / element_bytes > 1 ? d->vector_bytes / element_bytes : 1;
    const int64_t few[] = {1, lanes - 1, lanes, lanes + 1, 2 * lanes + 3, 13};
    const int64_t many[] = {2,
                            3,
                            5,
                            7,
                            2 * lanes - 1,
                            2 * lanes,
                            2 * lanes + 1,
                            3 * lanes,
                            4 * lanes - 1,
                            5 * lanes + 1,
                            31,
                            61};
    int count = 0;
    if (d->timed) {
        lengths[0] = 16 * 1024 / element_bytes;
        return 1;
    }
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        if (few[i] > 0)
            lengths[count++] = few[i];
    for (size_t i = 0; !d->quick && i < sizeof many / sizeof *many; i++)
        lengths[count++] = many[i];
    return count;
}

/* One call of the tier's kernel, or of the scalar one. */
typedef struct driver_call {
    driver_work *work;
    const void *context, *table;
} driver_call;

static void do_part(int64_t begin, int64_t end, void *context)
{
    const driver_call *call = context;
    call->work(call->context, call->table, begin, end);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The fastest of several runs, in microseconds per call. */
static double time_of(driver_call *call, int64_t units)
{
    enum { RUNS = 7 };
    const double least = 0.002;
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        int64_t calls = 0;
        const double start = seconds();
        double passed = 0;
        for (; passed < least; calls++) {
            do_part(0, units, call);
            passed = seconds() - start;
        }
        best = passed / (double)calls < best ? passed / (double)calls : best;
    }
    return best * 1e6;
}

static void print_times(const driver *d, driver_call *call, int64_t units)
{
    call->table = driver_scalar_table;
    const double scalar = time_of(call, units);
    call->table = d->table;
    const double tier = time_of(call, units);
    printf("%s %s %s, %s: %.1f us, scalar %.1f us, %.2f times as fast\n", d->family->name,
           d->variant, osw_isa_name(d->tier), d->size, tier, scalar, scalar / tier);
}

/* The scalar kernel on the magnitudes of the inputs gives those of the terms of all sums. */
static void sum_magnitudes(driver *d, driver_call *call, int64_t units)
{
    if (!driver_needs_magnitudes(d))
        return;
    driver_take_magnitudes(d);
    driver_reset_outputs(d, 0x11);
    call->table = driver_scalar_table;
    osw_parallel_for(units, 1, do_part, call);
    driver_keep_magnitudes(d);
}

void driver_scalar(driver_work *work, const void *context, int64_t units)
{
    work(context, driver_scalar_table, 0, units);
}

void driver_run(driver *d, driver_work *work, const void *context, int64_t units)
{
    driver_call call = {.work = work, .context = context};
    d->cases++;
    if (d->timed) {
        driver_reset_outputs(d, 0);
        print_times(d, &call, units);
        return;
    }
    sum_magnitudes(d, &call, units);
    for (int which = 0; which < 2; which++) {
        d->scalar_runs = which == 0;
        call.table = which == 0 ? driver_scalar_table : d->table;
        driver_reset_outputs(d, which == 0 ? 0x5a : 0xa7);
        osw_parallel_for(units, 1, do_part, &call);
        if (driver_check_surroundings(d) != 0)
            return;
        if (which == 0)
            driver_keep_outputs(d);
    }
    driver_compare(d);
}
