/* SPDX-License-Identifier: MIT */
#include "chain/run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "depthwise/depthwise.h"
#include "norm/finish.h"

#include <assert.h>
#include <string.h>

enum {
    FACTORS = 5,
    ALIGNED = 64,
};

/* The working memory of a run: what a stage needs is free again for the next. */
typedef struct osw_chain_memory {
    float *packed;  /* the weight as the kernels read it */
    double *sums;   /* per part first, second */
    float *centers; /* per part */
    float *weights; /* per part */
    float *factors; /* of all links */
} osw_chain_memory;

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static int64_t most(int64_t a, int64_t b)
{
    return osw_max_int(a, b);
}

static int64_t row_parts(const osw_chain_stage *last)
{
    return osw_ceil(osw_chain_pixels(last), osw_chain_part_pixels(last));
}

/* Sizes of the arrays of osw_chain_memory, in elements. */
typedef struct osw_chain_sizes {
    int64_t packed, sums, centers, weights, factors;
} osw_chain_sizes;

static osw_chain_sizes sizes_of(const osw_chain *chain)
{
    osw_chain_sizes sizes = {0};
    for (int i = 0; i < chain->count; i++) {
        const osw_chain_stage *s = &chain->stages[i];
        const int64_t wide = most(s->channels, s->outputs);
        const int64_t packed = s->depthwise ? osw_chain_weights(s) : osw_chain_packed(s);
        sizes.packed = most(sizes.packed, packed);
        sizes.sums = most(sizes.sums, 2 * s->parts * wide);
        sizes.centers = most(sizes.centers, s->parts * s->outputs);
        sizes.weights = most(sizes.weights, s->parts * osw_chain_weights(s));
        sizes.factors += FACTORS * osw_round_up(s->outputs, ALIGNED / (int64_t)sizeof(float));
    }
    const osw_chain_stage *last = &chain->stages[chain->count - 1];
    sizes.sums = most(sizes.sums, 2 * row_parts(last) * last->outputs);
    return sizes;
}

/* The array of so many bytes, and `*at` behind it. */
static void *take(char **at, size_t bytes)
{
    void *array = *at;
    *at += aligned(bytes);
    return array;
}

static osw_chain_memory place(osw_chain *chain, void *memory)
{
    const osw_chain_sizes n = sizes_of(chain);
    char *at = (char *)aligned((size_t)(uintptr_t)memory);
    const osw_chain_memory m = {
        .packed = take(&at, (size_t)n.packed * sizeof(float)),
        .sums = take(&at, (size_t)n.sums * sizeof(double)),
        .centers = take(&at, (size_t)n.centers * sizeof(float)),
        .weights = take(&at, (size_t)n.weights * sizeof(float)),
        .factors = take(&at, (size_t)n.factors * sizeof(float)),
    };
    float *factors = m.factors;
    for (int i = 0; i < chain->count; i++) {
        osw_chain_norm *norm = &chain->links[i].norm;
        float **const places[FACTORS] = {&norm->center, &norm->scale, &norm->shift, &norm->tilt,
                                         &norm->offset};
        const int64_t length =
            osw_round_up(chain->stages[i].outputs, ALIGNED / (int64_t)sizeof(float));
        for (int k = 0; k < FACTORS; k++, factors += length)
            *places[k] = factors;
    }
    return m;
}

size_t osw_chain_prepare(osw_chain *chain)
{
    assert(osw_chain_holds(chain, false));
    for (int i = 0; i < chain->count; i++)
        osw_chain_cut(&chain->stages[i]);
    const osw_chain_sizes n = sizes_of(chain);
    return ALIGNED + aligned((size_t)n.packed * sizeof(float)) +
           aligned((size_t)n.sums * sizeof(double)) + aligned((size_t)n.centers * sizeof(float)) +
           aligned((size_t)n.weights * sizeof(float)) + aligned((size_t)n.factors * sizeof(float));
}

/* Sizes that the kernels of training know; their windows follow from side and stride. */
static bool is_usual(const osw_chain_stage *s)
{
    const bool small = !s->depthwise && s->side == 1 && s->stride == 1;
    const bool wide = s->depthwise && (s->side == 3 || s->side == 5) &&
                      (s->stride == 1 || s->stride == 2) && s->channels == s->outputs;
    return (small || wide) && s->out_height == (s->height - 1) / s->stride + 1 &&
           s->out_width == (s->width - 1) / s->stride + 1;
}

/* What evaluation reads in place of side and stride. */
static bool has_usual_window(const osw_chain_stage *s)
{
    const osw_chain_window *w = &s->window;
    return w->height == s->side && w->width == s->side && w->stride_y == s->stride &&
           w->stride_x == s->stride && w->top == s->side / 2 && w->left == s->side / 2;
}

/* Every window meets the image. */
static bool is_dense(const osw_chain_stage *s)
{
    const osw_chain_window *w = &s->window;
    const int64_t bottom = s->height + 2 * w->top - w->height;
    const int64_t right = s->width + 2 * w->left - w->width;
    return w->stride_y >= 1 && w->stride_x >= 1 && w->top >= 0 && w->top < w->height &&
           w->left >= 0 && w->left < w->width && bottom >= 0 && right >= 0 &&
           s->out_height == bottom / w->stride_y + 1 && s->out_width == right / w->stride_x + 1;
}

bool osw_chain_holds(const osw_chain *chain, bool folded)
{
    bool holds = chain->count >= 1 && chain->count <= OSW_CHAIN_MOST_STAGES;
    for (int i = 0; holds && i < chain->count; i++) {
        const osw_chain_stage *s = &chain->stages[i], *before = i ? s - 1 : NULL;
        holds = s->batch >= 1 && s->height >= 1 && s->width >= 1 && s->channels >= 1 &&
                s->outputs >= 1 && chain->links[i].norm.activation.kind <= OSW_HARDSWISH &&
                (s->dense ? is_dense(s) : is_usual(s) && (!folded || has_usual_window(s))) &&
                osw_chain_fits(s, folded) &&
                (!before || (s->batch == before->batch && s->channels == before->outputs &&
                             s->height == before->out_height && s->width == before->out_width));
    }
    return holds;
}

void osw_chain_choose(osw_chain *chain, bool backward, uint64_t *calls)
{
    memcpy(chain->kernels, osw_chain_table, sizeof chain->kernels);
    calls[backward ? OSW_CHAIN_reduce : OSW_CHAIN_apply]++;
    for (int i = 0; i < chain->count; i++) {
        const bool wide = chain->stages[i].depthwise;
        if (!wide)
            calls[OSW_CHAIN_pack]++;
        if (backward)
            calls[wide ? OSW_CHAIN_depthwise_backward : OSW_CHAIN_pointwise_backward]++;
        else
            calls[wide ? OSW_CHAIN_depthwise_forward : OSW_CHAIN_pointwise_forward]++;
    }
}

/* Parts of one operation. */
typedef struct osw_chain_work {
    const osw_chain_stage *stage;
    const osw_chain_memory *memory;
    osw_chain_fn *kernel;
    int64_t channels; /* of the sums */
    bool by_rows;     /* reduce and apply */
} osw_chain_work;

static void run_parts(int64_t begin, int64_t end, void *context)
{
    const osw_chain_work *work = context;
    const osw_chain_stage *s = work->stage;
    const int64_t rows = osw_chain_part_pixels(s);
    for (int64_t i = begin; i < end; i++) {
        osw_chain_part part = osw_chain_part_at(s, i);
        if (work->by_rows) {
            part.begin = i * rows;
            part.end = osw_min_int(part.begin + rows, osw_chain_pixels(s));
        } else {
            part.center = work->memory->centers + i * s->outputs;
            part.weights = work->memory->weights + i * osw_chain_weights(s);
        }
        part.first = work->memory->sums + 2 * i * work->channels;
        part.second = part.first + work->channels;
        assert(part.begin < part.end);
        work->kernel(s, &part);
    }
}

static void run(const osw_chain_work *work)
{
    const osw_chain_stage *s = work->stage;
    const int64_t parts = work->by_rows ? row_parts(s) : s->parts;
    const int64_t bytes =
        (int64_t)sizeof(float) * s->batch *
        (s->height * s->width * s->channels + s->out_height * s->out_width * s->outputs);
    osw_parallel_for(parts, osw_grain(bytes / parts), run_parts, (void *)work);
}

/* The weight of a stage as its kernels read it. */
static void pack(const osw_chain *chain, osw_chain_stage *s, bool backward,
                 const osw_chain_memory *memory)
{
    if (s->depthwise) {
        const osw_depthwise d = {.channels = s->channels, .tall = s->side, .wide = s->side};
        osw_depthwise_pack(&d, OSW_F32, s->weight, NULL, memory->packed);
        s->weight = memory->packed;
    } else {
        s->packed = memory->packed;
        s->packs_backward = backward;
        chain->kernels[OSW_CHAIN_pack](s, NULL);
    }
}

/* center, scale and shift from mean and var: the same floats in forward and backward. */
static void fold(const osw_chain_link *link, int64_t channels)
{
    const osw_chain_norm *norm = &link->norm;
    for (int64_t c = 0; c < channels; c++) {
        const double scale = osw_chain_scale(link, c),
                     bias = link->bias ? (double)link->bias[c] : 0;
        norm->center[c] = (float)link->mean[c];
        norm->scale[c] = (float)scale;
        const double beyond = osw_norm_beyond((double)norm->center[c], link->mean[c]);
        norm->shift[c] = (float)(bias + beyond * scale);
    }
}

/* Add the sums of a part about its own center to those before it: Chan, Golub, LeVeque 1983. */
static void merge_moments(const osw_chain_stage *s, osw_chain_link *link,
                          const osw_chain_memory *memory)
{
    const int64_t outputs = s->outputs;
    double total = 0;
    for (int64_t i = 0; i < s->parts; i++) {
        const osw_chain_part part = osw_chain_part_at(s, i);
        double count = (double)(part.end - part.begin);
        if (s->depthwise) {
            const osw_chain_band first = osw_chain_band_at(s, part.begin);
            const osw_chain_band last = osw_chain_band_at(s, part.end - 1);
            count =
                (double)(((last.image - first.image) * s->out_height + last.bottom - first.top) *
                         s->out_width);
        }
        const double share = count / (total + count);
        const double *sums = memory->sums + 2 * i * outputs;
        for (int64_t c = 0; c < outputs; c++) {
            const double shift = sums[c] / count;
            const double mean = (double)memory->centers[i * outputs + c] + shift;
            const double square = sums[outputs + c] - shift * sums[c];
            const double so_far = i ? link->mean[c] : mean, far = mean - so_far;
            link->mean[c] = isfinite(far) ? so_far + far * share : so_far + mean;
            link->var[c] = (i ? link->var[c] : 0) + square + far * far * total * share;
        }
        total += count;
    }
    for (int64_t c = 0; c < outputs; c++)
        link->var[c] = link->var[c] > 0               ? link->var[c] / total
                       : link->var[c] == link->var[c] ? 0
                                                      : NAN;
}

void osw_chain_forward(osw_chain *chain, void *memory)
{
    assert(osw_chain_holds(chain, false));
    const osw_chain_memory m = place(chain, memory);
    osw_chain_stage *s = NULL;
    for (int i = 0; i < chain->count; i++) {
        osw_chain_link *link = &chain->links[i];
        s = &chain->stages[i];
        s->before = i ? &chain->links[i - 1].norm : NULL;
        s->after = &link->norm;
        pack(chain, s, false, &m);
        run(&(osw_chain_work){.stage = s,
                              .memory = &m,
                              .kernel = chain->kernels[s->depthwise ? OSW_CHAIN_depthwise_forward
                                                                    : OSW_CHAIN_pointwise_forward],
                              .channels = s->outputs});
        merge_moments(s, link, &m);
        fold(link, s->outputs);
    }
    run(&(osw_chain_work){.stage = s,
                          .memory = &m,
                          .kernel = chain->kernels[OSW_CHAIN_apply],
                          .channels = s->outputs,
                          .by_rows = true});
}

/* Gradients of a link's parameters, and the factors of the gradient of z, from the sums of all
 * parts. Source: Ioffe and Szegedy 2015, section 3; with h = (z - mean) * invstd,
 * dz = weight * invstd * (d - sum(d) / n - h * sum(d * h) / n). */
static void finish_gradient(const osw_chain_link *link, int64_t channels, int64_t pixels,
                            int64_t parts, double *sums)
{
    for (int64_t i = 1; i < parts; i++)
        for (int64_t k = 0; k < 2 * channels; k++)
            sums[k] += sums[2 * i * channels + k];
    for (int64_t c = 0; c < channels; c++) {
        const double beyond = osw_norm_beyond((double)link->norm.center[c], link->mean[c]);
        const double s = osw_chain_invstd(link, c), scale = osw_chain_scale(link, c),
                     count = (double)pixels;
        const double dot = osw_norm_add_beyond(sums[channels + c], beyond, sums[c]) * s;
        const double tilt = -scale * s * dot / count;
        link->norm.tilt[c] = (float)tilt;
        link->norm.offset[c] = (float)osw_norm_add_beyond(-scale * sums[c] / count, beyond, tilt);
        if (link->grad_weight)
            link->grad_weight[c] = (float)dot;
        if (link->grad_bias)
            link->grad_bias[c] = (float)sums[c];
    }
}

/* The gradient of the weight as torch has it, from the sums of the parts, which are overwritten. */
static void finish_weight(const osw_chain_stage *s, const osw_chain_memory *memory, float *to)
{
    const int64_t count = osw_chain_weights(s);
    float *sums = memory->weights;
    for (int64_t i = 1; i < s->parts; i++)
        for (int64_t k = 0; k < count; k++)
            sums[k] += sums[i * count + k];
    const int64_t columns = s->depthwise ? s->channels : s->outputs;
    if (!to)
        return;
    if (!s->depthwise && !s->crossed)
        memcpy(to, sums, (size_t)count * sizeof *to);
    else
        for (int64_t r = 0; r < count / columns; r++)
            for (int64_t c = 0; c < columns; c++)
                to[c * (count / columns) + r] = sums[r * columns + c];
}

void osw_chain_backward(osw_chain *chain, void *memory)
{
    assert(osw_chain_holds(chain, false));
    const osw_chain_memory m = place(chain, memory);
    for (int i = 0; i < chain->count; i++) {
        osw_chain_stage *s = &chain->stages[i];
        fold(&chain->links[i], s->outputs);
        s->before = i ? &chain->links[i - 1].norm : NULL;
        s->after = &chain->links[i].norm;
    }
    osw_chain_stage *s = &chain->stages[chain->count - 1];
    run(&(osw_chain_work){.stage = s,
                          .memory = &m,
                          .kernel = chain->kernels[OSW_CHAIN_reduce],
                          .channels = s->outputs,
                          .by_rows = true});
    finish_gradient(&chain->links[chain->count - 1], s->outputs, osw_chain_pixels(s), row_parts(s),
                    m.sums);
    for (int i = chain->count - 1; i >= 0; i--) {
        s = &chain->stages[i];
        pack(chain, s, true, &m);
        run(&(osw_chain_work){.stage = s,
                              .memory = &m,
                              .kernel = chain->kernels[s->depthwise ? OSW_CHAIN_depthwise_backward
                                                                    : OSW_CHAIN_pointwise_backward],
                              .channels = s->channels});
        finish_weight(s, &m, chain->grad_weights[i]);
        if (i)
            finish_gradient(&chain->links[i - 1], s->channels, s->batch * s->height * s->width,
                            s->parts, m.sums);
    }
}
