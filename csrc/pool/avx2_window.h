/* SPDX-License-Identifier: MIT */
/* What max over pixels needs whatever the dtype; included by pool_avx2.c inside its target region.
 */

enum { MAX_TAPS = 64 };

/* The valid taps of one window: where channel 0 of each lies. */
typedef struct osw_window {
    int count;
    const void *at[MAX_TAPS];
    int32_t tap[MAX_TAPS];
} osw_window;

/* The windows that one position of the input belongs to, in the order of the output. */
typedef struct osw_sources {
    int count;
    const void *gradient[MAX_TAPS];
    const uint8_t *taps[MAX_TAPS];
    int32_t tap[MAX_TAPS];
} osw_sources;

/* Dilated windows may have no valid tap. */
static inline bool fits_window(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        if (dims[i].dilation != 1 || dims[i].kernel > MAX_TAPS)
            return false;
    const int64_t step = pool->channel_step;
    return dims[DEPTH].kernel * dims[HEIGHT].kernel * dims[WIDTH].kernel <= MAX_TAPS &&
           (step == 1 || step == 2 || step == 4) && pool->channels >= LANES && !pool->wide;
}

static inline void set_window(osw_window *window, const osw_pool *pool, osw_span depth,
                              osw_span height, int64_t w, const char *image, int64_t element)
{
    const osw_span width = osw_taps(&pool->dims[WIDTH], w);
    const int64_t step = pool->input.pixel_step * element;
    int count = 0;
    for (int64_t d = depth.first; d < depth.end; d++) {
        for (int64_t h = height.first; h < height.end; h++) {
            const char *row =
                image +
                osw_input_position(pool, depth.start + d, height.start + h, width.start) * step;
            const int32_t tap = osw_tap(pool, d, h, 0);
            for (int64_t k = width.first; k < width.end; k++) {
                window->at[count] = row + k * step;
                window->tap[count++] = tap + (int32_t)k;
            }
        }
    }
    window->count = count;
}

static inline void set_sources(osw_sources *sources, const osw_pool *pool, const osw_row *row,
                               int64_t w, int64_t element)
{
    const osw_pool_dim *dims = pool->dims;
    const osw_range range = {
        osw_ceil_div(w + dims[WIDTH].padding - dims[WIDTH].kernel + 1, dims[WIDTH].stride),
        osw_min(dims[WIDTH].output, (w + dims[WIDTH].padding) / dims[WIDTH].stride + 1)};
    int count = 0;
    for (int64_t d = dims[DEPTH].kernel - 1; d >= 0; d--) {
        const int64_t od = osw_output_of(&dims[DEPTH], row->depth, d);
        for (int64_t h = dims[HEIGHT].kernel - 1; od >= 0 && h >= 0; h--) {
            const int64_t oh = osw_output_of(&dims[HEIGHT], row->height, h);
            for (int64_t ow = range.first; oh >= 0 && ow < range.end; ow++) {
                const int64_t position = osw_output_position(pool, od, oh, ow);
                const int64_t k = w + dims[WIDTH].padding - ow * dims[WIDTH].stride;
                sources->gradient[count] =
                    (const char *)pool->grad_output.base +
                    osw_place(&pool->grad_output, row->image, 0, position) * element;
                sources->taps[count] = (const uint8_t *)pool->offsets.base +
                                       osw_place(&pool->offsets, row->image, 0, position);
                sources->tap[count++] = osw_tap(pool, d, h, k);
            }
        }
    }
    sources->count = count;
}

/* Lanes back in order after loads with a step. */
OSW_INLINE void restore(osw_best *best, const int step)
{
    if (step == 1)
        return;
    const __m256i order = step == 2 ? _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)
                                    : _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    best->value = _mm256_permutevar8x32_ps(best->value, order);
    best->tap = _mm256_permutevar8x32_epi32(best->tap, order);
}
