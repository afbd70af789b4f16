/* SPDX-License-Identifier: MIT */
/* Plain-C kernels where the positions of a channel are neighbours; included by scalar_types.h. */

static inline int64_t LOCAL(plane_at)(const osw_norm *norm, const osw_norm_tensor *t, int64_t image,
                               int64_t channel)
{
    return image * t->image_step + channel * norm->positions;
}

static void KERNEL(sample_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    const ELEMENT *x = norm->x.base;
    const int64_t images = norm->images < SAMPLES ? norm->images : SAMPLES;
    const int64_t positions = norm->positions < SAMPLES ? norm->positions : SAMPLES;
    for (int64_t c = part->channel_begin; c < part->channel_end; c++) {
        double sum = 0;
        for (int64_t i = 0; i < images; i++) {
            const int64_t image = i * norm->images / images;
            const ELEMENT *plane = x + LOCAL(plane_at)(norm, &norm->x, image, c);
            for (int64_t p = 0; p < positions; p++)
                sum += (double)LOAD(plane[p]);
        }
        norm->center[c] = (double)(VALUE)(sum / (double)(images * positions));
    }
}

/* first[lane] += a, second[lane] += a * (x - center), lanes taken in turn; a is x - center without
 * dy, else d. */
static inline void LOCAL(sum_plane)(const ELEMENT *x, const ELEMENT *dy, int64_t positions,
                                    LOCAL(factors) f,
                             osw_activation activation, double *first, double *second)
{
    for (int64_t p = 0; p < positions; p += LANES) {
        const int64_t lanes = positions - p < LANES ? positions - p : LANES;
        for (int64_t i = 0; i < lanes; i++) {
            const VALUE value = LOAD(x[p + i]);
            const double centered = (double)(value - f.center);
            const double a = dy ? (double)LOCAL(gated)(value, LOAD(dy[p + i]), f, activation) : centered;
            first[i] += a;
            second[i] += a * centered;
        }
    }
}

static inline void
LOCAL(sum_planes)(const osw_norm *norm, const osw_norm_part *part, const ELEMENT *dy)
{
    const ELEMENT *x = norm->x.base;
    for (int64_t c = part->channel_begin; c < part->channel_end; c++) {
        double first[LANES] = {0}, second[LANES] = {0};
        LOCAL(factors) f = {.center = (VALUE)norm->center[c]};
        if (dy)
            f = LOCAL(factors_of)(norm, c, false);
        for (int64_t n = part->begin; n < part->end; n++)
            LOCAL(
                sum_plane)(x + LOCAL(plane_at)(norm, &norm->x, n, c),
                      dy ? dy + LOCAL(plane_at)(norm, &norm->dy, n, c) : NULL, norm->positions, f,
                      norm->activation, first, second);
        for (int i = 0; i < LANES; i++) {
            part->first[c] += first[i];
            part->second[c] += second[i];
        }
    }
}

static void KERNEL(moments_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    LOCAL(sum_planes)(norm, part, NULL);
}

static void KERNEL(reduce_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    LOCAL(sum_planes)(norm, part, norm->dy.base);
}

static void KERNEL(apply_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    for (int64_t n = part->begin; n < part->end; n++)
        for (int64_t c = part->channel_begin; c < part->channel_end; c++) {
            const ELEMENT *x = (const ELEMENT *)norm->x.base +
                               LOCAL(plane_at)(norm, &norm->x, n, c);
            ELEMENT *y = (ELEMENT *)norm->y.base + LOCAL(plane_at)(norm, &norm->y, n, c);
            const LOCAL(factors) f = LOCAL(factors_of)(norm, c, false);
            for (int64_t p = 0; p < norm->positions; p++)
                y[p] = LOCAL(forward)(x[p], f, norm->activation);
        }
}

static void KERNEL(gradient_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    for (int64_t n = part->begin; n < part->end; n++)
        for (int64_t c = part->channel_begin; c < part->channel_end; c++) {
            const ELEMENT *x = (const ELEMENT *)norm->x.base +
                               LOCAL(plane_at)(norm, &norm->x, n, c);
            const ELEMENT *dy = (const ELEMENT *)norm->dy.base +
                                LOCAL(plane_at)(norm, &norm->dy, n, c);
            ELEMENT *dx = (ELEMENT *)norm->dx.base + LOCAL(plane_at)(norm, &norm->dx, n, c);
            const LOCAL(factors) f = LOCAL(factors_of)(norm, c, true);
            for (int64_t p = 0; p < norm->positions; p++)
                dx[p] = LOCAL(backward)(x[p], dy[p], f, norm->activation, norm->tilt != NULL);
        }
}
