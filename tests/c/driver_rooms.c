/* SPDX-License-Identifier: MIT */
#include "driver_rooms.h"

#include "driver_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 65536, /* of any system */
    ROOM = 32 << 20,
    GUARD = 256, /* bytes on either side that are looked at */
    CANARY = 0xc9,
};

void *driver_scalar_table;

/* Memory between two pages that nobody may touch. */
static uint8_t *place_of(int index)
{
    static uint8_t *places[DRIVER_MOST_ROOMS];
    if (!places[index]) {
        uint8_t *whole = mmap(NULL, ROOM + 2 * PAGE, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (whole == MAP_FAILED || mprotect(whole + PAGE, ROOM, PROT_READ | PROT_WRITE) != 0) {
            perror("driver");
            exit(2);
        }
        places[index] = whole + PAGE;
    }
    return places[index];
}

/* Up to the end of the memory, from its start on, or between guards at some multiple of the
 * element's size. */
static uint8_t *place(const driver *d, int index, size_t bytes, int64_t element)
{
    uint8_t *start = place_of(index);
    if (bytes > ROOM - 4 * GUARD) {
        printf("driver: %zu bytes are more than a room has\n", bytes);
        exit(2);
    }
    const int64_t where = d->timed ? 2 : driver_below(4);
    if (where == 0)
        return start + ROOM - bytes;
    if (where == 1)
        return start;
    return start + GUARD + (d->timed ? 0 : driver_below(64 / element + 1) * element);
}

static void guard(int index, uint8_t *data, size_t bytes, bool check, int64_t *changed)
{
    uint8_t *start = place_of(index), *end = start + ROOM;
    uint8_t *from = data - start < GUARD ? start : data - GUARD;
    uint8_t *to = end - (data + bytes) < GUARD ? end : data + bytes + GUARD;
    for (uint8_t *p = from; p < to; p++) {
        if (p == data)
            p += bytes;
        if (p >= to)
            break;
        if (!check)
            *p = CANARY;
        else if (*p != CANARY && *changed == 0)
            *changed = p < data ? p - data : p - data - (int64_t)bytes + 1;
    }
}

static void set_bits(driver_type type, void *data, int64_t i, uint64_t bits)
{
    const int64_t bytes = driver_bytes(type);
    for (int64_t done = 0; done < bytes; done += 8)
        memcpy((uint8_t *)data + i * bytes + done, &bits, (size_t)(bytes < 8 ? bytes : 8));
}

/* Zeros, subnormal numbers, infinities, NaN and ones. */
static uint64_t worst_bits(driver_type type)
{
    static const uint64_t infinity[] = {0x7f800000, 0x7ff0000000000000, 0x7f80, 0x7c00};
    static const uint64_t quiet[] = {0x400000, 0x8000000000000, 0x40, 0x200};
    static const uint64_t one[] = {0x3f800000, 0x3ff0000000000000, 0x3f80, 0x3c00};
    const uint64_t sign = (uint64_t)driver_below(2) << (8 * driver_bytes(type) - 1);
    switch (driver_below(12)) {
    case 0:
        return sign | infinity[type];
    case 1:
        return sign | infinity[type] | quiet[type] | (uint64_t)driver_below(2);
    case 2:
        return sign | infinity[type] | 1;
    case 3:
    case 4:
        return sign | 1;
    case 5:
        return sign | (quiet[type] - 1);
    case 6:
    case 7:
    case 8:
        return sign;
    default:
        return sign | one[type];
    }
}

static void fill(const driver *d, driver_type type, void *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t low = driver_draw(), drawn = (uint64_t)driver_draw() << 32 | low;
        if (type >= DRIVER_U8 || d->values == DRIVER_BITS)
            set_bits(type, data, i, drawn);
        else if (d->values >= DRIVER_WORST && driver_below(5) == 0)
            set_bits(type, data, i, worst_bits(type));
        else if (d->values == DRIVER_WHOLE || d->values == DRIVER_WHOLE_WORST)
            driver_set(type, data, i, (double)(low % 15) - 7);
        else
            driver_set(type, data, i, (double)low * 0x1p-30 - 2);
    }
}

static driver_room *new_room(driver *d, driver_type type, int64_t count)
{
    const int index = d->room_count++;
    if (index == DRIVER_MOST_ROOMS) {
        printf("driver: too many tensors\n");
        exit(2);
    }
    driver_room *room = &d->rooms[index];
    const size_t bytes = (size_t)(count * driver_bytes(type));
    *room = (driver_room){.bytes = bytes, .type = type, .before = malloc(bytes + 1)};
    room->data = d->heap ? malloc(bytes) : place(d, index, bytes, driver_bytes(type));
    if (!d->heap)
        guard(index, room->data, bytes, false, NULL);
    return room;
}

void *driver_input(driver *d, driver_type type, int64_t count)
{
    driver_room *room = new_room(d, type, count);
    room->read = true;
    fill(d, type, room->data, count);
    memcpy(room->before, room->data, room->bytes);
    return room->data;
}

void *driver_output(driver *d, driver_type type, int64_t count, driver_error error)
{
    driver_room *room = new_room(d, type, count);
    room->written = true;
    room->error = error;
    return room->data;
}

void *driver_inout(driver *d, driver_type type, int64_t count, driver_error error)
{
    driver_room *room = new_room(d, type, count);
    room->read = room->written = true;
    room->error = error;
    room->first = malloc(room->bytes + 1);
    fill(d, type, room->data, count);
    memcpy(room->first, room->data, room->bytes);
    return room->data;
}

void driver_keep(driver *d, void *input)
{
    for (int r = 0; r < d->room_count; r++) {
        driver_room *room = &d->rooms[r];
        if (room->data == input)
            memcpy(room->written ? room->first : room->before, input, room->bytes);
    }
}

double *driver_positive(driver *d, int64_t count)
{
    double *values = driver_input(d, DRIVER_F64, count);
    for (int64_t i = 0; i < count; i++)
        values[i] = 0.25 + (double)driver_below(8);
    driver_keep(d, values);
    return values;
}

void driver_give_back(driver *d)
{
    for (int r = 0; r < d->room_count; r++) {
        free(d->rooms[r].before);
        free(d->rooms[r].first);
        free(d->rooms[r].magnitudes);
        if (d->heap)
            free(d->rooms[r].data);
    }
    d->room_count = 0;
}

void driver_reset_outputs(driver *d, int byte)
{
    for (int r = 0; r < d->room_count; r++) {
        driver_room *room = &d->rooms[r];
        if (room->written && room->read)
            memcpy(room->data, room->first, room->bytes);
        else if (room->written && !d->heap)
            memset(room->data, byte, room->bytes);
    }
}

int driver_check_surroundings(driver *d)
{
    for (int r = 0; r < d->room_count; r++) {
        const driver_room *room = &d->rooms[r];
        int64_t changed = 0;
        if (!d->heap)
            guard(r, room->data, room->bytes, true, &changed);
        if (changed < 0)
            driver_report(d, "tensor %d: written %lld bytes before it", r, (long long)-changed);
        if (changed > 0)
            driver_report(d, "tensor %d: written %lld bytes behind it", r, (long long)changed);
        const bool same = room->written || memcmp(room->data, room->before, room->bytes) == 0;
        if (!same)
            driver_report(d, "tensor %d, an input, has changed", r);
        if (changed || !same)
            return 1;
    }
    return 0;
}

void driver_keep_outputs(driver *d)
{
    for (int r = 0; r < d->room_count; r++)
        if (d->rooms[r].written)
            memcpy(d->rooms[r].before, d->rooms[r].data, d->rooms[r].bytes);
}

bool driver_needs_magnitudes(const driver *d)
{
    bool needs = false;
    for (int r = 0; r < d->room_count; r++)
        needs = needs || (d->rooms[r].written && d->rooms[r].error.kind == DRIVER_SUMS);
    return needs && d->values != DRIVER_WHOLE;
}

void driver_take_magnitudes(driver *d)
{
    for (int r = 0; r < d->room_count; r++) {
        driver_room *room = &d->rooms[r];
        const int64_t count = (int64_t)room->bytes / driver_bytes(room->type);
        for (int64_t i = 0; !room->written && room->type < DRIVER_U8 && i < count; i++) {
            const double value = driver_value(room->type, room->data, i);
            driver_set(room->type, room->data, i, isfinite(value) ? fabs(value) : 1);
        }
    }
}

void driver_keep_magnitudes(driver *d)
{
    for (int r = 0; r < d->room_count; r++) {
        driver_room *room = &d->rooms[r];
        const int64_t count = (int64_t)room->bytes / driver_bytes(room->type);
        if (!room->written) {
            memcpy(room->data, room->before, room->bytes);
            continue;
        }
        if (room->error.kind != DRIVER_SUMS)
            continue;
        room->magnitudes = malloc((size_t)count * sizeof *room->magnitudes + 1);
        for (int64_t i = 0; i < count; i++)
            room->magnitudes[i] = driver_value(room->type, room->data, i);
    }
}
