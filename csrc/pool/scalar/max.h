/* SPDX-License-Identifier: MIT */
/* max of one dtype; included by the scalar and the AVX2 file with SUFFIX, ELEMENT (in memory),
 * VALUE (in arithmetic), LOAD, STORE, LOWEST and IS_NAN defined, and KERNEL for the names.
 *
 * Both forms work on lanes: neighbouring outputs of a row in planes, channels of a position in
 * pixels. One tap after another is applied to all lanes. */

typedef struct LOCAL(lanes) {
    VALUE best[OSW_POOL_LANES];
    int32_t tap[OSW_POOL_LANES];
} LOCAL(lanes);

static inline void LOCAL(apply)(LOCAL(lanes) *restrict lanes, int64_t first, int64_t end,
                         const ELEMENT *restrict x, int64_t step, int32_t tap)
{
    for (int64_t i = first; i < end; i++) {
        const VALUE value = LOAD(x[(i - first) * step]);
        const bool wins = value > lanes->best[i] || IS_NAN(value);
        lanes->best[i] = wins ? value : lanes->best[i];
        lanes->tap[i] = wins ? tap : lanes->tap[i];
    }
}

/* Lanes [0, count) go to the output and, where wanted, to the offsets, from element `at` on. */
static inline void
LOCAL(put)(const osw_pool *pool, const LOCAL(lanes) *restrict lanes, int64_t count,
                       int64_t output_at, int64_t offsets_at)
{
    ELEMENT *y = (ELEMENT *)pool->output.base + output_at;
    for (int64_t i = 0; i < count; i++)
        y[i] = STORE(lanes->best[i]);
    if (!pool->offsets.base)
        return;
    if (pool->wide) {
        memcpy((int32_t *)pool->offsets.base + offsets_at, lanes->tap,
               (size_t)count * sizeof(int32_t));
        return;
    }
    uint8_t *offsets = (uint8_t *)pool->offsets.base + offsets_at;
    for (int64_t i = 0; i < count; i++)
        offsets[i] = (uint8_t)lanes->tap[i];
}

/* Outputs [first, end) of one row. `rows` are the taps of depth and height. */
static inline void LOCAL(max_strip)(const osw_pool *pool, const ELEMENT *plane, osw_span depth,
                             osw_span height, int64_t from, int64_t to, LOCAL(lanes) *lanes)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const osw_range columns = osw_taps_of(dim, from, to);
    for (int64_t i = from; i < to; i++) {
        lanes->best[i - from] = LOWEST;
        lanes->tap[i - from] = osw_tap(pool, depth.first, height.first, osw_taps(dim, i).first);
    }
    for (int64_t d = depth.first; d < depth.end; d++) {
        for (int64_t h = height.first; h < height.end; h++) {
            const ELEMENT *row =
                plane + osw_input_position(pool, depth.start + d * pool->dims[DEPTH].dilation,
                                           height.start + h * pool->dims[HEIGHT].dilation, 0);
            for (int64_t w = columns.first; w < columns.end; w++) {
                const osw_range range = osw_outputs(dim, w, 0, dim->input);
                const int64_t first = osw_max(range.first, from), end = osw_min(range.end, to);
                if (first < end)
                    LOCAL(
                        apply)(lanes, first - from, end - from,
                          row + first * dim->stride - dim->padding + w * dim->dilation, dim->stride,
                          osw_tap(pool, d, h, w));
            }
        }
    }
}

static void KERNEL(max_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(lanes) lanes;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, pool->channels, unit);
        const osw_span depth = osw_taps(&pool->dims[DEPTH], row.depth);
        const osw_span height = osw_taps(&pool->dims[HEIGHT], row.height);
        const ELEMENT *plane =
            (const ELEMENT *)pool->input.base +
            osw_place(&pool->input, row.image, row.channel * pool->channel_step, 0);
        const int64_t width = pool->dims[WIDTH].output;
        const int64_t position = osw_output_position(pool, row.depth, row.height, 0);
        for (int64_t w = 0; w < width; w += OSW_POOL_LANES) {
            const int64_t to = osw_min(w + OSW_POOL_LANES, width);
            LOCAL(max_strip)(pool, plane, depth, height, w, to, &lanes);
            LOCAL(put)(pool, &lanes, to - w,
                osw_place(&pool->output, row.image, row.channel, position + w),
                osw_place(&pool->offsets, row.image, row.channel, position + w));
        }
    }
}

/* `count` channels of one position of the output, from channel c on. */
static inline void
LOCAL(max_position)(const osw_pool *pool, const ELEMENT *image, const osw_span *taps,
                                int64_t c, int64_t count, LOCAL(lanes) *lanes)
{
    const osw_pool_dim *dims = pool->dims;
    const int32_t start = osw_tap(pool, taps[DEPTH].first, taps[HEIGHT].first, taps[WIDTH].first);
    for (int64_t i = 0; i < count; i++) {
        lanes->best[i] = LOWEST;
        lanes->tap[i] = start;
    }
    for (int64_t d = taps[DEPTH].first; d < taps[DEPTH].end; d++) {
        for (int64_t h = taps[HEIGHT].first; h < taps[HEIGHT].end; h++) {
            for (int64_t w = taps[WIDTH].first; w < taps[WIDTH].end; w++) {
                const int64_t position =
                    osw_input_position(pool, taps[DEPTH].start + d * dims[DEPTH].dilation,
                                       taps[HEIGHT].start + h * dims[HEIGHT].dilation,
                                       taps[WIDTH].start + w * dims[WIDTH].dilation);
                const ELEMENT *x =
                    image + osw_place(&pool->input, 0, c * pool->channel_step, position);
                LOCAL(apply)(lanes, 0, count, x, pool->channel_step, osw_tap(pool, d, h, w));
            }
        }
    }
}

static void KERNEL(max_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(lanes) lanes;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, 1, unit);
        osw_span taps[OSW_POOL_DIMS] = {osw_taps(&pool->dims[DEPTH], row.depth),
                                        osw_taps(&pool->dims[HEIGHT], row.height)};
        const ELEMENT *image =
            (const ELEMENT *)pool->input.base + osw_place(&pool->input, row.image, 0, 0);
        for (int64_t w = 0; w < pool->dims[WIDTH].output; w++) {
            taps[WIDTH] = osw_taps(&pool->dims[WIDTH], w);
            const int64_t position = osw_output_position(pool, row.depth, row.height, w);
            for (int64_t c = 0; c < pool->channels; c += OSW_POOL_LANES) {
                const int64_t count = osw_min(OSW_POOL_LANES, pool->channels - c);
                LOCAL(max_position)(pool, image, taps, c, count, &lanes);
                LOCAL(put)(pool, &lanes, count, osw_place(&pool->output, row.image, c, position),
                    osw_place(&pool->offsets, row.image, c, position));
            }
        }
    }
}
