/* SPDX-License-Identifier: MIT */
/* Normalisation and max pool in one: the bits of both, one after the other, and of its backward on
 * one thread and on several. */
#include "core/ints.h"
#include "driver.h"
#include "driver_rooms.h"
#include "norm_pool/run.h"
#include "pool/run.h"
#include "pool/window.h"

#include <stdlib.h>
#include <string.h>

typedef struct whole {
    osw_norm_pool_job job;
    bool backward;
    int *runs; /* so far: the first one is on one thread, a forward in two operations */
} whole;

static uint64_t norm_calls[OSW_NORM_COUNT], pool_calls[OSW_POOL_COUNT];

static void *room(size_t bytes)
{
    void *memory = calloc(bytes, 1);
    if (!memory)
        abort();
    return memory;
}

/* The forward of both, through a normalised tensor in memory. */
static void run_apart(osw_norm_pool_job job, double *scratch)
{
    osw_norm *n = &job.norm.norm;
    const bool pixels = job.norm.form == OSW_NORM_PIXELS;
    const int64_t image = n->channels * n->positions;
    n->y = (osw_norm_tensor){room((size_t)(n->images * image) * sizeof(float)), image};
    osw_norm_choose(&job.norm, false, norm_calls);
    osw_norm_forward(&job.norm, scratch);
    job.pool.input =
        (osw_pool_tensor){n->y.base, image, pixels ? 1 : n->positions, pixels ? n->channels : 1};
    osw_pool_table[pixels ? OSW_POOL_max_pixels_f32 : OSW_POOL_max_planes_f32](
        &job.pool, 0, osw_pool_units(&job.pool, true, false, pixels));
    free(n->y.base);
}

static void do_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    const whole *w = context;
    const int threads = driver_threads;
    const bool first = (*w->runs)++ == 0;
    osw_norm_pool_job job = w->job;
    (void)begin, (void)end;
    memcpy(osw_norm_table, table, sizeof osw_norm_table);
    double *scratch = room((size_t)osw_norm_prepare(&job.norm) * sizeof *scratch);
    driver_threads = first ? 1 : 3;
    if (first && !w->backward) {
        run_apart(job, scratch);
    } else {
        osw_norm_pool_choose(&job, w->backward, norm_calls, pool_calls);
        (w->backward ? osw_norm_pool_backward : osw_norm_pool_forward)(&job, scratch);
    }
    driver_threads = threads;
    free(scratch);
}

static osw_pool_dim dim_of(int64_t input, int64_t kernel, int64_t stride)
{
    osw_pool_dim dim = {.input = input,
                        .kernel = kernel,
                        .stride = stride,
                        .padding = driver_below(kernel / 2 + 1),
                        .dilation = 1};
    dim.output = osw_pool_output_size(&dim, driver_below(2));
    return dim;
}

/* Of a tensor of the pool's output. */
static osw_pool_tensor pooled(const osw_norm_pool_job *job, void *base)
{
    const osw_pool *p = &job->pool;
    const int64_t plane = p->dims[HEIGHT].output * p->dims[WIDTH].output;
    const bool pixels = job->norm.form == OSW_NORM_PIXELS;
    return (osw_pool_tensor){base, p->channels * plane, pixels ? 1 : plane,
                             pixels ? p->channels : 1};
}

/* A tap of window `at` that is inside of the input, -1 if there is none. */
static int64_t tap_inside(const osw_pool_dim *dim, int64_t at)
{
    const int64_t start = at * dim->stride - dim->padding;
    const int64_t first = osw_max_int(-start, 0);
    const int64_t end = osw_min_int(dim->input - start, dim->kernel);
    return first < end ? first + driver_below(end - first) : -1;
}

/* Bytes that name taps inside of the input, and some that name none. What a tap outside of it gets
 * depends on how the work is cut: a forward never names one. */
static uint8_t *name_taps(driver *d, const osw_pool *pool, bool pixels)
{
    const osw_pool_dim *h = &pool->dims[HEIGHT], *w = &pool->dims[WIDTH];
    const int64_t plane = h->output * w->output, taps = h->kernel * w->kernel;
    const int64_t outputs = pool->images * pool->channels * plane;
    uint8_t *offsets = driver_input(d, DRIVER_U8, outputs);
    for (int64_t i = 0; i < outputs; i++) {
        const int64_t position = pixels ? i / pool->channels % plane : i % plane;
        const int64_t y = tap_inside(h, position / w->output),
                      x = tap_inside(w, position % w->output);
        const bool none = y < 0 || x < 0 || driver_below(8) == 0;
        offsets[i] =
            (uint8_t)(none ? taps + driver_below(UINT8_MAX + 1 - taps) : y * w->kernel + x);
    }
    driver_keep(d, offsets);
    return offsets;
}

static void check_one(driver *d, osw_norm_form form, bool backward, bool training)
{
    static const int64_t channels[] = {3, 8, 24, 65};
    int runs = 0;
    whole w = {.backward = backward, .runs = &runs};
    osw_norm_job *j = &w.job.norm;
    osw_norm *n = &j->norm;
    osw_pool *p = &w.job.pool;
    *j = (osw_norm_job){.form = form, .dtype = OSW_F32, .training = training, .eps = 1e-5};
    n->images = 3;
    n->channels = channels[driver_below(4)];
    n->activation.kind = driver_below(2) ? OSW_RELU : OSW_HARDSWISH;
    p->dims[DEPTH] = (osw_pool_dim){1, 1, 1, 1, 0, 1};
    p->dims[HEIGHT] = dim_of(7 + driver_below(9), 1 + driver_below(4), 1 + driver_below(3));
    p->dims[WIDTH] = dim_of(7 + driver_below(60), 1 + driver_below(4), 1 + driver_below(3));
    n->positions = p->dims[HEIGHT].input * p->dims[WIDTH].input;
    p->images = n->images;
    p->channels = p->input_channels = n->channels;
    p->channel_step = 1;
    p->block = OSW_POOL_MIN_BLOCK;
    const int64_t image = n->channels * n->positions;
    const int64_t outputs =
        n->images * n->channels * p->dims[HEIGHT].output * p->dims[WIDTH].output;
    driver_case(d, backward ? "pooled backward" : "pooled", "%s, channels %lld, %lld x %lld%s",
                form == OSW_NORM_PLANES ? "planes" : "pixels", (long long)n->channels,
                (long long)p->dims[HEIGHT].input, (long long)p->dims[WIDTH].input,
                training ? ", training" : "");
    n->x = (osw_norm_tensor){driver_input(d, DRIVER_F32, n->images * image), image};
    j->weight = driver_positive(d, n->channels);
    j->bias = driver_positive(d, n->channels);
    if (backward || !training) {
        j->mean = driver_positive(d, n->channels);
        j->var = driver_positive(d, n->channels);
    } else {
        j->mean = driver_output(d, DRIVER_F64, n->channels, DRIVER_EXACT);
        j->var = driver_output(d, DRIVER_F64, n->channels, DRIVER_EXACT);
    }
    if (backward) {
        p->offsets = pooled(&w.job, name_taps(d, p, form == OSW_NORM_PIXELS));
        p->grad_output = pooled(&w.job, driver_input(d, DRIVER_F32, outputs));
        n->dx =
            (osw_norm_tensor){driver_output(d, DRIVER_F32, n->images * image, DRIVER_EXACT), image};
        j->grad_weight = driver_output(d, DRIVER_F64, n->channels, DRIVER_EXACT);
        j->grad_bias = driver_output(d, DRIVER_F64, n->channels, DRIVER_EXACT);
    } else {
        p->offsets = pooled(&w.job, driver_output(d, DRIVER_U8, outputs, DRIVER_EXACT));
        p->output = pooled(&w.job, driver_output(d, DRIVER_F32, outputs, DRIVER_EXACT));
    }
    driver_run(d, do_whole, &w, 1);
}

/* Both runs have the kernels of the tier. */
static void check(driver *d)
{
    if (d->timed)
        return;
    void *scalar = driver_scalar_table;
    osw_pool_select(d->tier);
    driver_scalar_table = memcpy(room(sizeof osw_norm_table), d->table, sizeof osw_norm_table);
    d->values = DRIVER_REAL;
    for (int i = 0; i < (d->quick ? 16 : 64); i++)
        check_one(d, (osw_norm_form)(i % 2), i & 2, i & 4);
    free(driver_scalar_table);
    driver_scalar_table = scalar;
}

/* The kernels are those of norm and pool. */
const driver_family driver_norm_pool = {"norm_pool",           osw_norm_select, osw_norm_table,
                                        sizeof osw_norm_table, check,           NULL};
