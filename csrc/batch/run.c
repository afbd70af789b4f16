/* SPDX-License-Identifier: MIT */
#include "batch/run.h"
#include "batch/factors.h"
#include "batch/holds.h"
#include "batch/stage.h"
#include "core/ints.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    STAGE_BYTES = 16384, /* of pixels that are staged at once, unless one pixel is larger */
    BLOCK_BYTES = 1024,  /* of padding that is copied at once, unless one pixel is larger */
    STEP_BYTES = 64,     /* of padding beside a row, copied whole: the next row covers the rest */
    NARROW_BYTES = 256,  /* of padding beside a row that are copied so */
    FORM_PIXELS = 16384, /* in all: for fewer it costs more to find a form than it gains */
    STRIP_BYTES = 65536, /* of rows that are made at once and written around the caches */
};

/* Where rows of an image's place in the batch are written: pixels are counted from `base` on. */
typedef struct osw_batch_rows {
    char *base; /* of the first channel of the first pixel */
    int64_t begin, end;
    int64_t step; /* in planes, pixels from a channel to the next */
} osw_batch_rows;

/* What the parts of a job share. */
typedef struct osw_batch_work {
    const osw_batch_job *job;
    osw_batch_fn *copy;
    osw_batch_fn *kernel; /* NULL: elements are copied as they are, in their order */
    osw_batch_factors factors, reversed;
    int64_t from_size, to_size;
    int64_t planes, pixel_bytes; /* of an image in the batch, and of a pixel of such a plane */
    bool convert;
    char *stage;
    int64_t stage_pixels;
    char *blocks; /* of padding: whole pixels, one per plane */
    int64_t block_bytes;
    bool one_byte;      /* all bytes of the padding are the same */
    char *strip;        /* of rows that are written around the caches */
    int64_t strip_rows; /* 0: none are */
    osw_batch_fn *stream;
} osw_batch_work;

int64_t osw_batch_itemsize(osw_batch_dtype dtype)
{
    static const int64_t sizes[OSW_BATCH_DTYPES] = {1, 2, 2, 2, 4, 8};
    return sizes[dtype];
}

static osw_batch_fn *kernel_of(const osw_batch_job *job, osw_batch_fn *const *kernels)
{
    if (job->move) {
        if (!job->planes || job->channels == 1)
            return NULL;
        const int64_t size = osw_batch_itemsize(job->to);
        const osw_batch_id id = size == 1   ? OSW_BATCH_move_planes_x8
                                : size == 2 ? OSW_BATCH_move_planes_x16
                                            : OSW_BATCH_move_planes_x32;
        return kernels[id];
    }
#define KERNELS_OF(dtype)                                                                          \
    {                                                                                              \
        {OSW_BATCH_normalize_pixels_float_##dtype, OSW_BATCH_normalize_planes_float_##dtype},      \
        {                                                                                          \
            OSW_BATCH_normalize_pixels_u8_##dtype, OSW_BATCH_normalize_planes_u8_##dtype           \
        }                                                                                          \
    }
    static const osw_batch_id ids[OSW_BATCH_DTYPES][2][2] = {[OSW_BATCH_F32] = KERNELS_OF(f32),
                                                             [OSW_BATCH_BF16] = KERNELS_OF(bf16),
                                                             [OSW_BATCH_F16] = KERNELS_OF(f16)};
    const bool planes = job->planes && job->channels > 1;
    return kernels[ids[job->to][job->from == OSW_BATCH_U8][planes]];
}

static const osw_batch_factors bytes_in_order = {.channels = 1};

/* `bytes` of padding; what is at `to` continues the pattern of the block from its start. */
static void pad(const osw_batch_work *work, char *to, int64_t bytes, const char *block)
{
    if (work->one_byte && bytes >= OSW_BATCH_LARGE) {
        memset(to, block[0], (size_t)bytes);
        return;
    }
    for (; bytes > work->block_bytes; bytes -= work->block_bytes, to += work->block_bytes)
        work->copy(&bytes_in_order, block, to, work->block_bytes, 0);
    work->copy(&bytes_in_order, block, to, bytes, 0);
}

static void pad_pixels(const osw_batch_work *work, const osw_batch_rows *rows, int64_t begin,
                       int64_t end)
{
    if (begin == end)
        return;
    for (int64_t c = 0; c < work->planes; c++)
        pad(work, rows->base + (c * rows->step + begin) * work->pixel_bytes,
            (end - begin) * work->pixel_bytes, work->blocks + c * work->block_bytes);
}

/* Pixels that follow each other, to the first of their places in the batch. */
static void run_kernel(const osw_batch_work *work, const osw_batch_factors *factors,
                       const char *from, char *to, int64_t pixels, int64_t step)
{
    if (work->kernel)
        work->kernel(factors, from, to, pixels, step);
    else
        work->copy(&bytes_in_order, from, to, pixels * work->job->channels * work->to_size, 0);
}

static void stage_row(const osw_batch_work *work, const osw_batch_image *image, int64_t y, char *to,
                      int64_t step)
{
    const osw_batch_job *job = work->job;
    for (int64_t i = 0; i < image->width; i += work->stage_pixels) {
        const int64_t left = image->width - i;
        const int64_t pixels = left < work->stage_pixels ? left : work->stage_pixels;
        osw_batch_stage(job, image, y, i, pixels, work->convert, work->stage);
        run_kernel(work, &work->factors, work->stage, to + i * work->pixel_bytes, pixels, step);
    }
}

/* How an image lies in memory: channels of a pixel and pixels of a row follow each other, also if
 * the channels do so backwards; else -1. */
static int direction_of(const osw_batch_work *work, const osw_batch_image *image)
{
    const osw_batch_job *job = work->job;
    if (work->convert || !image->aligned)
        return -1;
    if (image->width > 1 && image->pixel_stride != job->channels * work->from_size)
        return -1;
    if (job->channels == 1 || image->channel_stride == work->from_size)
        return 0;
    return job->planes && image->channel_stride == -work->from_size ? 1 : -1;
}

/* Padding from pixel `begin` to the end of its row, in steps of STEP_BYTES; what they write beyond
 * it are pixels of the next row, which are written later. */
static void pad_beside(const osw_batch_work *work, const osw_batch_rows *rows, int64_t begin,
                       int64_t pixels)
{
    for (int64_t c = 0; c < work->planes; c++) {
        char *to = rows->base + (c * rows->step + begin) * work->pixel_bytes;
        const char *block = work->blocks + c * work->block_bytes;
        for (int64_t i = 0; i < pixels * work->pixel_bytes; i += STEP_BYTES)
            memcpy(to + i, block + i, STEP_BYTES);
    }
}

/* Whether pad_beside may be used beside all rows of an image but the last one: the blocks are large
 * enough, and a row covers a step. */
static bool pads_in_steps(const osw_batch_work *work, const osw_batch_image *image)
{
    const osw_batch_job *job = work->job;
    const int64_t bytes = (job->width - image->width) * work->pixel_bytes;
    return bytes <= NARROW_BYTES && work->block_bytes >= NARROW_BYTES + STEP_BYTES &&
           image->width * work->pixel_bytes >= STEP_BYTES;
}

/* Rows of an image, and the padding beside and below them. */
static void run_rows(const osw_batch_work *work, osw_batch_image image, const osw_batch_rows *rows)
{
    const osw_batch_job *job = work->job;
    const int64_t last = job->channels - 1;
    const int direction = direction_of(work, &image);
    const bool backwards = direction == 1;
    const osw_batch_factors *factors = backwards ? &work->reversed : &work->factors;
    const char *from = image.data + (backwards ? last * image.channel_stride : 0);
    char *to = rows->base + (backwards ? last * rows->step * work->to_size : 0);
    const int64_t step = backwards ? -rows->step : rows->step;
    const int64_t row_bytes = image.width * job->channels * work->from_size;
    const int64_t begin = rows->begin, end = osw_min_int(image.height, rows->end);
    const int64_t made = osw_max_int(end - begin, 0);
    if (direction >= 0 && image.width == job->width && made > 0 &&
        (image.height == 1 || image.row_stride == row_bytes)) {
        run_kernel(work, factors, from + begin * row_bytes, to, made * job->width, step);
    } else {
        const bool in_steps = pads_in_steps(work, &image);
        for (int64_t y = begin; y < end; y++) {
            const int64_t row = (y - begin) * job->width;
            if (direction < 0)
                stage_row(work, &image, y, rows->base + row * work->pixel_bytes, rows->step);
            else
                run_kernel(work, factors, from + y * image.row_stride, to + row * work->pixel_bytes,
                           image.width, step);
            if (in_steps && y + 1 < end)
                pad_beside(work, rows, row + image.width, job->width - image.width);
            else
                pad_pixels(work, rows, row + image.width, row + job->width);
        }
    }
    pad_pixels(work, rows, made * job->width, (rows->end - begin) * job->width);
}

/* What is in the strip, to its place in the batch. */
static void write_strip(const osw_batch_work *work, const osw_batch_rows *rows, char *place)
{
    const osw_batch_job *job = work->job;
    const int64_t plane_bytes = job->height * job->width * work->pixel_bytes;
    const int64_t first = rows->begin * job->width * work->pixel_bytes;
    const int64_t bytes = (rows->end - rows->begin) * job->width * work->pixel_bytes;
    for (int64_t c = 0; c < work->planes; c++)
        work->stream(&bytes_in_order, work->strip + c * rows->step * work->pixel_bytes,
                     place + c * plane_bytes + first, bytes, 0);
}

static void run_image(const osw_batch_work *work, int64_t n)
{
    const osw_batch_job *job = work->job;
    const int64_t plane = job->height * job->width;
    char *place = job->batch + n * job->channels * plane * work->to_size;
    if (!work->strip_rows) {
        run_rows(work, job->images[n], &(osw_batch_rows){place, 0, job->height, plane});
        return;
    }
    for (int64_t y = 0; y < job->height; y += work->strip_rows) {
        const osw_batch_rows rows = {work->strip, y, osw_min_int(y + work->strip_rows, job->height),
                                     work->strip_rows * job->width};
        run_rows(work, job->images[n], &rows);
        write_strip(work, &rows, place);
    }
}

/* `bytes` of a pattern of `period` bytes. */
static void repeat(char *to, int64_t bytes, const char *pattern, int64_t period)
{
    memcpy(to, pattern, (size_t)period);
    for (int64_t done = period; done < bytes; done *= 2) {
        const int64_t left = bytes - done;
        memcpy(to + done, to, (size_t)(done < left ? done : left));
    }
}

static void make_blocks(osw_batch_work *work)
{
    const osw_batch_job *job = work->job;
    const char *padding = job->padding;
    for (int64_t c = 0; c < work->planes; c++)
        repeat(work->blocks + c * work->block_bytes, work->block_bytes,
               padding + c * work->pixel_bytes, work->pixel_bytes);
    work->one_byte = true;
    for (int64_t i = 1; i < job->channels * work->to_size; i++)
        work->one_byte &= padding[i] == padding[0];
}

static bool many_pixels(const osw_batch_job *job)
{
    int64_t pixels = 0;
    for (int64_t n = 0; n < job->count; n++)
        pixels += job->images[n].height * job->images[n].width;
    return pixels >= FORM_PIXELS;
}

static int64_t at_least_one(int64_t count)
{
    return count > 0 ? count : 1;
}

/* Rows of a strip; 0 if the batch is not written around the caches. */
static int64_t strip_rows(const osw_batch_job *job)
{
    const int64_t row_bytes = job->channels * job->width * osw_batch_itemsize(job->to);
    const int64_t bytes = job->count * job->height * row_bytes;
    if (job->move || !job->stream_bytes || bytes < job->stream_bytes)
        return 0;
    return at_least_one(osw_min_int(STRIP_BYTES / row_bytes, job->height));
}

int osw_batch_run(const osw_batch_job *job, osw_batch_fn *const kernels[OSW_BATCH_COUNT])
{
    assert(osw_batch_holds(job));
    osw_batch_work work = {.job = job,
                           .kernel = kernel_of(job, kernels),
                           .copy = kernels[OSW_BATCH_move_pixels_x8],
                           .stream = kernels[OSW_BATCH_stream_pixels_x8],
                           .strip_rows = strip_rows(job)};
    work.from_size = osw_batch_itemsize(job->from);
    work.to_size = osw_batch_itemsize(job->to);
    work.convert = !job->move && job->from != OSW_BATCH_U8 && job->from != OSW_BATCH_F32;
    const int64_t staged_bytes = job->channels * (work.convert ? 4 : work.from_size);
    work.planes = job->planes ? job->channels : 1;
    work.pixel_bytes = job->planes ? work.to_size : work.to_size * job->channels;
    work.stage_pixels = at_least_one(STAGE_BYTES / staged_bytes);
    work.block_bytes = at_least_one(BLOCK_BYTES / work.pixel_bytes) * work.pixel_bytes;
    const size_t factors = osw_batch_factors_room(job->channels);
    const size_t stage = (size_t)((work.stage_pixels * staged_bytes + 63) / 64 * 64);
    const size_t blocks = (size_t)(work.block_bytes * work.planes);
    const size_t strip = (size_t)(work.strip_rows * job->width * work.planes * work.pixel_bytes);
    char *room = malloc(stage + 2 * factors + strip + blocks);
    if (!room)
        return -1;
    work.stage = room;
    work.factors = osw_batch_factors_of(job, false, (float *)(void *)(room + stage));
    work.reversed = osw_batch_factors_of(job, true, (float *)(void *)(room + stage + factors));
    work.strip = room + stage + 2 * factors;
    work.blocks = work.strip + strip;
    if (!job->move && job->from == OSW_BATCH_U8 && many_pixels(job))
        work.factors.form = work.reversed.form = osw_batch_form_of(&work.factors, job->to);
    make_blocks(&work);
    for (int64_t n = 0; n < job->count; n++)
        run_image(&work, n);
    if (work.strip_rows)
        work.stream(&bytes_in_order, work.strip, job->batch, 0, 0);
    free(room);
    return 0;
}
