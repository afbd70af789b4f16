/* SPDX-License-Identifier: MIT */
/* Stages of chains. Products and gradients are sums, exact of whole numbers in any order. The
 * moments are about a center that every tier chooses for itself: they are compared with those of
 * the outputs that the kernel has written. */
#include "chain/chain.h"

#include "core/ints.h"
#include "depthwise/depthwise.h"
#include "driver.h"
#include "driver_compare.h"
#include "driver_contract.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, SUM_TERMS = 72 /* roundings of a sum of 64 terms, and of a term */ };

/* Terms of a sum in double of what has roundings of float. */
#define FLOAT_SUM(n) DRIVER_SUM(0x1p29 * (double)(n))

typedef struct job {
    driver *d;
    osw_chain_id id;
    osw_chain_stage stage;
    osw_chain_norm before, after;
    double *first, *second;
    float *center, *weights;
    int64_t sums; /* channels of first and second */
} job;

void driver_chain_run(driver *d); /* of chain_run.c */

/* On magnitudes, whose centers are positive, all terms count: those of z - center are added, and no
 * activation lets one go. */
static osw_chain_norm as_drawn(const osw_chain_norm *n, int64_t channels, float *center)
{
    osw_chain_norm norm = *n;
    if (!(n->center[0] > 0))
        return norm;
    for (int64_t c = 0; c < channels; c++)
        center[c] = -n->center[c];
    norm.center = center;
    norm.activation.kind = OSW_IDENTITY;
    return norm;
}

/* 0 if `got` is the sum but for roundings, or if neither is finite, else how far it is off. */
static double beyond_rounding(double got, double sum, double magnitude)
{
    if (!isfinite(got) || !isfinite(sum))
        return isfinite(got) || isfinite(sum);
    const double allowed = SUM_TERMS * (0x1p-24 * magnitude + 0x1p-149);
    return fabs(got - sum) <= allowed ? 0 : got - sum;
}

/* Replace center, first and second by what is wrong with them, for pixels [begin, end). */
static void judge_moments(const osw_chain_stage *s, const osw_chain_part *part, int64_t begin,
                          int64_t end)
{
    for (int64_t o = 0; o < s->outputs; o++) {
        const double center = (double)part->center[o];
        double sum = 0, size = 0, square = 0, low = INFINITY, high = -INFINITY;
        for (int64_t p = begin; p < end; p++) {
            const double z = (double)s->output[p * s->outputs + o];
            sum += z - center;
            size += fabs(z - center);
            square += (z - center) * (z - center);
            low = z < low ? z : low;
            high = z > high ? z : high;
        }
        const double slack = 0x1p-22 * (fabs(low) + fabs(high));
        const bool amid = center >= low - slack && center <= high + slack;
        part->center[o] = amid || !isfinite(sum) ? 0 : 1;
        part->first[o] = beyond_rounding(part->first[o], sum, size);
        part->second[o] = beyond_rounding(part->second[o], square, square);
    }
}

static void judge(const osw_chain_stage *s, const osw_chain_part *part)
{
    if (!s->depthwise) {
        judge_moments(s, part, part->begin, part->end);
        return;
    }
    const osw_chain_band first = osw_chain_band_at(s, part->begin);
    const osw_chain_band last = osw_chain_band_at(s, part->end - 1);
    judge_moments(s, part, (first.image * s->out_height + first.top) * s->out_width,
                  (last.image * s->out_height + last.bottom) * s->out_width);
}

/* Leave out sums of terms that a float is too short for. */
static void leave_out_subnormal(const osw_chain_part *part, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) {
        if (fabs(part->first[c]) < 0x1p-120)
            part->first[c] = 0;
        if (fabs(part->second[c]) < 0x1p-120)
            part->second[c] = 0;
    }
}

/* The packed weight, as large as it may be; the caller frees it. */
static float *pack(const job *j, osw_chain_fn *const *table, osw_chain_stage *s)
{
    const size_t bytes = (size_t)osw_chain_packed(s) * sizeof(float);
    uint8_t *const packed = malloc(bytes + GUARD);
    if (!packed)
        abort();
    memset(packed + bytes, GUARD, GUARD);
    s->packed = (float *)(void *)packed;
    s->packs_backward = j->id == OSW_CHAIN_pointwise_backward;
    table[OSW_CHAIN_pack](s, NULL);
    for (int i = 0; i < GUARD; i++)
        if (packed[bytes + (size_t)i] != GUARD)
            driver_report(j->d, "written %d bytes behind the packed weight", i + 1);
    return s->packed;
}

static bool is_by_rows(osw_chain_id id)
{
    return id == OSW_CHAIN_reduce || id == OSW_CHAIN_apply;
}

static void do_units(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    osw_chain_fn *const *kernels = table;
    osw_chain_stage s = j->stage;
    float *const centers = malloc(2 * OSW_CHAIN_MOST_CHANNELS * sizeof *centers);
    if (!centers)
        abort();
    osw_chain_norm before, after;
    if (s.before) {
        before = as_drawn(&j->before, s.channels, centers);
        s.before = &before;
    }
    if (s.after) {
        after = as_drawn(&j->after, s.outputs, centers + OSW_CHAIN_MOST_CHANNELS);
        s.after = &after;
    }
    float *const packed = s.depthwise || is_by_rows(j->id) ? NULL : pack(j, kernels, &s);
    for (int64_t i = begin; i < end; i++) {
        osw_chain_part part = osw_chain_part_at(&s, i);
        part.center = j->center ? j->center + i * s.outputs : NULL;
        part.weights = j->weights ? j->weights + i * osw_chain_weights(&s) : NULL;
        part.first = j->first ? j->first + i * j->sums : NULL;
        part.second = j->second ? j->second + i * j->sums : NULL;
        kernels[j->id](&s, &part);
        if (j->center && !j->d->timed)
            judge(&s, &part);
        else if (j->first)
            leave_out_subnormal(&part, j->sums);
    }
    free(packed);
    free(centers);
}

/* A factor per channel: small whole numbers, or others of at least 1/4. */
static float *factors(driver *d, int64_t count, bool positive)
{
    float *values = driver_input(d, DRIVER_F32, count);
    for (int64_t i = 0; i < count; i++) {
        const float size = d->values == DRIVER_WHOLE
                               ? (float)(1 + driver_below(2))
                               : 0.25f + (float)driver_below(1 << 20) * 0x1p-20f;
        values[i] = positive || driver_below(2) ? size : -size;
    }
    driver_keep(d, values);
    return values;
}

/* Centers are below zero, so that magnitudes are told apart. */
static osw_chain_norm draw_norm(driver *d, int64_t channels, bool gradients)
{
    static const osw_activation kinds[] = {{.kind = OSW_IDENTITY},
                                           {.kind = OSW_RELU},
                                           {.kind = OSW_HARDTANH, .a = 0, .b = 6},
                                           {.kind = OSW_HARDTANH, .a = -1, .b = 2},
                                           {.kind = OSW_HARDSWISH}};
    osw_chain_norm n = {.center = factors(d, channels, true),
                        .scale = factors(d, channels, false),
                        .shift = factors(d, channels, false)};
    /* Hardswish divides: it is not exact. */
    n.activation = kinds[driver_below(d->values == DRIVER_WHOLE ? 4 : 5)];
    for (int64_t c = 0; c < channels; c++)
        n.center[c] = -n.center[c];
    driver_keep(d, n.center);
    if (gradients) {
        n.tilt = factors(d, channels, false);
        n.offset = factors(d, channels, false);
    }
    return n;
}

/* Move values away from where the slope of the activation jumps, which roundings may pass. */
static void keep_off_jumps(driver *d, float *z, int64_t count, int64_t channels,
                           const osw_chain_norm *n)
{
    const osw_activation *f = &n->activation;
    const double low = f->kind == OSW_HARDSWISH ? -3 : f->kind == OSW_HARDTANH ? f->a : 0;
    const double high = f->kind == OSW_HARDSWISH ? 3 : f->kind == OSW_HARDTANH ? f->b : 0;
    if (d->values == DRIVER_WHOLE || f->kind == OSW_IDENTITY)
        return;
    for (int64_t i = 0; i < count; i++) {
        const int64_t c = i % channels;
        for (int tries = 0; tries < 4; tries++) {
            const double x =
                ((double)z[i] - (double)n->center[c]) * (double)n->scale[c] + (double)n->shift[c];
            if (fabs(x - low) < 0.01 || fabs(x - high) < 0.01)
                z[i] += 0.125f;
        }
    }
    driver_keep(d, z);
}

/* A channel count around the lanes of all tiers, a prime, or one that products cut. */
static int64_t draw_width(void)
{
    static const int64_t widths[] = {16, 17, 31, 32, 33, 47, 58, 61, 97, 127, 131, 300, 1024};
    return widths[driver_below(sizeof widths / sizeof *widths)];
}

/* Shorter blocks and bands, and more parts, than the sizes alone would have. */
static void cut(osw_chain_stage *s)
{
    osw_chain_cut(s);
    if (s->depthwise && driver_below(2))
        s->bands += driver_below(s->out_height - s->bands + 1);
    if (!s->depthwise && driver_below(2))
        s->block = 1 + driver_below(s->block);
    if (!s->depthwise && driver_below(2))
        s->crossed = !s->crossed;
    const int64_t total = s->depthwise ? s->batch * s->bands : osw_chain_pixels(s);
    if (driver_below(2))
        s->length = osw_max_int(osw_ceil(total, 5), 1 + driver_below(total));
    else
        s->length = osw_ceil(total, s->parts);
    s->parts = osw_ceil(total, s->length);
}

static osw_chain_stage draw_pointwise(const driver *d, bool large)
{
    enum { PRODUCTS = 300000, LARGE = 13000 };
    osw_chain_stage s = {.side = 1, .stride = 1, .batch = 1, .height = 1};
    do {
        s.channels = large ? 17 : draw_width();
        s.outputs = large ? 16 : draw_width();
    } while (!osw_chain_fits(&s, false));
    const int64_t most = osw_max_int(PRODUCTS / (s.channels * s.outputs), 2);
    s.width = large ? LARGE : driver_below(8) ? 1 + driver_below(most) : 1;
    if (d->timed) {
        s.channels = s.outputs = 116;
        s.width = 8 * 28 * 28;
    }
    s.out_height = s.height;
    s.out_width = s.width;
    cut(&s);
    return s;
}

static osw_chain_stage draw_depthwise(const driver *d)
{
    osw_chain_stage s = {.depthwise = true, .batch = 1 + driver_below(3)};
    s.side = driver_below(2) ? 3 : 5;
    s.stride = 1 + driver_below(2);
    s.channels = s.outputs = d->timed ? 116 : draw_width();
    s.height = d->timed ? 28 : 1 + driver_below(s.channels > 99 ? 9 : 19);
    s.width = d->timed ? 28 : 1 + driver_below(s.channels > 99 ? 7 : 23);
    s.out_height = (s.height - 1) / s.stride + 1;
    do {
        s.out_width = (s.width - 1) / s.stride + 1;
    } while (!osw_chain_fits(&s, false) && --s.width);
    assert(osw_chain_fits(&s, false));
    cut(&s);
    return s;
}

/* One side of a window and of its image, of zeros around it and of its outputs. */
static void draw_side(int64_t *image, int64_t *window, int64_t *stride, int64_t *zeros,
                      int64_t *outputs)
{
    *window = 1 + driver_below(driver_below(4) ? 3 : 13);
    *stride = 1 + driver_below(3);
    *zeros = driver_below(*window);
    *image = osw_max_int(*window - 2 * *zeros, 1) + driver_below(12);
    *outputs = (*image + 2 * *zeros - *window) / *stride + 1;
}

static osw_chain_stage draw_dense(const driver *d)
{
    enum { WEIGHTS = 100000 };
    osw_chain_stage s = {.dense = true, .batch = 1};
    osw_chain_window *w = &s.window;
    do {
        s.outputs = draw_width();
        s.channels = driver_below(2) ? draw_width() : 1 + driver_below(20);
        draw_side(&s.height, &w->height, &w->stride_y, &w->top, &s.out_height);
        draw_side(&s.width, &w->width, &w->stride_x, &w->left, &s.out_width);
        if (d->timed) {
            *w = (osw_chain_window){3, 3, 1, 1, 1, 1};
            s.channels = s.outputs = 64;
            s.height = s.width = s.out_height = s.out_width = 28;
        }
    } while (osw_chain_weights(&s) > WEIGHTS || !osw_chain_fits(&s, true));
    osw_chain_cut(&s);
    if (driver_below(2) && !d->timed)
        s.block = 1 + driver_below(s.block);
    return s;
}

static void name_case(driver *d, const char *name, const osw_chain_stage *s)
{
    driver_case(
        d, name,
        "%lld x %lld x %lld, channels %lld to %lld, window %lld x %lld, stride %lld x %lld, "
        "%lld bands, block %lld, %lld parts",
        (long long)s->batch, (long long)s->height, (long long)s->width, (long long)s->channels,
        (long long)s->outputs, (long long)(s->dense ? s->window.height : s->side),
        (long long)(s->dense ? s->window.width : s->side),
        (long long)(s->dense ? s->window.stride_y : s->stride),
        (long long)(s->dense ? s->window.stride_x : s->stride), (long long)s->bands,
        (long long)s->block, (long long)s->parts);
}

/* Weight, input, and perhaps a normalisation before. Returns the terms of an output. */
static int64_t draw_inputs(driver *d, job *j)
{
    osw_chain_stage *s = &j->stage;
    const int64_t inputs = s->batch * s->height * s->width * s->channels;
    s->weight = driver_input(d, DRIVER_F32, osw_chain_weights(s));
    float *input = driver_input(d, DRIVER_F32, inputs);
    s->input = input;
    if (driver_below(3)) {
        j->before = draw_norm(d, s->channels, false);
        s->before = &j->before;
        keep_off_jumps(d, input, inputs, s->channels, s->before);
    }
    return 8 + (s->depthwise ? s->side * s->side : s->channels);
}

static void check_forward(driver *d, const char *name, job *j)
{
    osw_chain_stage *s = &j->stage;
    name_case(d, name, s);
    const int64_t terms = draw_inputs(d, j);
    j->sums = s->outputs;
    s->output = driver_output(d, DRIVER_F32, osw_chain_pixels(s) * s->outputs, DRIVER_SUM(terms));
    j->center = driver_output(d, DRIVER_F32, s->parts * s->outputs, DRIVER_EXACT);
    j->first = driver_output(d, DRIVER_F64, s->parts * s->outputs, DRIVER_EXACT);
    j->second = driver_output(d, DRIVER_F64, s->parts * s->outputs, DRIVER_EXACT);
    driver_run(d, do_units, j, s->parts);
}

/* z and its gradient, and the normalisation after. */
static void draw_outputs(driver *d, job *j, bool gradients)
{
    osw_chain_stage *s = &j->stage;
    const int64_t outputs = osw_chain_pixels(s) * s->outputs;
    s->output = driver_input(d, DRIVER_F32, outputs);
    s->grad = driver_input(d, DRIVER_F32, outputs);
    j->after = draw_norm(d, s->outputs, gradients);
    s->after = &j->after;
    keep_off_jumps(d, s->output, outputs, s->outputs, s->after);
}

static void check_backward(driver *d, const char *name, job *j)
{
    osw_chain_stage *s = &j->stage;
    name_case(d, name, s);
    draw_inputs(d, j);
    draw_outputs(d, j, true);
    const int64_t inputs = s->batch * s->height * s->width * s->channels;
    const int64_t terms = 8 + (s->depthwise ? s->side * s->side : s->outputs);
    j->sums = s->channels;
    j->weights = driver_output(d, DRIVER_F32, s->parts * osw_chain_weights(s),
                               DRIVER_SUM(osw_chain_pixels(s) + 16));
    if (driver_below(3))
        s->grad_input = driver_output(d, DRIVER_F32, inputs, DRIVER_SUM(terms));
    if (s->grad_input && s->before) {
        const driver_error error = FLOAT_SUM(terms + SUM_TERMS);
        j->first = driver_output(d, DRIVER_F64, s->parts * s->channels, error);
        j->second = driver_output(d, DRIVER_F64, s->parts * s->channels, error);
    }
    driver_run(d, do_units, j, s->parts);
}

static void check_rows(driver *d, const char *name, job *j)
{
    osw_chain_stage *s = &j->stage;
    const bool sums = j->id == OSW_CHAIN_reduce;
    name_case(d, name, s);
    draw_outputs(d, j, false);
    j->sums = s->outputs;
    if (sums) {
        j->first = driver_output(d, DRIVER_F64, s->parts * s->outputs, FLOAT_SUM(SUM_TERMS));
        j->second = driver_output(d, DRIVER_F64, s->parts * s->outputs, FLOAT_SUM(SUM_TERMS));
    } else {
        s->normal = driver_output(d, DRIVER_F32, osw_chain_pixels(s) * s->outputs, DRIVER_SUM(8));
    }
    driver_run(d, do_units, j, s->parts);
}

/* Of one image; a part of a depthwise convolution is a few rows. */
static void check_folded(driver *d, const char *name, job *j)
{
    osw_chain_stage *s = &j->stage;
    if (s->depthwise || s->dense) {
        s->batch = 1;
        s->bands = s->out_height;
        s->length = 1 + driver_below(s->out_height);
        s->parts = osw_ceil(s->out_height, s->length);
    }
    name_case(d, name, s);
    s->weight = driver_input(d, DRIVER_F32, osw_chain_weights(s));
    s->input = driver_input(d, DRIVER_F32, s->batch * s->height * s->width * s->channels);
    j->after = draw_norm(d, s->outputs, false);
    s->after = &j->after;
    s->output =
        driver_output(d, DRIVER_F32, osw_chain_pixels(s) * s->outputs,
                      DRIVER_SUM(8 + (s->depthwise ? s->side * s->side : osw_chain_terms(s))));
    driver_run(d, do_units, j, s->parts);
}

static void check_one(driver *d, const char *name, osw_chain_id id, bool large)
{
    const bool dense = id == OSW_CHAIN_dense_folded;
    const bool folded =
        dense || id == OSW_CHAIN_pointwise_folded || id == OSW_CHAIN_depthwise_folded;
    const bool wide = id == OSW_CHAIN_depthwise_forward || id == OSW_CHAIN_depthwise_backward ||
                      id == OSW_CHAIN_depthwise_folded;
    job j = {.d = d, .id = id};
    j.stage = wide ? draw_depthwise(d) : dense ? draw_dense(d) : draw_pointwise(d, large);
    if (folded)
        check_folded(d, name, &j);
    else if (is_by_rows(id))
        check_rows(d, name, &j);
    else if (id == OSW_CHAIN_pointwise_backward || id == OSW_CHAIN_depthwise_backward)
        check_backward(d, name, &j);
    else
        check_forward(d, name, &j);
}

/* `pack` is checked by what the products make of it. */
static void check_variant(driver *d, const char *name, osw_chain_id id)
{
    const int cases = id == OSW_CHAIN_pack ? 0 : d->timed ? 1 : d->quick ? 9 : 60;
    for (int i = 0; i < cases; i++) {
        d->values = (driver_values)(i % 3);
        check_one(d, name, id, !d->quick && i >= cases - 3);
    }
}

static void check(driver *d)
{
    osw_depthwise_select(d->tier);
#define X(operation) check_variant(d, #operation, OSW_CHAIN_##operation);
    OSW_CHAIN_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_chain_run(d);
}

extern const driver_contract driver_chain_contract;
const driver_family driver_chain = {"chain",         osw_chain_select,
                                    osw_chain_table, sizeof osw_chain_table,
                                    check,           &driver_chain_contract};
