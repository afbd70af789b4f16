/* SPDX-License-Identifier: MIT */
/* Every operation of chain.h in plain loops; sums of any number of terms are of doubles. */
#include "chain/chain.h"
#include "norm/scalar_smooth.h"

#include <math.h>
#include <string.h>

#define TIER   scalar
#define FLOATS OSW_EACH_F32
#define EACH   "norm/scalar_activation.inc"
#include "core/each_float.h"

static float normal(float z, int64_t c, const osw_chain_norm *n)
{
    return (z - n->center[c]) * n->scale[c] + n->shift[c];
}

/* x of channel c; at: place in the input. */
static float x_at(const osw_chain_stage *s, int64_t at, int64_t c)
{
    const float z = s->input[at];
    return s->before ? activate_f32(normal(z, c, s->before), s->before->activation) : z;
}

static float dz_at(const osw_chain_stage *s, int64_t pixel, int64_t o)
{
    const osw_chain_norm *n = s->after;
    const float z = s->output[pixel * s->outputs + o], d = s->grad[pixel * s->outputs + o];
    return gate_f32(d, normal(z, o, n), n->activation) * n->scale[o] +
           (z - n->center[o]) * n->tilt[o] + n->offset[o];
}

/* center, first and second of outputs [begin, end), pixels. */
static void sum_outputs(const osw_chain_stage *s, const osw_chain_part *part, int64_t begin,
                        int64_t end)
{
    for (int64_t o = 0; o < s->outputs; o++) {
        const float value = s->output[begin * s->outputs + o], center = isfinite(value) ? value : 0;
        double first = 0, second = 0;
        for (int64_t p = begin; p < end; p++) {
            const double far = (double)s->output[p * s->outputs + o] - (double)center;
            first += far;
            second += far * far;
        }
        part->center[o] = center;
        part->first[o] = first;
        part->second[o] = second;
    }
}

/* first and second of the gradient at pixels [begin, end) of z, added; d gets the gradient there.
 */
static void sum_gradient(const float *z, const float *grad, int64_t channels, int64_t begin,
                         int64_t end, const osw_chain_norm *n, const osw_chain_part *part)
{
    for (int64_t p = begin; p < end; p++) {
        for (int64_t c = 0; c < channels; c++) {
            const float value = z[p * channels + c];
            const float d = gate_f32(grad[p * channels + c], normal(value, c, n), n->activation);
            part->first[c] += (double)d;
            part->second[c] += (double)d * ((double)value - (double)n->center[c]);
        }
    }
}

static void clear_sums(const osw_chain_part *part, int64_t channels)
{
    memset(part->first, 0, (size_t)channels * sizeof *part->first);
    memset(part->second, 0, (size_t)channels * sizeof *part->second);
}

static void osw_chain_pack__scalar(const osw_chain_stage *s, const osw_chain_part *part)
{
    (void)part; /* the kernels of training read the weight as it is */
    memcpy(s->packed, s->weight, (size_t)osw_chain_weights(s) * sizeof *s->packed);
}

static void osw_chain_pointwise_forward__scalar(const osw_chain_stage *s,
                                                const osw_chain_part *part)
{
    for (int64_t p = part->begin; p < part->end; p++) {
        for (int64_t o = 0; o < s->outputs; o++) {
            double sum = 0;
            for (int64_t c = 0; c < s->channels; c++)
                sum += (double)(x_at(s, p * s->channels + c, c) * s->weight[o * s->channels + c]);
            s->output[p * s->outputs + o] = (float)sum;
        }
    }
    sum_outputs(s, part, part->begin, part->end);
}

static void osw_chain_pointwise_backward__scalar(const osw_chain_stage *s,
                                                 const osw_chain_part *part)
{
    const int64_t channels = s->channels;
    for (int64_t o = 0; o < s->outputs; o++) {
        for (int64_t c = 0; c < channels; c++) {
            double sum = 0;
            for (int64_t p = part->begin; p < part->end; p++)
                sum += (double)(dz_at(s, p, o) * x_at(s, p * channels + c, c));
            part->weights[s->crossed ? c * s->outputs + o : o * channels + c] = (float)sum;
        }
    }
    for (int64_t p = part->begin; s->grad_input && p < part->end; p++) {
        for (int64_t c = 0; c < channels; c++) {
            double sum = 0;
            for (int64_t o = 0; o < s->outputs; o++)
                sum += (double)(dz_at(s, p, o) * s->weight[o * channels + c]);
            s->grad_input[p * channels + c] = (float)sum;
        }
    }
    if (!s->grad_input || !s->before)
        return;
    clear_sums(part, channels);
    sum_gradient(s->input, s->grad_input, channels, part->begin, part->end, s->before, part);
}

/* The place in the input under tap t of output pixel (i, j) of image n, or -1: outside. */
static int64_t under(const osw_chain_stage *s, int64_t n, int64_t i, int64_t j, int64_t t)
{
    const int64_t y = i * s->stride + t / s->side - s->side / 2;
    const int64_t x = j * s->stride + t % s->side - s->side / 2;
    if (y < 0 || y >= s->height || x < 0 || x >= s->width)
        return -1;
    return ((n * s->height + y) * s->width + x) * s->channels;
}

static void osw_chain_depthwise_forward__scalar(const osw_chain_stage *s,
                                                const osw_chain_part *part)
{
    const int64_t channels = s->channels, image = s->out_height * s->out_width;
    int64_t begin = 0, end = 0;
    for (int64_t b = part->begin; b < part->end; b++) {
        const osw_chain_band band = osw_chain_band_at(s, b);
        end = band.image * image + band.bottom * s->out_width;
        if (b == part->begin)
            begin = band.image * image + band.top * s->out_width;
    }
    for (int64_t p = begin; p < end; p++) {
        const int64_t n = p / image, i = p % image / s->out_width, j = p % s->out_width;
        for (int64_t c = 0; c < channels; c++) {
            float sum = 0;
            for (int64_t t = 0; t < s->side * s->side; t++) {
                const int64_t at = under(s, n, i, j, t);
                if (at >= 0)
                    sum += x_at(s, at + c, c) * s->weight[t * channels + c];
            }
            s->output[p * channels + c] = sum;
        }
    }
    sum_outputs(s, part, begin, end);
}

/* Adds to the sums of all taps what output pixel p has to do with them. */
static void add_weights(const osw_chain_stage *s, int64_t n, int64_t i, int64_t j, float *weights)
{
    const int64_t pixel = (n * s->out_height + i) * s->out_width + j;
    for (int64_t t = 0; t < s->side * s->side; t++) {
        const int64_t at = under(s, n, i, j, t);
        for (int64_t c = 0; at >= 0 && c < s->channels; c++)
            weights[t * s->channels + c] += dz_at(s, pixel, c) * x_at(s, at + c, c);
    }
}

/* The gradient of x at pixel (y, x) of image n. */
static void find_gradient(const osw_chain_stage *s, int64_t n, int64_t y, int64_t x)
{
    const int64_t channels = s->channels, here = ((n * s->height + y) * s->width + x) * channels;
    memset(s->grad_input + here, 0, (size_t)channels * sizeof(float));
    for (int64_t t = 0; t < s->side * s->side; t++) {
        const int64_t i = y + s->side / 2 - t / s->side, j = x + s->side / 2 - t % s->side;
        if (i < 0 || j < 0 || i % s->stride || j % s->stride || i / s->stride >= s->out_height ||
            j / s->stride >= s->out_width)
            continue;
        const int64_t pixel = (n * s->out_height + i / s->stride) * s->out_width + j / s->stride;
        for (int64_t c = 0; c < channels; c++)
            s->grad_input[here + c] += dz_at(s, pixel, c) * s->weight[t * channels + c];
    }
}

static void osw_chain_depthwise_backward__scalar(const osw_chain_stage *s,
                                                 const osw_chain_part *part)
{
    memset(part->weights, 0, (size_t)osw_chain_weights(s) * sizeof(float));
    if (s->grad_input && s->before)
        clear_sums(part, s->channels);
    for (int64_t b = part->begin; b < part->end; b++) {
        const osw_chain_band band = osw_chain_band_at(s, b);
        for (int64_t i = band.top; i < band.bottom; i++)
            for (int64_t j = 0; j < s->out_width; j++)
                add_weights(s, band.image, i, j, part->weights);
        if (!s->grad_input)
            continue;
        for (int64_t y = band.in_top; y < band.in_bottom; y++)
            for (int64_t x = 0; x < s->width; x++)
                find_gradient(s, band.image, y, x);
        const int64_t first = band.image * s->height * s->width;
        if (s->before)
            sum_gradient(s->input, s->grad_input, s->channels, first + band.in_top * s->width,
                         first + band.in_bottom * s->width, s->before, part);
    }
}

static void osw_chain_reduce__scalar(const osw_chain_stage *s, const osw_chain_part *part)
{
    clear_sums(part, s->outputs);
    sum_gradient(s->output, s->grad, s->outputs, part->begin, part->end, s->after, part);
}

static void osw_chain_apply__scalar(const osw_chain_stage *s, const osw_chain_part *part)
{
    const osw_chain_norm *n = s->after;
    for (int64_t i = part->begin * s->outputs; i < part->end * s->outputs; i++)
        s->normal[i] = activate_f32(normal(s->output[i], i % s->outputs, n), n->activation);
}

static void osw_chain_pointwise_folded__scalar(const osw_chain_stage *s, const osw_chain_part *part)
{
    for (int64_t p = part->begin; p < part->end; p++) {
        for (int64_t o = 0; o < s->outputs; o++) {
            double sum = (double)s->after->shift[o];
            for (int64_t c = 0; c < s->channels; c++)
                sum += (double)(s->input[p * s->channels + c] * s->packed[o * s->channels + c]);
            s->output[p * s->outputs + o] = activate_f32((float)sum, s->after->activation);
        }
    }
}

static void osw_chain_depthwise_folded__scalar(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t channels = s->channels;
    for (int64_t p = part->begin * s->out_width; p < part->end * s->out_width; p++) {
        for (int64_t c = 0; c < channels; c++) {
            float sum = s->after->shift[c];
            for (int64_t t = 0; t < s->side * s->side; t++) {
                const int64_t at = under(s, 0, p / s->out_width, p % s->out_width, t);
                if (at >= 0)
                    sum += s->input[at + c] * s->weight[t * channels + c];
            }
            s->output[p * channels + c] = activate_f32(sum, s->after->activation);
        }
    }
}

/* Output o of pixel (i, j). */
static float dense_at(const osw_chain_stage *s, int64_t i, int64_t j, int64_t o)
{
    const osw_chain_window *w = &s->window;
    const float *weight = s->packed + o * osw_chain_terms(s);
    double sum = (double)s->after->shift[o];
    for (int64_t t = 0; t < w->height * w->width; t++) {
        const int64_t y = i * w->stride_y - w->top + t / w->width;
        const int64_t x = j * w->stride_x - w->left + t % w->width;
        const bool inside = y >= 0 && y < s->height && x >= 0 && x < s->width;
        for (int64_t c = 0; c < s->channels; c++) {
            const float value = inside ? s->input[(y * s->width + x) * s->channels + c] : 0;
            sum += (double)(value * weight[t * s->channels + c]);
        }
    }
    return (float)sum;
}

static void osw_chain_dense_folded__scalar(const osw_chain_stage *s, const osw_chain_part *part)
{
    for (int64_t p = part->begin * s->out_width; p < part->end * s->out_width; p++)
        for (int64_t o = 0; o < s->outputs; o++)
            s->output[p * s->outputs + o] = activate_f32(
                dense_at(s, p / s->out_width, p % s->out_width, o), s->after->activation);
}

#define FILL(operation) table[OSW_CHAIN_##operation] = osw_chain_##operation##__scalar;

void osw_chain_fill__scalar(osw_chain_fn **table)
{
    OSW_CHAIN_VARIANTS(FILL)
}
