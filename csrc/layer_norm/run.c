/* SPDX-License-Identifier: MIT */
#include "layer_norm/run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "layer_norm/holds.h"

#include <assert.h>
#include <string.h>

enum {
    CHUNK_VALUES = 32768, /* a chunk is large against the cost of its partial sums */
    MAX_CHUNKS = 64,
    UNIT_ROWS = 16, /* of a forward: a multiple of the rows that kernels have side by side */
};

#define IDS(operation)                                                                             \
    {OSW_LAYER_NORM_##operation##_f32, OSW_LAYER_NORM_##operation##_f64,                           \
     OSW_LAYER_NORM_##operation##_bf16, OSW_LAYER_NORM_##operation##_f16}

static const osw_layer_norm_id ids[2][OSW_DTYPE_COUNT] = {IDS(forward), IDS(backward)};

/* Two vectors of values, as whole doubles. */
static int64_t pair_bytes(const osw_layer_norm_job *job)
{
    return osw_round_up(2 * job->norm.channels * osw_dtype_value_bytes(job->dtype), sizeof(double));
}

/* The sums of a chunk in double, and those that kernels begin with. */
static int64_t chunk_bytes(const osw_layer_norm_job *job)
{
    return 2 * job->norm.channels * (int64_t)sizeof(double) + pair_bytes(job);
}

size_t osw_layer_norm_plan(osw_layer_norm_job *job, bool backward, uint64_t *calls)
{
    assert(osw_layer_norm_holds(job));
    const osw_layer_norm_id id = ids[backward][job->dtype];
    const bool any = !backward || job->norm.dx || job->grad_weight;
    const int64_t rows =
        osw_max_int(osw_ceil(CHUNK_VALUES, job->norm.channels), osw_ceil(job->rows, MAX_CHUNKS));
    job->kernel = any ? osw_layer_norm_table[id] : NULL;
    if (any)
        calls[id]++;
    job->chunk = osw_round_up(rows, UNIT_ROWS);
    job->chunks = osw_ceil(job->rows, job->chunk);
    return (size_t)(pair_bytes(job) +
                    (backward && job->grad_weight ? job->chunks * chunk_bytes(job) : 0));
}

/* A parameter in the type of the arithmetic. */
static void put_values(void *to, osw_dtype dtype, const double *from, double otherwise,
                       int64_t count)
{
    for (int64_t c = 0; c < count; c++) {
        const double value = from ? from[c] : otherwise;
        if (dtype == OSW_F64)
            ((double *)to)[c] = value;
        else
            ((float *)to)[c] = (float)value;
    }
}

static void place(osw_layer_norm_job *job, char *room)
{
    osw_layer_norm *n = &job->norm;
    assert(osw_layer_norm_holds(job) && osw_layer_norm_chunks_hold(job));
    char *const bias = room + n->channels * osw_dtype_value_bytes(job->dtype);
    put_values(room, job->dtype, job->weight, 1, n->channels);
    put_values(bias, job->dtype, job->bias, 0, n->channels);
    n->weight = room;
    n->bias = bias;
    job->room = room + pair_bytes(job);
}

static int64_t row_bytes(const osw_layer_norm_job *job, int64_t tensors)
{
    return tensors * job->norm.channels * osw_dtype_bytes(job->dtype);
}

static void run_units(int64_t begin, int64_t end, void *context)
{
    const osw_layer_norm_job *job = context;
    job->kernel(&job->norm, begin * UNIT_ROWS, osw_min_int(end * UNIT_ROWS, job->rows));
}

void osw_layer_norm_forward(osw_layer_norm_job *job, char *room)
{
    place(job, room);
    osw_parallel_for(osw_ceil(job->rows, UNIT_ROWS), osw_grain(UNIT_ROWS * row_bytes(job, 2)),
                     run_units, job);
}

static double *sums_of(const osw_layer_norm_job *job, int64_t chunk)
{
    return (double *)(void *)(job->room + chunk * chunk_bytes(job));
}

static void run_chunks(int64_t begin, int64_t end, void *context)
{
    const osw_layer_norm_job *job = context;
    const int64_t channels = job->norm.channels;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        osw_layer_norm n = job->norm;
        if (job->grad_weight) {
            n.of_weight = sums_of(job, chunk);
            n.of_bias = n.of_weight + channels;
            n.sums = n.of_bias + channels;
            memset(n.of_weight, 0, (size_t)(2 * channels) * sizeof *n.of_weight);
        }
        job->kernel(&n, chunk * job->chunk, osw_min_int((chunk + 1) * job->chunk, job->rows));
    }
}

void osw_layer_norm_backward(osw_layer_norm_job *job, char *room)
{
    const int64_t channels = job->norm.channels;
    place(job, room);
    if (!job->kernel)
        return;
    osw_parallel_for(job->chunks, osw_grain(job->chunk * row_bytes(job, 3)), run_chunks, job);
    if (!job->grad_weight)
        return;
    for (int64_t c = 0; c < channels; c++)
        job->grad_weight[c] = job->grad_bias[c] = 0;
    for (int64_t chunk = 0; chunk < job->chunks; chunk++) {
        const double *of_weight = sums_of(job, chunk);
        for (int64_t c = 0; c < channels; c++) {
            job->grad_weight[c] += of_weight[c];
            job->grad_bias[c] += of_weight[channels + c];
        }
    }
}
