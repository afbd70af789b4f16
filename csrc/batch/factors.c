/* SPDX-License-Identifier: MIT */
#include "batch/factors.h"
#include "core/half.h"

#include <math.h>

size_t osw_batch_factors_room(int64_t channels)
{
    return (size_t)(channels + OSW_BATCH_REPEAT) * 4 * sizeof(float);
}

osw_batch_factors osw_batch_factors_of(const osw_batch_job *job, bool reversed, float *room)
{
    const int64_t channels = job->channels, count = channels + OSW_BATCH_REPEAT;
    float *mean = room, *std = mean + count, *slope = std + count, *shift = slope + count;
    for (int64_t i = 0; i < count; i++) {
        const int64_t channel = reversed ? channels - 1 - i % channels : i % channels;
        mean[i] = job->mean[channel];
        std[i] = job->std[channel];
        slope[i] = (float)((double)job->scale / std[i]);
        shift[i] = (float)(-(double)mean[i] / std[i]);
    }
    return (osw_batch_factors){channels, job->scale, false, mean, std, slope, shift};
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

bool osw_batch_fusable(const osw_batch_factors *f, osw_batch_dtype to)
{
    for (int64_t c = 0; c < f->channels; c++)
        for (int byte = 0; byte < 256; byte++) {
            const float x = (float)byte, y = (x * f->scale - f->mean[c]) / f->std[c];
            const float fused = fmaf(x, f->slope[c], f->shift[c]);
            if (fused != fused || near_bits(fused, to) != rounded_bits(y, to))
                return false;
        }
    return true;
}
