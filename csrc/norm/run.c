/* SPDX-License-Identifier: MIT */
#include "norm/run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "core/prefetch.h"
#include "norm/finish.h"
#include "norm/holds.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    CHUNK_VALUES = 65536, /* a chunk is large against the cost of its partial sums */
    MAX_CHUNKS = 64,
    /* Of a block of planes between its two passes: a share of L3. Blocks that fit L2 are runs of a
     * few KB from every image, which takes up to twice as long as both passes without blocks. */
    CACHED_BYTES = 4096 * 1024,
    CACHED_BYTES_OF_ALL = 4 * CACHED_BYTES, /* threads together */
    FACTORS = 5,
    MOST_LANES = 16,
};

typedef enum osw_pass { SAMPLE, MOMENTS, APPLY, REDUCE, GRADIENT, PASS_COUNT } osw_pass;

#define PASS_ROW(operation)                                                                        \
    {OSW_NORM_##operation##_planes_f32, OSW_NORM_##operation##_planes_f64,                         \
     OSW_NORM_##operation##_planes_bf16, OSW_NORM_##operation##_planes_f16},                       \
    {                                                                                              \
        OSW_NORM_##operation##_pixels_f32, OSW_NORM_##operation##_pixels_f64,                      \
            OSW_NORM_##operation##_pixels_bf16, OSW_NORM_##operation##_pixels_f16                  \
    }

static const osw_norm_id ids[PASS_COUNT][2][OSW_DTYPE_COUNT] = {
    {PASS_ROW(sample)}, {PASS_ROW(moments)},  {PASS_ROW(apply)},
    {PASS_ROW(reduce)}, {PASS_ROW(gradient)},
};

/* A run is: sums over the input (or none), `between` once per channel, then a pass that writes (or
 * none). */
typedef struct osw_run {
    osw_norm_job *job;
    void (*between)(const osw_norm_job *job, int64_t c, double first, double second);
} osw_run;

static osw_norm_fn *kernel(const osw_norm_job *job, osw_pass pass, uint64_t *calls)
{
    const osw_norm_id id = ids[pass][job->form][job->dtype];
    calls[id]++;
    return osw_norm_table[id];
}

void osw_norm_choose(osw_norm_job *job, bool backward, uint64_t *calls)
{
    const bool dx = backward && job->norm.dx.base;
    job->sample = !backward && job->training ? kernel(job, SAMPLE, calls) : NULL;
    if (backward)
        job->sums = job->grad_weight || (job->training && dx) ? kernel(job, REDUCE, calls) : NULL;
    else
        job->sums = job->training ? kernel(job, MOMENTS, calls) : NULL;
    job->write = !backward ? kernel(job, APPLY, calls) : dx ? kernel(job, GRADIENT, calls) : NULL;
}

static int64_t values_per_channel(const osw_norm_job *job)
{
    return job->norm.images * job->norm.positions;
}

int64_t osw_norm_prepare(osw_norm_job *job)
{
    assert(osw_norm_holds(job));
    const osw_norm *n = &job->norm;
    const int64_t length = osw_norm_extent(job);
    const int64_t values = job->form == OSW_NORM_PLANES ? n->positions : n->channels;
    job->chunk = osw_max_int(osw_ceil(CHUNK_VALUES, values), osw_ceil(length, MAX_CHUNKS));
    if (job->form == OSW_NORM_PIXELS)
        job->chunk = osw_ceil(job->chunk, OSW_NORM_ROWS) * OSW_NORM_ROWS;
    job->chunks = osw_ceil(length, job->chunk);
    return (FACTORS + 2 * job->chunks) * n->channels;
}

int64_t osw_norm_part_rows(int64_t channels)
{
    int64_t rows = 1; /* that fill vectors of floats of any tier */
    while (rows < OSW_NORM_ROWS && rows * channels % MOST_LANES != 0)
        rows *= 2;
    return rows;
}

static void place_scratch(osw_norm_job *job, double *scratch)
{
    osw_norm *n = &job->norm;
    double **const places[FACTORS] = {&n->center, &n->scale, &n->shift, &n->tilt, &n->offset};
    for (int i = 0; i < FACTORS; i++)
        *places[i] = scratch + i * n->channels;
    job->partial = scratch + FACTORS * n->channels;
}

static double invstd(const osw_norm_job *job, int64_t c)
{
    return 1 / sqrt(job->var[c] + job->eps);
}

static double weight(const osw_norm_job *job, int64_t c)
{
    return job->weight ? job->weight[c] : 1;
}

/* center, scale and shift from mean and var: the same doubles in forward and backward, so that both
 * see the same z. */
static void fold(const osw_norm_job *job, int64_t c)
{
    const osw_norm *n = &job->norm;
    n->center[c] = job->dtype == OSW_F64 ? job->mean[c] : (double)(float)job->mean[c];
    n->scale[c] = weight(job, c) * invstd(job, c);
    n->shift[c] = job->bias ? job->bias[c] : 0;
    const double beyond = osw_norm_beyond(n->center[c], job->mean[c]);
    if (beyond != 0) /* else a bias of -0.0 stays one */
        n->shift[c] += beyond * n->scale[c];
}

static void finish_moments(const osw_norm_job *job, int64_t c, double first, double second)
{
    const double count = (double)values_per_channel(job);
    const double shift = first / count;
    job->mean[c] = job->norm.center[c] + shift;
    job->var[c] = osw_norm_variance(shift, second / count);
    fold(job, c);
}

/* Source: Ioffe and Szegedy 2015, section 3; with h = (x - mean) * invstd and sums over the batch,
 * dx = weight * invstd * (d - sum(d) / n - h * sum(d * h) / n). */
static void finish_gradient(const osw_norm_job *job, int64_t c, double first, double second)
{
    const osw_norm *n = &job->norm;
    const double beyond = osw_norm_beyond(n->center[c], job->mean[c]), s = invstd(job, c);
    const double dot = osw_norm_add_beyond(second, beyond, first) * s;
    if (job->grad_weight) {
        job->grad_weight[c] = dot;
        job->grad_bias[c] = first;
    }
    if (!n->tilt)
        return;
    const double count = (double)values_per_channel(job);
    n->tilt[c] = -n->scale[c] * s * dot / count;
    n->offset[c] = osw_norm_add_beyond(-n->scale[c] * first / count, beyond, n->tilt[c]);
}

/* The centers of the sums. One that is infinite would make every x - center NaN, where the mean is
 * infinite. */
static void take_sample(const osw_norm_job *job, const osw_norm_part *part)
{
    if (!job->sample)
        return;
    job->sample(&job->norm, part);
    for (int64_t c = part->channel_begin; c < part->channel_end; c++)
        if (!isfinite(job->norm.center[c]))
            job->norm.center[c] = 0;
}

/* Sums of one chunk, for some channels. */
static void sum_chunk(const osw_run *run, int64_t chunk, int64_t channel_begin, int64_t channel_end)
{
    const osw_norm_job *job = run->job;
    const int64_t begin = chunk * job->chunk, length = osw_norm_extent(job);
    assert(osw_norm_block_holds(job, channel_begin, channel_end));
    double *first = job->partial + 2 * chunk * job->norm.channels;
    const osw_norm_part part = {
        .channel_begin = channel_begin,
        .channel_end = channel_end,
        .begin = begin,
        .end = begin + job->chunk < length ? begin + job->chunk : length,
        .first = first,
        .second = first + job->norm.channels,
    };
    const size_t bytes = (size_t)(channel_end - channel_begin) * sizeof *first;
    memset(part.first + channel_begin, 0, bytes);
    memset(part.second + channel_begin, 0, bytes);
    job->sums(&job->norm, &part);
}

/* Add the chunks up, in order, and compute from the sums what the writing pass needs. */
static void merge(const osw_run *run, int64_t channel_begin, int64_t channel_end)
{
    const osw_norm_job *job = run->job;
    const int64_t channels = job->norm.channels;
    double *total = job->partial;
    for (int64_t chunk = 1; chunk < job->chunks; chunk++) {
        const double *one = job->partial + 2 * chunk * channels;
        for (int64_t c = channel_begin; c < channel_end; c++) {
            total[c] += one[c];
            total[channels + c] += one[channels + c];
        }
    }
    for (int64_t c = channel_begin; c < channel_end; c++)
        run->between(job, c, total[c], total[channels + c]);
}

/* Channels of planes that stay in the cache between the two passes. */
static int64_t block_channels(const osw_norm_job *job)
{
    const int64_t tensors = job->norm.dy.base ? 2 : 1;
    const int64_t bytes = values_per_channel(job) * osw_dtype_bytes(job->dtype) * tensors;
    const int64_t share = CACHED_BYTES_OF_ALL / osw_parallel_threads();
    const int64_t fit = (share < CACHED_BYTES ? share : CACHED_BYTES) / osw_max_int(bytes, 1);
    return fit < 1 ? 1 : fit < OSW_NORM_MAX_BLOCK ? fit : OSW_NORM_MAX_BLOCK;
}

/* Everything, for some channels: both passes over one block of planes before the next. */
static void run_planes(int64_t begin, int64_t end, void *context)
{
    const osw_run *run = context;
    const osw_norm_job *job = run->job;
    const int64_t block = block_channels(job);
    for (int64_t c = begin; c < end; c += block) {
        const osw_norm_part part = {.channel_begin = c,
                                    .channel_end = c + block < end ? c + block : end,
                                    .end = job->norm.images};
        take_sample(job, &part);
        for (int64_t chunk = 0; job->sums && chunk < job->chunks; chunk++)
            sum_chunk(run, chunk, c, part.channel_end);
        if (job->sums)
            merge(run, c, part.channel_end);
        if (job->write)
            job->write(&job->norm, &part);
    }
}

static int64_t blocks(const osw_norm_job *job)
{
    return job->form == OSW_NORM_PIXELS ? 1 : osw_ceil(job->norm.channels, OSW_NORM_MAX_BLOCK);
}

/* Units: chunks of blocks of channels. */
static void sum_units(int64_t begin, int64_t end, void *context)
{
    const osw_run *run = context;
    const int64_t channels = run->job->norm.channels, count = blocks(run->job);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t c = count == 1 ? 0 : unit % count * OSW_NORM_MAX_BLOCK;
        const int64_t next = count == 1 ? channels : c + OSW_NORM_MAX_BLOCK;
        sum_chunk(run, unit / count, c, next < channels ? next : channels);
    }
}

/* Units: images, or groups of rows. */
static void write_units(int64_t begin, int64_t end, void *context)
{
    const osw_run *run = context;
    const osw_norm_job *job = run->job;
    const int64_t rows = job->form == OSW_NORM_PIXELS ? OSW_NORM_ROWS : 1,
                  length = osw_norm_extent(job);
    const osw_norm_part part = {.channel_end = job->norm.channels,
                                .begin = begin * rows,
                                .end = end * rows < length ? end * rows : length};
    job->write(&job->norm, &part);
}

/* Both passes one after the other, each over the whole tensor. */
static void run_passes(const osw_run *run)
{
    const osw_norm_job *job = run->job;
    const int64_t channels = job->norm.channels;
    const int64_t tensors = job->norm.dy.base ? 2 : 1;
    const int64_t bytes =
        values_per_channel(job) * channels * osw_dtype_bytes(job->dtype) * tensors;
    take_sample(job, &(osw_norm_part){.channel_end = channels});
    if (job->sums) {
        const int64_t units = job->chunks * blocks(job);
        osw_parallel_for(units, osw_grain(bytes / units), sum_units, (void *)run);
        merge(run, 0, channels);
    }
    if (job->write) {
        const int64_t rows = job->form == OSW_NORM_PIXELS ? OSW_NORM_ROWS : 1;
        const int64_t units = osw_ceil(osw_norm_extent(job), rows);
        osw_parallel_for(units, osw_grain(bytes / units), write_units, (void *)run);
    }
}

bool osw_norm_streams(const osw_norm_job *job)
{
    const osw_norm *n = &job->norm;
    const int64_t bytes = values_per_channel(job) * n->channels * osw_dtype_bytes(job->dtype);
    const bool inplace = n->y.base == n->x.base;
    return osw_stream_bytes && bytes >= osw_stream_bytes && !inplace;
}

/* Planes that are read twice: a few channels at a time, if that gives every thread work. */
static void execute(osw_run *run)
{
    osw_norm_job *job = run->job;
    assert(osw_norm_holds(job) && osw_norm_chunks_hold(job, osw_norm_extent(job)));
    assert(job->chunks <= MAX_CHUNKS + 1);
    job->norm.stream = osw_norm_streams(job);
    const int64_t channels = job->norm.channels;
    const bool enough = channels >= 2 * osw_parallel_threads() || osw_parallel_threads() == 1;
    if (job->form == OSW_NORM_PLANES && enough && job->sums && job->write) {
        const int64_t tensors = job->norm.dy.base ? 2 : 1;
        const int64_t bytes = values_per_channel(job) * osw_dtype_bytes(job->dtype) * tensors;
        osw_parallel_for(channels, osw_grain(bytes), run_planes, (void *)run);
    } else {
        run_passes(run);
    }
}

void osw_norm_forward(osw_norm_job *job, double *scratch)
{
    place_scratch(job, scratch);
    osw_run run = {.job = job, .between = finish_moments};
    for (int64_t c = 0; !job->training && c < job->norm.channels; c++)
        fold(job, c);
    execute(&run);
}

void osw_norm_backward(osw_norm_job *job, double *scratch)
{
    place_scratch(job, scratch);
    osw_norm *n = &job->norm;
    osw_run run = {.job = job, .between = finish_gradient};
    for (int64_t c = 0; c < n->channels; c++)
        fold(job, c);
    if (!job->training)
        n->tilt = NULL;
    execute(&run);
}

void osw_norm_move(const osw_norm_job *job, double *running_mean, double *running_var)
{
    const double count = (double)values_per_channel(job), m = job->momentum;
    for (int64_t c = 0; c < job->norm.channels; c++) {
        running_mean[c] = (1 - m) * running_mean[c] + m * job->mean[c];
        running_var[c] = (1 - m) * running_var[c] + m * (job->var[c] * count / (count - 1));
    }
}
