/* SPDX-License-Identifier: MIT */
#include "batch/factors.h"
#include "core/half.h"

#include <math.h>

size_t osw_batch_factors_room(int64_t channels)
{
    return (size_t)(channels + OSW_BATCH_REPEAT) * 5 * sizeof(float);
}

osw_batch_factors osw_batch_factors_of(const osw_batch_job *job, bool reversed, float *room)
{
    const int64_t channels = job->channels, count = channels + OSW_BATCH_REPEAT;
    float *mean = room, *std = mean + count, *inverse = std + count;
    float *slope = inverse + count, *shift = slope + count;
    for (int64_t i = 0; i < count; i++) {
        const int64_t channel = reversed ? channels - 1 - i % channels : i % channels;
        mean[i] = job->mean[channel];
        std[i] = job->std[channel];
        inverse[i] = 1 / std[i];
        slope[i] = (float)((double)job->scale / std[i]);
        shift[i] = (float)(-(double)mean[i] / std[i]);
    }
    return (osw_batch_factors){channels, job->scale, OSW_BATCH_DIVIDED, mean, std, inverse,
                               slope,    shift};
}

static uint32_t rounded_bits(float y, osw_batch_dtype to)
{
    if (to == OSW_BATCH_F32)
        return osw_bits_of_float(y);
    return to == OSW_BATCH_BF16 ? osw_bf16_of_float(y) : osw_f16_of_float(y);
}

/* As store_near of core/simd.h rounds. */
static uint32_t near_bits(float y, osw_batch_dtype to)
{
    return to == OSW_BATCH_BF16 ? (osw_bits_of_float(y) + 0x8000) >> 16 : rounded_bits(y, to);
}

static float in_form(const osw_batch_factors *f, int64_t c, float x, osw_batch_form form)
{
    if (form == OSW_BATCH_FUSED)
        return fmaf(x, f->slope[c], f->shift[c]);
    const float d = x * f->scale - f->mean[c], q = d * f->inverse[c];
    return fmaf(fmaf(-q, f->std[c], d), f->inverse[c], q);
}

static bool has_same_bits(const osw_batch_factors *f, osw_batch_dtype to, osw_batch_form form)
{
    for (int64_t c = 0; c < f->channels; c++)
        for (int byte = 0; byte < 256; byte++) {
            const float x = (float)byte, y = (x * f->scale - f->mean[c]) / f->std[c];
            const float z = in_form(f, c, x, form);
            if (z != z || near_bits(z, to) != rounded_bits(y, to))
                return false;
        }
    return true;
}

osw_batch_form osw_batch_form_of(const osw_batch_factors *f, osw_batch_dtype to)
{
    if (has_same_bits(f, to, OSW_BATCH_FUSED))
        return OSW_BATCH_FUSED;
    return has_same_bits(f, to, OSW_BATCH_CORRECTED) ? OSW_BATCH_CORRECTED : OSW_BATCH_DIVIDED;
}
