/* SPDX-License-Identifier: MIT */
#include "driver_compare.h"

#include "core/half.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FAILURES = 10 }; /* that are printed */

static driver *watched;

static void print_case(const driver *d)
{
    printf("%s %s, tier %s, %s", d->family->name, d->variant,
           osw_isa_name(d->scalar_runs ? OSW_ISA_SCALAR : d->tier), d->size);
}

void driver_report(driver *d, const char *format, ...)
{
    if (d->failures++ >= MOST_FAILURES)
        return;
    print_case(d);
    printf(": ");
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

/* What was printed so far is the report, so it may not be lost; the process ends in any case. */
static void die(int signal)
{
    print_case(watched);
    printf(": signal %d\n", signal);
    fflush(stdout);
    _exit(3);
}

void driver_watch(driver *d)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = die;
    watched = d;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
}

int64_t driver_bytes(driver_type type)
{
    static const int64_t bytes[] = {4, 8, 2, 2, 1, 2, 4, 8, 16};
    return bytes[type];
}

double driver_value(driver_type type, const void *data, int64_t i)
{
    switch (type) {
    case DRIVER_F32:
        return (double)((const float *)data)[i];
    case DRIVER_F64:
        return ((const double *)data)[i];
    case DRIVER_BF16:
        return (double)osw_float_of_bf16(((const uint16_t *)data)[i]);
    case DRIVER_F16:
        return (double)osw_float_of_f16(((const uint16_t *)data)[i]);
    default:
        return (double)((const uint8_t *)data)[i * driver_bytes(type)];
    }
}

void driver_set(driver_type type, void *data, int64_t i, double value)
{
    if (type == DRIVER_F64)
        ((double *)data)[i] = value;
    else if (type == DRIVER_F32)
        ((float *)data)[i] = (float)value;
    else if (type == DRIVER_BF16)
        ((uint16_t *)data)[i] = osw_bf16_of_float((float)value);
    else
        ((uint16_t *)data)[i] = osw_f16_of_float((float)value);
}

/* The roundings of arithmetic in the dtype, of one element at most, and the least number. */
static double unit(driver_type type)
{
    return type == DRIVER_F64 ? 0x1p-53 : 0x1p-24;
}

static double rounding(driver_type type, double value)
{
    if (type == DRIVER_BF16)
        return fabs(value) * 0x1p-7 + 0x1p-133;
    if (type == DRIVER_F16)
        return fabs(value) * 0x1p-10 + 0x1p-24;
    return type == DRIVER_F64 ? 0x1p-1074 : 0x1p-149;
}

/* How far element i may be from `want`, a finite number. */
static double allowed(const driver_room *room, int64_t i, double want)
{
    const driver_error *e = &room->error;
    if (e->kind == DRIVER_SUMS)
        return 2 * (e->terms + 2) * unit(room->type) * room->magnitudes[i] +
               rounding(room->type, want);
    return e->relative * fabs(want) + e->absolute + rounding(room->type, want);
}

static bool near(const driver *d, const driver_room *room, int64_t i)
{
    const int64_t bytes = driver_bytes(room->type);
    const uint8_t *got_bits = (const uint8_t *)room->data + i * bytes;
    if (memcmp(got_bits, room->before + i * bytes, (size_t)bytes) == 0)
        return true;
    if (room->error.kind == DRIVER_OR_MINUS_1)
        return ((const int32_t *)room->data)[i] == -1;
    if (room->type >= DRIVER_U8)
        return false;
    const double got = driver_value(room->type, room->data, i);
    const double want = driver_value(room->type, room->before, i);
    if (got != got || want != want)
        return (got != got) == (want != want);
    if (room->error.kind == DRIVER_SAME_BITS)
        return false;
    const bool exact = room->error.kind == DRIVER_SUMS && d->values == DRIVER_WHOLE;
    if (room->error.kind == DRIVER_SAME_VALUES || exact || isinf(got) || isinf(want))
        return got == want;
    return fabs(got - want) <= allowed(room, i, want);
}

static uint64_t bits(const driver_room *room, const void *data, int64_t i)
{
    const int64_t bytes = driver_bytes(room->type);
    uint64_t value = 0;
    memcpy(&value, (const uint8_t *)data + i * bytes, (size_t)(bytes < 8 ? bytes : 8));
    return value;
}

void driver_compare(driver *d)
{
    for (int r = 0; r < d->room_count; r++) {
        const driver_room *room = &d->rooms[r];
        const int64_t count = (int64_t)room->bytes / driver_bytes(room->type);
        for (int64_t i = 0; room->written && i < count; i++) {
            if (near(d, room, i))
                continue;
            driver_report(d, "element %lld of %lld of tensor %d is %g (%llx), not %g (%llx)",
                          (long long)i, (long long)count, r,
                          driver_value(room->type, room->data, i),
                          (unsigned long long)bits(room, room->data, i),
                          driver_value(room->type, room->before, i),
                          (unsigned long long)bits(room, room->before, i));
            break;
        }
    }
}
