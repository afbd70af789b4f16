/* SPDX-License-Identifier: MIT */
/* Plain-C kernels where the channels of a position are neighbours; included by scalar_types.h. */

static void KERNEL(sample_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    (void)part;
    const int64_t rows = norm->images * norm->positions, channels = norm->channels;
    const int64_t samples = rows < SAMPLE_ROWS ? rows : SAMPLE_ROWS;
    for (int64_t c = 0; c < channels; c++)
        norm->center[c] = 0;
    for (int64_t i = 0; i < samples; i++) {
        const ELEMENT *x = (const ELEMENT *)norm->x.base + i * rows / samples * channels;
        for (int64_t c = 0; c < channels; c++)
            norm->center[c] += (double)LOAD(x[c]);
    }
    for (int64_t c = 0; c < channels; c++)
        norm->center[c] = (double)(VALUE)(norm->center[c] / (double)samples);
}

static void KERNEL(moments_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    const int64_t channels = norm->channels;
    for (int64_t row = part->begin; row < part->end; row++) {
        const ELEMENT *x = (const ELEMENT *)norm->x.base + row * channels;
        for (int64_t c = 0; c < channels; c++) {
            const double centered = (double)(LOAD(x[c]) - (VALUE)norm->center[c]);
            part->first[c] += centered;
            part->second[c] += centered * centered;
        }
    }
}

static void KERNEL(reduce_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    const int64_t channels = norm->channels;
    for (int64_t row = part->begin; row < part->end; row++) {
        const ELEMENT *x = (const ELEMENT *)norm->x.base + row * channels;
        const ELEMENT *dy = (const ELEMENT *)norm->dy.base + row * channels;
        for (int64_t c = 0; c < channels; c++) {
            const LOCAL(factors) f = LOCAL(factors_of)(norm, c, false);
            const double d = (double)LOCAL(gated)(LOAD(x[c]), LOAD(dy[c]), f, norm->activation);
            part->first[c] += d;
            part->second[c] += d * (double)(LOAD(x[c]) - f.center);
        }
    }
}

static void KERNEL(apply_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    const int64_t channels = norm->channels;
    for (int64_t row = part->begin; row < part->end; row++) {
        const ELEMENT *x = (const ELEMENT *)norm->x.base + row * channels;
        ELEMENT *y = (ELEMENT *)norm->y.base + row * channels;
        for (int64_t c = 0; c < channels; c++)
            y[c] = LOCAL(forward)(x[c], LOCAL(factors_of)(norm, c, false), norm->activation);
    }
}

static void KERNEL(gradient_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    const int64_t channels = norm->channels;
    for (int64_t row = part->begin; row < part->end; row++) {
        const ELEMENT *x = (const ELEMENT *)norm->x.base + row * channels;
        const ELEMENT *dy = (const ELEMENT *)norm->dy.base + row * channels;
        ELEMENT *dx = (ELEMENT *)norm->dx.base + row * channels;
        for (int64_t c = 0; c < channels; c++)
            dx[c] = LOCAL(backward)(x[c], dy[c], LOCAL(factors_of)(norm, c, true), norm->activation,
                             norm->tilt != NULL);
    }
}
