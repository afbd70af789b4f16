/* SPDX-License-Identifier: MIT */
#include "norm_pool/run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "norm_pool/holds.h"

#include <assert.h>

static bool in_pixels(const osw_norm_pool_job *job)
{
    return job->norm.form == OSW_NORM_PIXELS;
}

/* Of a position in all channels of pixels, or in one plane. */
static int64_t position_bytes(const osw_norm_pool_job *job)
{
    return osw_dtype_bytes(job->norm.dtype) * (in_pixels(job) ? job->norm.norm.channels : 1);
}

/* Positions of all images that the scratch memory holds. */
static int64_t positions_that_fit(const osw_norm_pool_job *job)
{
    return OSW_SCRATCH_CALLER / position_bytes(job);
}

/* Channels whose planes it holds. */
static int64_t planes_that_fit(const osw_norm_pool_job *job)
{
    const osw_norm *n = &job->norm.norm;
    return osw_min_int(positions_that_fit(job) / n->positions, n->channels);
}

static int64_t width_of(const osw_norm_pool_job *job)
{
    return job->pool.dims[WIDTH].input;
}

/* Rows that a window reaches over, padding included. */
static int64_t reach_of(const osw_norm_pool_job *job)
{
    const osw_pool_dim *dim = &job->pool.dims[HEIGHT];
    return (dim->kernel - 1) * dim->dilation + 1;
}

/* Of these, the most that the input has. */
static int64_t read_rows(const osw_norm_pool_job *job)
{
    return osw_min_int(reach_of(job), job->pool.dims[HEIGHT].input);
}

/* Parts of pixels begin and end at multiples of it, so that each position is computed by the kernel
 * that computes it if all are one part. */
static int64_t unit_of(const osw_norm_pool_job *job)
{
    return osw_norm_part_rows(job->norm.norm.channels);
}

/* Rows of pixels with what is before and behind them in their units. */
static int64_t rows_that_fit(const osw_norm_pool_job *job)
{
    return (positions_that_fit(job) - 2 * (unit_of(job) - 1)) / width_of(job);
}

/* Positions of the output of an image. */
static int64_t pooled_positions(const osw_norm_pool_job *job)
{
    return job->pool.dims[HEIGHT].output * job->pool.dims[WIDTH].output;
}

bool osw_norm_pool_fits(const osw_norm_pool_job *job)
{
    if (!in_pixels(job))
        return planes_that_fit(job) >= 1 && pooled_positions(job) <= positions_that_fit(job);
    return rows_that_fit(job) >= osw_max_int(read_rows(job), 2); /* two: of a strip between them */
}

/* Scratch memory for what begins `skipped` positions behind the first one, which would lie here. */
static void *position_zero(const osw_norm_pool_job *job, int64_t skipped)
{
    const uintptr_t room = (uintptr_t)osw_scratch_caller(OSW_SCRATCH_CALLER);
    return (void *)(room - (uintptr_t)(skipped * position_bytes(job)));
}

/* What is in the scratch memory, as the pool sees it. */
static osw_pool_tensor scratch_tensor(const osw_norm_pool_job *job, void *base)
{
    const int64_t positions = job->norm.norm.positions, channels = job->norm.norm.channels;
    return in_pixels(job) ? (osw_pool_tensor){base, positions * channels, 1, channels}
                          : (osw_pool_tensor){base, positions * channels, positions, 1};
}

/* --- forward ---------------------------------------------------------------------------------- */

/* How the output is cut: rows of pixels, or all of some planes. */
typedef struct osw_cut {
    osw_norm_pool_job *job;
    int64_t channels, rows; /* of a strip */
    int64_t blocks, downs;  /* strips of an image */
} osw_cut;

static osw_cut cut_of(osw_norm_pool_job *job)
{
    const osw_pool_dim *dim = &job->pool.dims[HEIGHT];
    const int64_t channels = job->norm.norm.channels;
    osw_cut cut = {job, channels, dim->output, 1, 1};
    if (in_pixels(job)) {
        const int64_t most = (rows_that_fit(job) - read_rows(job)) / dim->stride + 1;
        cut.downs = osw_ceil(dim->output, most);
        cut.rows = osw_ceil(dim->output, cut.downs);
    } else {
        cut.channels = planes_that_fit(job);
        cut.blocks = osw_ceil(channels, cut.channels);
    }
    return cut;
}

/* Normalise what these outputs read, at `zero` as the first position, and pool it. */
static void run_strip(const osw_norm_pool_job *job, void *zero, const osw_norm_part *part,
                      int64_t begin, int64_t end)
{
    osw_norm norm = job->norm.norm;
    osw_pool pool = job->pool;
    norm.y = (osw_norm_tensor){zero, norm.channels * norm.positions};
    pool.input = scratch_tensor(job, zero);
    job->apply(&norm, part);
    job->max(&pool, begin, end);
}

static void pool_pixels(const osw_cut *cut, int64_t image, int64_t down)
{
    const osw_norm_pool_job *job = cut->job;
    const osw_pool_dim *dim = &job->pool.dims[HEIGHT];
    const int64_t begin = down * cut->rows, end = osw_min_int(begin + cut->rows, dim->output);
    const int64_t first = osw_max_int(begin * dim->stride - dim->padding, 0);
    const int64_t last = (end - 1) * dim->stride - dim->padding + reach_of(job);
    const int64_t zero = image * dim->input, width = width_of(job), unit = unit_of(job);
    const int64_t from = (zero + first) * width / unit * unit;
    const int64_t to = (zero + osw_min_int(last, dim->input)) * width;
    const osw_norm_part part = {
        .channel_end = job->norm.norm.channels,
        .begin = from,
        .end = osw_min_int(osw_round_up(to, unit), osw_norm_extent(&job->norm))};
    if (begin >= end)
        return;
    assert(part.begin < part.end && part.end - part.begin <= positions_that_fit(job));
    run_strip(job, position_zero(job, from), &part, image * dim->output + begin,
              image * dim->output + end);
}

static void pool_planes(const osw_cut *cut, int64_t image, int64_t block)
{
    const osw_norm_pool_job *job = cut->job;
    const int64_t channels = job->norm.norm.channels, rows = job->pool.dims[HEIGHT].output;
    const int64_t first = block * cut->channels;
    const osw_norm_part part = {.channel_begin = first,
                                .channel_end = osw_min_int(first + cut->channels, channels),
                                .begin = image,
                                .end = image + 1};
    const int64_t plane = image * channels;
    run_strip(job, position_zero(job, (plane + first) * job->norm.norm.positions), &part,
              (plane + first) * rows, (plane + part.channel_end) * rows);
}

static void pool_strips(int64_t begin, int64_t end, void *context)
{
    const osw_cut *cut = context;
    const int64_t strips = cut->blocks * cut->downs;
    for (int64_t i = begin; i < end; i++)
        (in_pixels(cut->job) ? pool_pixels : pool_planes)(cut, i / strips, i % strips);
}

void osw_norm_pool_forward(osw_norm_pool_job *job, double *scratch)
{
    assert(osw_norm_pool_holds(job, false));
    /* Statistics and factors: it has no kernel that writes. */
    osw_norm_forward(&job->norm, scratch);
    job->norm.norm.stream = false;
    osw_cut cut = cut_of(job);
    const int64_t positions = job->norm.norm.images * job->norm.norm.positions;
    const int64_t planes = in_pixels(job) ? 1 : job->norm.norm.channels;
    const int64_t strips = job->norm.norm.images * cut.blocks * cut.downs;
    const int64_t bytes = positions * planes * position_bytes(job);
    osw_parallel_for(strips, osw_grain(bytes / strips), pool_strips, &cut);
}

/* --- backward --------------------------------------------------------------------------------- */

/* The gradient of rows [begin, end) of what is pooled, counted as the pool does, at `zero` as the
 * first position; from it that of a part of them. */
static void run_back(const osw_norm_pool_job *job, void *zero, int64_t begin, int64_t end,
                     const osw_norm_part *part)
{
    osw_norm norm = job->norm.norm;
    osw_pool pool = job->pool;
    norm.dy = (osw_norm_tensor){zero, norm.channels * norm.positions};
    pool.grad_input = scratch_tensor(job, zero);
    job->max(&pool, begin, end);
    job->gradient(&norm, part);
}

/* Positions of pixels in one strip: whole units and, if that fits, whole rows, so that no row is
 * made twice. */
static int64_t strip_positions(const osw_norm_pool_job *job)
{
    const int64_t width = width_of(job), fit = osw_max_int(rows_that_fit(job) - 1, 1) * width;
    const int64_t part = unit_of(job), whole = width / osw_common_factor(width, part) * part;
    const int64_t unit = whole <= fit ? whole : part;
    return osw_max_int(fit / unit, 1) * unit;
}

static void back_pixels(const osw_norm_pool_job *job, osw_norm_part part)
{
    const int64_t width = width_of(job), step = strip_positions(job), end = part.end;
    for (; part.begin < end; part.begin = part.end) {
        part.end = osw_min_int(part.begin + step, end);
        const int64_t row = part.begin / width, behind = osw_ceil(part.end, width);
        assert((behind - row) * width <= positions_that_fit(job));
        run_back(job, position_zero(job, row * width), row, behind, &part);
    }
}

static void back_planes(const osw_norm_pool_job *job, osw_norm_part part)
{
    const osw_norm *n = &job->norm.norm;
    const int64_t rows = job->pool.dims[HEIGHT].input, images = part.end;
    const int64_t first = part.channel_begin, behind = part.channel_end;
    for (; part.begin < images; part.begin = part.end) {
        part.end = part.begin + 1;
        for (int64_t c = first; c < behind; c = part.channel_end) {
            const int64_t plane = part.begin * n->channels;
            part.channel_begin = c;
            part.channel_end = osw_min_int(c + planes_that_fit(job), behind);
            run_back(job, position_zero(job, (plane + c) * n->positions), (plane + c) * rows,
                     (plane + part.channel_end) * rows, &part);
        }
    }
}

/* The job whose osw_norm a kernel got. */
static const osw_norm_pool_job *job_of(const osw_norm *norm)
{
    return (const osw_norm_pool_job *)(const void *)norm;
}

static void gradient_strips(const osw_norm *norm, const osw_norm_part *part)
{
    (in_pixels(job_of(norm)) ? back_pixels : back_planes)(job_of(norm), *part);
}

/* Sums over outputs [begin, end), counted over images and the planes of these, with the values that
 * the pool has chosen: what it has not chosen has no gradient. */
static void sum_strip(const osw_norm_pool_job *job, int64_t begin, int64_t end,
                      const osw_norm_part *part)
{
    osw_norm norm = job->norm.norm;
    norm.positions = pooled_positions(job);
    const int64_t step = norm.channels * norm.positions;
    void *zero = position_zero(job, begin);
    osw_gather_run(&job->gather, begin, end, osw_scratch_caller(OSW_SCRATCH_CALLER));
    norm.x = (osw_norm_tensor){zero, step};
    norm.dy = (osw_norm_tensor){job->pool.grad_output.base, step};
    job->reduce(&norm, part);
}

/* The part is a chunk of the input: here the chunk of the output of the same number. */
static void sum_pixels(const osw_norm_pool_job *job, osw_norm_part part)
{
    const int64_t all = job->pool.images * pooled_positions(job);
    const int64_t chunk = osw_ceil(all, job->norm.chunks);
    const int64_t step = positions_that_fit(job) / unit_of(job) * unit_of(job);
    const int64_t begin = osw_min_int(part.begin / job->norm.chunk * chunk, all);
    const int64_t end = osw_min_int(begin + chunk, all);
    for (part.begin = begin; part.begin < end; part.begin = part.end) {
        part.end = osw_min_int(part.begin + step, end);
        sum_strip(job, part.begin, part.end, &part);
    }
}

static void sum_planes(const osw_norm_pool_job *job, osw_norm_part part)
{
    const int64_t positions = pooled_positions(job), images = part.end;
    const int64_t first = part.channel_begin, behind = part.channel_end;
    const int64_t block = positions_that_fit(job) / positions;
    for (; part.begin < images; part.begin = part.end) {
        part.end = part.begin + 1;
        for (int64_t c = first; c < behind; c = part.channel_end) {
            const int64_t plane = part.begin * job->pool.channels;
            part.channel_begin = c;
            part.channel_end = osw_min_int(c + block, behind);
            sum_strip(job, (plane + c) * positions, (plane + part.channel_end) * positions, &part);
        }
    }
}

static void reduce_strips(const osw_norm *norm, const osw_norm_part *part)
{
    (in_pixels(job_of(norm)) ? sum_pixels : sum_planes)(job_of(norm), *part);
}

void osw_norm_pool_backward(osw_norm_pool_job *job, double *scratch)
{
    assert(osw_norm_pool_holds(job, true));
    osw_gather_start(&job->gather, &job->pool, job->norm.norm.x.base,
                     osw_dtype_bytes(job->norm.dtype), in_pixels(job));
    osw_norm_backward(&job->norm, scratch);
}

/* --- kernels ---------------------------------------------------------------------------------- */

#define IDS_OF(operation, form)                                                                    \
    {OSW_POOL_##operation##_##form##_f32, OSW_POOL_##operation##_##form##_f64,                     \
     OSW_POOL_##operation##_##form##_bf16, OSW_POOL_##operation##_##form##_f16}

void osw_norm_pool_choose(osw_norm_pool_job *job, bool backward, uint64_t *norm_calls,
                          uint64_t *pool_calls)
{
    static const osw_pool_id ids[2][2][OSW_DTYPE_COUNT] = {
        {IDS_OF(max, planes), IDS_OF(max, pixels)},
        {IDS_OF(max_backward, planes), IDS_OF(max_backward, pixels)},
    };
    const osw_pool_id id = ids[backward][job->norm.form][job->norm.dtype];
    pool_calls[id]++;
    job->max = osw_pool_table[id];
    osw_norm_choose(&job->norm, backward, norm_calls);
    if (!backward) {
        job->apply = job->norm.write;
        job->norm.write = NULL;
        return;
    }
    job->reduce = job->norm.sums;
    job->gradient = job->norm.write;
    if (job->reduce)
        job->norm.sums = reduce_strips;
    if (job->gradient)
        job->norm.write = gradient_strips;
}
