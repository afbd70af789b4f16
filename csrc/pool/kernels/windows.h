/* SPDX-License-Identifier: MIT */
/* What max over pixels needs whatever the dtype; included by pool_avx2_max.c inside its target
 * region, after rows.h. */

enum { COMPACT_FLOATS = 1 << 15 };

/* The valid taps of one window: where channel 0 of each lies. */
typedef struct osw_window {
    int count;
    struct {
        const void *at;
        int32_t tap;
    } taps[MAX_TAPS];
} osw_window;

static inline void set_input_rows(osw_rows *rows, const osw_pool *pool, const osw_row *row,
                                  int64_t element)
{
    const osw_span depth = osw_taps(&pool->dims[DEPTH], row->depth);
    const osw_span height = osw_taps(&pool->dims[HEIGHT], row->height);
    rows->count = 0;
    for (int64_t d = depth.first; d < depth.end; d++) {
        for (int64_t h = height.first; h < height.end; h++) {
            const int64_t position = osw_input_position(pool, depth.start + d, height.start + h, 0);
            rows->at[rows->count] = (const char *)pool->input.base +
                                    osw_place(&pool->input, row->image, 0, position) * element;
            rows->number[rows->count] =
                (depth.start + d) * pool->dims[HEIGHT].input + height.start + h;
            rows->tap[rows->count++] = osw_tap(pool, d, h, 0);
        }
    }
}

/* The window of output column w; a column is `step` bytes. */
static inline void set_window(osw_window *window, const osw_pool_dim *dim, const osw_rows *rows,
                              int64_t w, int64_t step)
{
    const int64_t start = w * dim->stride - dim->padding;
    const int64_t first = osw_max(0, -start), end = osw_min(dim->kernel, dim->input - start);
    int count = 0;
    for (int r = 0; r < rows->count; r++) {
        const char *at = rows->at[r] + start * step;
        for (int64_t k = first; k < end; k++) {
            window->taps[count].at = at + k * step;
            window->taps[count++].tap = rows->tap[r] + (int32_t)k;
        }
    }
    window->count = count;
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

/* Rows of the input that have been copied with the channels of a block side by side. */
typedef struct osw_compact {
    int64_t first, channels;
    int64_t slots;
    int64_t room; /* floats of a row */
    int64_t tag[MAX_TAPS];
    float floats[COMPACT_FLOATS];
} osw_compact;

/* Rows of one image that stay: any kernel[HEIGHT] neighbours of kernel[DEPTH] neighbouring slices
 * have slots of their own only if there is one slice. */
static inline bool fits_compact(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[DEPTH].kernel == 1 && pool->channel_step > 1 &&
           LANES * dims[WIDTH].input * dims[HEIGHT].kernel <= COMPACT_FLOATS;
}

/* Blocks of channels of one size, whole vectors unless there is one block only. */
static inline void set_compact(osw_compact *compact, const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t most = COMPACT_FLOATS / (dims[WIDTH].input * dims[HEIGHT].kernel);
    const int64_t blocks = osw_ceil_div(pool->channels, most / LANES * LANES);
    const int64_t vectors = osw_ceil_div(osw_ceil_div(pool->channels, blocks), LANES);
    compact->channels = blocks == 1 ? pool->channels : vectors * LANES;
    compact->slots = dims[HEIGHT].kernel;
    compact->room = dims[WIDTH].input * compact->channels;
}

/* Begin with an image; the last block overlaps the one before. */
static inline void begin_compact(osw_compact *compact, const osw_pool *pool, int64_t first)
{
    compact->first = osw_min(first, pool->channels - compact->channels);
    for (int64_t i = 0; i < compact->slots; i++)
        compact->tag[i] = -1;
}

/* Eight channels of a window over copied rows; count is a constant in the calls that matter. */
OSW_INLINE osw_best window_max_floats(const osw_window *window, int64_t c, const int count)
{
    osw_best best = {_mm256_loadu_ps((const float *)window->taps[0].at + c),
                     _mm256_set1_epi32(window->taps[0].tap)};
    for (int k = 1; k < count; k++)
        take(&best, _mm256_loadu_ps((const float *)window->taps[k].at + c),
             _mm256_set1_epi32(window->taps[k].tap), true);
    return best;
}
