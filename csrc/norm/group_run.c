/* SPDX-License-Identifier: MIT */
#include "norm/group_run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "norm/finish.h"
#include "norm/holds.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    CHUNK_VALUES = 65536, /* a chunk is large against the cost of its partial sums */
    MAX_CHUNKS = 64,
    MAX_BLOCKS = 64,
    FACTORS = 5,
    FEW_SAMPLES = 4,
    MANY_SAMPLES = 32,
    ROWS_OF_A_SAMPLE = 32,
    /* Of an image that several threads share: against two parallel regions for each. */
    SHARED_BYTES = 8 * OSW_GRAIN_BYTES,
};

/* The state of one image. */
typedef struct osw_image {
    const osw_group_job *job;
    osw_norm norm; /* of this image alone */
    bool backward;
    double *partial;    /* [chunk][first, second][channel] */
    double *statistics; /* [group][mean, variance] */
    double *gradients;  /* [of bias, of weight][channel], sums over the images of a block */
} osw_image;

/* What all images have in common. */
typedef struct osw_run {
    const osw_group_job *job;
    bool backward;
} osw_run;

int64_t osw_group_prepare(osw_group_job *job)
{
    assert(osw_group_holds(job));
    osw_norm_job *all = &job->all;
    osw_norm *n = &all->norm;
    const int64_t rows =
        osw_max_int(osw_ceil(CHUNK_VALUES, n->channels), osw_ceil(n->positions, MAX_CHUNKS));
    all->chunk = osw_round_up(rows, OSW_NORM_ROWS);
    all->chunks = osw_ceil(n->positions, all->chunk);
    job->block = osw_ceil(n->images, MAX_BLOCKS);
    job->blocks = osw_ceil(n->images, job->block);
    job->room = (FACTORS + 2 * all->chunks) * n->channels;
    return job->blocks * (job->room + 2 * n->channels);
}

static void place_scratch(osw_group_job *job, double *scratch)
{
    job->rooms = scratch;
    job->gradients = scratch + job->blocks * job->room;
}

static void move_to(osw_norm_tensor *tensor, int64_t bytes)
{
    if (tensor->base)
        tensor->base = (char *)tensor->base + bytes;
}

/* Image number i, in the room of block `room`. */
static osw_image image_of(const osw_run *run, int64_t i, int64_t room)
{
    const osw_group_job *job = run->job;
    osw_image image = {.job = job, .norm = job->all.norm, .backward = run->backward};
    osw_norm *n = &image.norm;
    osw_norm_tensor *const tensors[] = {&n->x, &n->y, &n->dy, &n->dx};
    const int64_t bytes = n->positions * n->channels * osw_dtype_bytes(job->all.dtype);
    n->images = 1;
    for (int t = 0; t < 4; t++)
        move_to(tensors[t], i * bytes);
    const int64_t samples = osw_max_int(n->positions / ROWS_OF_A_SAMPLE, FEW_SAMPLES);
    n->samples = osw_min_int(samples, MANY_SAMPLES);
    double **const factors[FACTORS] = {&n->center, &n->scale, &n->shift, &n->tilt, &n->offset};
    double *const own = job->rooms + room * job->room;
    for (int f = 0; f < FACTORS; f++)
        *factors[f] = own + f * n->channels;
    image.partial = own + FACTORS * n->channels;
    image.statistics = job->statistics + 2 * i * job->groups;
    image.gradients = job->gradients + 2 * (i / job->block) * n->channels;
    return image;
}

static double invstd(const osw_image *image, int64_t group)
{
    return 1 / sqrt(image->statistics[2 * group + 1] + image->job->all.eps);
}

static int64_t group_size(const osw_image *image)
{
    return image->norm.channels / image->job->groups;
}

/* center, scale and shift of a group's channels, from its statistics. */
static void fold(const osw_image *image, int64_t group)
{
    const osw_norm *n = &image->norm;
    const osw_norm_job *all = &image->job->all;
    const int64_t size = group_size(image);
    const double mean = image->statistics[2 * group], s = invstd(image, group);
    const double center = all->dtype == OSW_F64 ? mean : (double)(float)mean;
    const double beyond = osw_norm_beyond(center, mean);
    for (int64_t c = group * size; c < (group + 1) * size; c++) {
        n->center[c] = center;
        n->scale[c] = all->weight ? all->weight[c] * s : s;
        n->shift[c] = all->bias ? all->bias[c] : 0;
        if (beyond != 0) /* else a bias of -0.0 stays one */
            n->shift[c] += beyond * n->scale[c];
    }
}

/* Mean and variance of a group, from sums of x - center, where each channel has its own center:
 * the variances of the channels, and that of their means. */
static void finish_moments(const osw_image *image, int64_t group)
{
    const osw_norm *n = &image->norm;
    const int64_t size = group_size(image), begin = group * size;
    const double share = 1 / (double)n->positions;
    const double *first = image->partial, *second = first + n->channels;
    double mean = 0, squares = 0;
    for (int64_t c = begin; c < begin + size; c++)
        mean += n->center[c] + first[c] * share;
    mean /= (double)size;
    for (int64_t c = begin; c < begin + size; c++) {
        const double shift = first[c] * share, off = n->center[c] - mean + shift;
        squares += osw_norm_variance(shift, second[c] * share) + off * off;
    }
    image->statistics[2 * group] = mean;
    image->statistics[2 * group + 1] = squares / (double)size;
    fold(image, group);
}

/* Source: Wu and He 2018, Group Normalization; with h = (x - mean) * invstd and sums over the
 * group, dx = invstd * (w * dy - sum(w * dy) / n - h * sum(w * dy * h) / n). */
static void finish_gradient(const osw_image *image, int64_t group)
{
    const osw_norm *n = &image->norm;
    const osw_norm_job *all = &image->job->all;
    const int64_t size = group_size(image), begin = group * size;
    const double *first = image->partial, *second = first + n->channels;
    double *of_bias = image->gradients, *of_weight = of_bias + n->channels;
    const double s = invstd(image, group);
    const double beyond = osw_norm_beyond(n->center[begin], image->statistics[2 * group]);
    double given = 0, dot = 0;
    for (int64_t c = begin; c < begin + size; c++) {
        const double own = osw_norm_add_beyond(second[c], beyond, first[c]) * s,
                     w = all->weight ? all->weight[c] : 1;
        of_bias[c] += first[c];
        of_weight[c] += own;
        given += w * first[c];
        dot += w * own;
    }
    const double count = (double)(n->positions * size);
    const double tilt = -s * s * dot / count;
    const double offset = osw_norm_add_beyond(-s * given / count, beyond, tilt);
    for (int64_t c = begin; c < begin + size; c++) {
        n->tilt[c] = tilt;
        n->offset[c] = offset;
    }
}

/* Before the sums. */
static void start_image(const osw_image *image)
{
    if (!image->backward)
        image->job->all.sample(&image->norm, &(osw_norm_part){.channel_end = image->norm.channels});
    for (int64_t group = 0; image->backward && group < image->job->groups; group++)
        fold(image, group);
}

static void sum_chunks(int64_t begin, int64_t end, void *context)
{
    const osw_image *image = context;
    const osw_norm_job *all = &image->job->all;
    const int64_t channels = image->norm.channels, length = image->norm.positions;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        double *first = image->partial + 2 * chunk * channels;
        const osw_norm_part part = {.channel_end = channels,
                                    .begin = chunk * all->chunk,
                                    .end = osw_min_int((chunk + 1) * all->chunk, length),
                                    .first = first,
                                    .second = first + channels};
        memset(first, 0, (size_t)(2 * channels) * sizeof *first);
        all->sums(&image->norm, &part);
    }
}

/* Between the passes: add the chunks up, in order, and make of the sums what the second one needs.
 */
static void finish_image(const osw_image *image)
{
    double *total = image->partial;
    const int64_t count = 2 * image->norm.channels;
    for (int64_t chunk = 1; chunk < image->job->all.chunks; chunk++)
        for (int64_t i = 0; i < count; i++)
            total[i] += image->partial[chunk * count + i];
    for (int64_t group = 0; group < image->job->groups; group++)
        (image->backward ? finish_gradient : finish_moments)(image, group);
}

/* Units: groups of rows. */
static void write_rows(int64_t begin, int64_t end, void *context)
{
    const osw_image *image = context;
    const int64_t last = osw_min_int(end * OSW_NORM_ROWS, image->norm.positions);
    const osw_norm_part part = {
        .channel_end = image->norm.channels, .begin = begin * OSW_NORM_ROWS, .end = last};
    image->job->all.write(&image->norm, &part);
}

static int64_t row_units(const osw_norm_job *all)
{
    return osw_ceil(all->norm.positions, OSW_NORM_ROWS);
}

/* Both passes over one image before the next, in the room of the first block. */
static void run_blocks(int64_t begin, int64_t end, void *context)
{
    const osw_run *run = context;
    const osw_group_job *job = run->job;
    const int64_t last = osw_min_int(end * job->block, job->all.norm.images);
    for (int64_t i = begin * job->block; i < last; i++) {
        osw_image image = image_of(run, i, begin);
        start_image(&image);
        sum_chunks(0, job->all.chunks, &image);
        finish_image(&image);
        if (job->all.write)
            write_rows(0, row_units(&job->all), &image);
    }
}

/* All threads on one image after the other. */
static void run_images(const osw_run *run, int64_t bytes)
{
    const osw_norm_job *all = &run->job->all;
    const int64_t units = row_units(all);
    for (int64_t i = 0; i < all->norm.images; i++) {
        osw_image image = image_of(run, i, 0);
        start_image(&image);
        osw_parallel_for(all->chunks, osw_grain(bytes / all->chunks), sum_chunks, &image);
        finish_image(&image);
        if (all->write)
            osw_parallel_for(units, osw_grain(bytes / units), write_rows, &image);
    }
}

static void execute(osw_group_job *job, bool backward)
{
    osw_norm *n = &job->all.norm;
    const osw_run run = {job, backward};
    assert(osw_group_holds(job) && osw_norm_chunks_hold(&job->all, n->positions));
    n->stream = osw_norm_streams(&job->all);
    const int64_t tensors = backward ? 2 : 1, threads = osw_parallel_threads();
    const int64_t bytes = n->positions * n->channels * osw_dtype_bytes(job->all.dtype) * tensors;
    if (threads > 1 && job->blocks < 4 * threads && bytes >= SHARED_BYTES)
        run_images(&run, bytes);
    else
        osw_parallel_for(job->blocks, osw_grain(bytes * job->block), run_blocks, (void *)&run);
}

void osw_group_forward(osw_group_job *job, double *scratch)
{
    place_scratch(job, scratch);
    execute(job, false);
}

void osw_group_backward(osw_group_job *job, double *scratch)
{
    const int64_t channels = job->all.norm.channels;
    place_scratch(job, scratch);
    memset(job->gradients, 0, (size_t)(2 * job->blocks * channels) * sizeof *scratch);
    if (job->all.sums)
        execute(job, true);
    if (!job->all.grad_weight)
        return;
    for (int64_t c = 0; c < channels; c++)
        job->all.grad_bias[c] = job->all.grad_weight[c] = 0;
    for (int64_t block = 0; block < job->blocks; block++) {
        const double *of_bias = job->gradients + 2 * block * channels;
        for (int64_t c = 0; c < channels; c++) {
            job->all.grad_bias[c] += of_bias[c];
            job->all.grad_weight[c] += of_bias[channels + c];
        }
    }
}
