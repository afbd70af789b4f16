/* SPDX-License-Identifier: MIT */
/* Permutations of channels, byte for byte. */
#include "channels/channels.h"
#include "driver.h"
#include "driver_contract.h"

#include <stdio.h>

void driver_channels_plan(driver *d); /* of channels_plan.c */

enum { IMAGES = 2, FEW_ROWS = 8, MOST_ROWS = 21 };

static const driver_type types[OSW_WIDTH_COUNT] = {DRIVER_U8, DRIVER_U16, DRIVER_U32, DRIVER_U64,
                                                   DRIVER_U128};

/* A variant of the table, and a size for it. */
typedef struct shape {
    const char *name;
    osw_direction direction;
    osw_rows made_for;
    osw_width width;
    int64_t rows, columns, pixels;
    int64_t gap; /* elements between what one pixel and the next one have */
} shape;

typedef struct transpose_job {
    shape shape;
    osw_run run;
    osw_stream narrow[MOST_ROWS];
} transpose_job;

static void transpose_part(const void *context, const void *table, int64_t begin, int64_t end)
{
    const transpose_job *job = context;
    const shape *s = &job->shape;
    osw_run_fn *kernel =
        ((const osw_channels_table *)table)->transpose[s->direction][s->made_for][s->width];
    for (int64_t image = 0; image < IMAGES; image++)
        kernel(&job->run, image, begin, end);
}

/* Of a tensor that is written, what lies between the channels has to stay. */
static osw_stream make_stream(driver *d, const shape *s, int64_t channels, bool written)
{
    const int64_t step = channels + s->gap, count = IMAGES * s->pixels * step;
    const int64_t bytes = driver_bytes(types[s->width]);
    char *base = written ? driver_inout(d, types[s->width], count, DRIVER_EXACT)
                         : driver_input(d, types[s->width], count);
    return (osw_stream){base, s->pixels * step * bytes, step * bytes};
}

static void check_transpose(driver *d, const shape *s)
{
    transpose_job job = {.shape = *s};
    const bool interleave = s->direction == OSW_interleave;
    driver_case(d, s->name, "rows %lld, columns %lld, pixels %lld, gap %lld", (long long)s->rows,
                (long long)s->columns, (long long)s->pixels, (long long)s->gap);
    job.run = (osw_run){.rows = s->rows,
                        .columns = s->columns,
                        .wide = make_stream(d, s, s->rows * s->columns, interleave),
                        .narrow = job.narrow};
    if (s->rows <= FEW_ROWS) /* tensors of their own */
        for (int64_t i = 0; i < s->rows; i++)
            job.narrow[i] = make_stream(d, s, s->columns, !interleave);
    else
        for (int64_t i = 0; i < s->rows; i++) {
            job.narrow[i] =
                i == 0 ? make_stream(d, s, s->rows * s->columns, !interleave) : job.narrow[i - 1];
            job.narrow[i].base += i == 0 ? 0 : s->columns * driver_bytes(types[s->width]);
        }
    driver_run(d, transpose_part, &job, s->pixels);
}

typedef struct move_job {
    osw_width width;
    osw_move moves[FEW_ROWS];
    int64_t count, bytes;
} move_job;

static void move_part(const void *context, const void *table, int64_t begin, int64_t end)
{
    const move_job *job = context;
    for (int64_t image = 0; image < IMAGES; image++)
        ((const osw_channels_table *)table)
            ->move[job->width](job->moves, job->count, image, begin, end);
}

static void check_move(driver *d, const char *name, osw_width width, int64_t pixels)
{
    const int64_t bytes = driver_bytes(types[width]);
    const shape s = {.width = width, .pixels = pixels, .gap = driver_below(2)};
    move_job job = {.width = width, .count = 1 + driver_below(FEW_ROWS)};
    driver_case(d, name, "channels %lld, pixels %lld", (long long)job.count, (long long)pixels);
    const osw_stream from = make_stream(d, &s, job.count, false);
    const osw_stream to = make_stream(d, &s, job.count, true);
    for (int64_t i = 0; i < job.count; i++) {
        job.moves[i] = (osw_move){from, to};
        job.moves[i].from.base += (job.count - 1 - i) * bytes;
        job.moves[i].to.base += i * bytes;
    }
    driver_run(d, move_part, &job, pixels);
}

static void copy_part(const void *context, const void *table, int64_t begin, int64_t end)
{
    const move_job *job = context;
    ((const osw_channels_table *)table)->copy(job->moves, job->count, job->bytes, begin, end);
}

static void check_copy(driver *d, int64_t bytes)
{
    move_job job = {.count = 1 + driver_below(FEW_ROWS), .bytes = bytes};
    driver_case(d, "copy_PLANES_x8", "channels %lld, bytes %lld", (long long)job.count,
                (long long)bytes);
    char *from = driver_input(d, DRIVER_U8, IMAGES * job.count * bytes);
    char *to = driver_output(d, DRIVER_U8, IMAGES * job.count * bytes, DRIVER_EXACT);
    for (int64_t i = 0; i < job.count; i++) {
        job.moves[i].from = (osw_stream){from + (job.count - 1 - i) * bytes, job.count * bytes, 0};
        job.moves[i].to = (osw_stream){to + i * bytes, job.count * bytes, 0};
    }
    driver_run(d, copy_part, &job, IMAGES * job.count);
}

static void check_sizes(driver *d, shape s)
{
    static const int64_t made[OSW_ROWS_COUNT] = {1, 2, 3, 4, 8, 0};
    static const int64_t any[] = {5, 7, 9, 16, MOST_ROWS};
    const int64_t bytes = driver_bytes(types[s.width]);
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, bytes, lengths);
    for (int i = 0; i < count; i++) {
        s.rows = s.made_for == OSW_ROWS_ANY ? any[driver_below(5)] : made[s.made_for];
        s.columns = d->timed ? 256 / s.rows : lengths[i];
        s.pixels = d->timed ? 784 : 1 + driver_below(4);
        s.gap = d->timed ? 0 : driver_below(3);
        check_transpose(d, &s);
        if (!d->timed && !d->quick) { /* the wide side is as long as a vector, or a little longer */
            s.columns = 1 + lengths[i] / s.rows;
            s.pixels = lengths[count - 1 - i];
            check_transpose(d, &s);
        }
    }
}

/* index: as in the list of variants. */
static void check_variant(driver *d, int index, const char *name)
{
    int64_t lengths[DRIVER_MOST_LENGTHS];
    if (index == OSW_COPY_ID) {
        const int count = driver_lengths(d, 1, lengths);
        for (int i = 0; i < count; i++)
            check_copy(d, lengths[i]);
    } else if (index >= OSW_MOVE_ID) {
        const int count = driver_lengths(d, 4, lengths);
        for (int i = 0; i < count; i++)
            check_move(d, name, (osw_width)(index - OSW_MOVE_ID), lengths[i]);
    } else {
        const int of_rows = index / OSW_WIDTH_COUNT;
        check_sizes(d, (shape){.name = name,
                               .direction = (osw_direction)(of_rows / OSW_ROWS_COUNT),
                               .made_for = (osw_rows)(of_rows % OSW_ROWS_COUNT),
                               .width = (osw_width)(index % OSW_WIDTH_COUNT)});
    }
}

static void check(driver *d)
{
#define X(index, name) check_variant(d, index, name);
    OSW_CHANNELS_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_channels_plan(d);
}

extern const driver_contract driver_channels_contract;
const driver_family driver_channels = {"channels",    osw_channels_select,
                                       &osw_channels, sizeof osw_channels,
                                       check,         &driver_channels_contract};
