/* SPDX-License-Identifier: MIT */
/* Images into batches, bit for bit. */
#include "batch/batch.h"
#include "batch/factors.h"
#include "batch/run.h"
#include "driver.h"
#include "driver_contract.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_CHANNELS = 41, MOST_IMAGES = 3 };

/* A variant of the table. */
typedef struct variant {
    const char *name;
    osw_batch_id id;
    bool planes;
    osw_batch_dtype dtype; /* of the batch, for factors */
    driver_type from, to;
} variant;

typedef struct job {
    osw_batch_id id;
    bool planes;
    osw_batch_factors factors;
    const char *from;
    char *to; /* of the first channel */
    int64_t from_bytes, to_bytes, step;
} job;

static void do_pixels(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    const int64_t channels = j->factors.channels;
    ((osw_batch_fn *const *)table)[j->id](&j->factors, j->from + begin * channels * j->from_bytes,
                                          j->to + begin * (j->planes ? 1 : channels) * j->to_bytes,
                                          end - begin, j->step);
}

/* Factors of every channel; those of ImageNet can be fused. */
static void draw_factors(driver *d, osw_batch_job *job, float mean[], float std[])
{
    static const float means[] = {0.485f, 0.456f, 0.406f}, stds[] = {0.229f, 0.224f, 0.225f};
    const bool known = driver_below(2);
    for (int64_t c = 0; c < job->channels; c++) {
        mean[c] = known ? means[c % 3] : (float)driver_below(1000) * 0.001f;
        std[c] = known ? stds[c % 3] : (float)(1 + driver_below(1000)) * 0.003f;
    }
    (void)d;
    job->scale = known || driver_below(2) ? 1.0f / 255 : 1;
    job->mean = mean;
    job->std = std;
}

static osw_batch_factors make_factors(driver *d, const variant *v, int64_t channels)
{
    float mean[MOST_CHANNELS], std[MOST_CHANNELS];
    osw_batch_job job = {.channels = channels};
    draw_factors(d, &job, mean, std);
    float *room = driver_input(d, DRIVER_F32, (int64_t)osw_batch_factors_room(channels) / 4);
    osw_batch_factors f = osw_batch_factors_of(&job, driver_below(2), room);
    driver_keep(d, room);
    if (v->from == DRIVER_U8 && v->to != DRIVER_U8)
        f.form = driver_below(3) ? osw_batch_form_of(&f, v->dtype) : OSW_BATCH_DIVIDED;
    return f;
}

static void check_pixels(driver *d, const variant *v, int64_t channels, int64_t pixels)
{
    const int64_t gap = v->planes ? driver_below(4) : 0, step = pixels + gap;
    job j = {.id = v->id,
             .planes = v->planes,
             .from_bytes = driver_bytes(v->from),
             .to_bytes = driver_bytes(v->to)};
    const bool backwards = v->planes && driver_below(2);
    driver_case(d, v->name, "channels %lld, pixels %lld, step %lld", (long long)channels,
                (long long)pixels, (long long)(backwards ? -step : step));
    j.factors = make_factors(d, v, channels);
    j.from = driver_input(d, v->from, channels * pixels);
    j.to = driver_inout(d, v->to, channels * step, DRIVER_EXACT);
    j.to += backwards ? (channels - 1) * step * j.to_bytes : 0;
    j.step = backwards ? -step : step;
    driver_run(d, do_pixels, &j, pixels);
}

static void check_variant(driver *d, const variant *v)
{
    static const int64_t few[] = {1, 2, 3, 4, 5, MOST_CHANNELS};
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, v->from == DRIVER_U8 ? 1 : 4, lengths);
    if (d->timed) {
        check_pixels(d, v, 3, 224 * 224);
        return;
    }
    for (int i = 0; i < 6 * count; i++) {
        static const driver_values all[] = {DRIVER_REAL, DRIVER_WORST, DRIVER_BITS};
        d->values = all[driver_below(3)];
        check_pixels(d, v, few[i % 6], lengths[i / 6]);
    }
    /* Around the parts in which planes are written, and what memcpy copies. */
    static const int64_t many[] = {511, 512, 513, 575, 577, 1100, OSW_BATCH_LARGE};
    for (int i = 0; i < 7; i++)
        check_pixels(d, v, few[(size_t)i % 4], many[i]);
}

typedef struct images_of_driver {
    osw_batch_job job;
    const driver *d;
} images_of_driver;

/* Whole images of all strides, with padding; by the scalar kernels never around the caches. */
static void do_images(const void *context, const void *table, int64_t begin, int64_t end)
{
    const images_of_driver *all = context;
    osw_batch_job part = all->job;
    part.stream_bytes = all->d->scalar_runs ? 0 : part.stream_bytes;
    part.batch += begin * part.channels * part.height * part.width * osw_batch_itemsize(part.to);
    part.images += begin;
    part.count = end - begin;
    if (osw_batch_run(&part, (osw_batch_fn *const *)table) != 0)
        abort();
}

static const driver_type types[OSW_BATCH_DTYPES] = {DRIVER_U8,   DRIVER_U16, DRIVER_F16,
                                                    DRIVER_BF16, DRIVER_F32, DRIVER_F64};

/* An image within a tensor of its own, in rows of pixels or in planes, as it is or flipped. */
static osw_batch_image draw_image(driver *d, const osw_batch_job *job)
{
    const int64_t bytes = osw_batch_itemsize(job->from), channels = job->channels;
    osw_batch_image image = {.height = 1 + driver_below(job->height),
                             .width = 1 + driver_below(job->width),
                             .aligned = true};
    const int64_t pixels = image.height * image.width;
    const char *data = driver_input(d, types[job->from], pixels * channels);
    const bool in_planes = driver_below(3) == 0;
    image.channel_stride = in_planes ? pixels * bytes : bytes;
    image.pixel_stride = in_planes ? bytes : channels * bytes;
    image.row_stride = image.width * image.pixel_stride;
    if (driver_below(4) == 0) {
        data += (image.height - 1) * image.row_stride;
        image.row_stride = -image.row_stride;
    }
    if (driver_below(4) == 0) {
        data += (channels - 1) * image.channel_stride;
        image.channel_stride = -image.channel_stride;
    }
    image.data = data;
    return image;
}

static void check_run(driver *d)
{
    static const osw_batch_dtype made[] = {OSW_BATCH_F32, OSW_BATCH_BF16, OSW_BATCH_F16};
    osw_batch_image images[MOST_IMAGES];
    float mean[MOST_CHANNELS], std[MOST_CHANNELS];
    osw_batch_job job = {.images = images,
                         .count = 1 + driver_below(MOST_IMAGES),
                         .channels = 1 + driver_below(5),
                         .from = (osw_batch_dtype)driver_below(OSW_BATCH_DTYPES),
                         .planes = driver_below(2),
                         .height =
                             1 + driver_below(driver_below(3) ? 9 : 400), /* or several strips */
                         .width = 1 + driver_below(61),
                         .stream_bytes = driver_below(2)};
    job.move = job.from != OSW_BATCH_F64 && driver_below(3) == 0;
    job.to = job.move ? job.from : made[driver_below(3)];
    if (!job.move && job.from == OSW_BATCH_BF16)
        job.from = OSW_BATCH_F32;
    d->values = DRIVER_WORST;
    driver_case(d, "run", "images %lld, channels %lld, %lld x %lld, dtype %d to %d%s",
                (long long)job.count, (long long)job.channels, (long long)job.height,
                (long long)job.width, (int)job.from, (int)job.to, job.planes ? ", planes" : "");
    draw_factors(d, &job, mean, std);
    for (int64_t n = 0; n < job.count; n++)
        images[n] = draw_image(d, &job);
    job.padding = driver_input(d, types[job.to], job.channels);
    job.batch = driver_output(d, types[job.to], job.count * job.channels * job.height * job.width,
                              DRIVER_EXACT);
    driver_run(d, do_images, &(images_of_driver){job, d}, job.count);
}

#define TYPE_f32  OSW_BATCH_F32, source, DRIVER_F32
#define TYPE_bf16 OSW_BATCH_BF16, source, DRIVER_BF16
#define TYPE_f16  OSW_BATCH_F16, source, DRIVER_F16
#define TYPE_x8   OSW_BATCH_U8, DRIVER_U8, DRIVER_U8
#define TYPE_x16  OSW_BATCH_U16, DRIVER_U16, DRIVER_U16
#define TYPE_x32  OSW_BATCH_F32, DRIVER_U32, DRIVER_U32

/* What a variant reads, by its number: of four to a dtype, the first two read bytes. */
static driver_type read_by(osw_batch_id id)
{
    return id % 4 < 2 ? DRIVER_U8 : DRIVER_F32;
}

static void check(driver *d)
{
#define X(operation, dtype)                                                                        \
    {                                                                                              \
        const osw_batch_id id = OSW_BATCH_##operation##_##dtype;                                   \
        const bool to_planes =                                                                     \
            id < OSW_BATCH_move_planes_x8 ? id % 2 == 0 : id < OSW_BATCH_move_pixels_x8;           \
        const driver_type source = read_by(id);                                                    \
        (void)source;                                                                              \
        check_variant(d, &(variant){#operation "_" #dtype, id, to_planes, TYPE_##dtype});          \
    }
    OSW_BATCH_VARIANTS(X)
#undef X
    for (int i = 0; i < (d->quick ? 20 : 200) && !d->timed; i++)
        check_run(d);
}

extern const driver_contract driver_batch_contract;
const driver_family driver_batch = {"batch",         osw_batch_select,
                                    osw_batch_table, sizeof osw_batch_table,
                                    check,           &driver_batch_contract};
