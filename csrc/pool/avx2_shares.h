/* SPDX-License-Identifier: MIT */
/* What avg and its backward need whatever the dtype; included by pool_avx2_backward.c inside its
 * target region, after avx2_margin.h and avx2_sources.h. */

#include "pool/avx2_octets.h"

/* The valid taps of one window: where channel 0 of each lies. */
typedef struct osw_taps_at {
    int count;
    const void *at[MAX_TAPS];
} osw_taps_at;

static inline void set_taps_at(osw_taps_at *taps, const osw_pool *pool, const osw_row *row,
                               int64_t w, int64_t element)
{
    const osw_span depth = osw_taps(&pool->dims[DEPTH], row->depth);
    const osw_span height = osw_taps(&pool->dims[HEIGHT], row->height);
    const osw_span width = osw_taps(&pool->dims[WIDTH], w);
    taps->count = 0;
    for (int64_t d = depth.first; d < depth.end; d++)
        for (int64_t h = height.first; h < height.end; h++) {
            const int64_t position = osw_input_position(pool, depth.start + d, height.start + h,
                                                        width.start + width.first);
            const char *at = (const char *)pool->input.base +
                             osw_place(&pool->input, row->image, 0, position) * element;
            for (int64_t k = width.first; k < width.end; k++) {
                taps->at[taps->count++] = at;
                at += pool->input.pixel_step * element;
            }
        }
}

/* The outputs that one position of the input belongs to, in order, with the divisor of each. */
typedef struct osw_shares {
    int count;
    const void *at[MAX_TAPS];
    float divisor[MAX_TAPS];
} osw_shares;

static inline void set_shares(osw_shares *shares, const osw_pool *pool, const osw_row *row,
                              const osw_range *width, int64_t element)
{
    const osw_range depth = outputs_of(&pool->dims[DEPTH], row->depth);
    const osw_range height = outputs_of(&pool->dims[HEIGHT], row->height);
    shares->count = 0;
    for (int64_t d = depth.first; d < depth.end; d++)
        for (int64_t h = height.first; h < height.end; h++)
            for (int64_t w = width->first; w < width->end; w++) {
                const int64_t position = osw_output_position(pool, d, h, w);
                shares->at[shares->count] =
                    (const char *)pool->grad_output.base +
                    osw_place(&pool->grad_output, row->image, 0, position) * element;
                shares->divisor[shares->count++] = (float)osw_avg_divisor(pool, d, h, w);
            }
}

static inline bool same_range(osw_range a, osw_range b)
{
    return a.first == b.first && a.end == b.end;
}

/* Whether the row before this one of the same image meets the same outputs. */
static inline bool as_row_before(const osw_pool *pool, const osw_row *row)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t height = row->height > 0 ? row->height : dims[HEIGHT].input;
    const int64_t depth = row->height > 0 ? row->depth : row->depth - 1;
    return depth >= 0 &&
           same_range(outputs_of(&dims[HEIGHT], row->height),
                      outputs_of(&dims[HEIGHT], height - 1)) &&
           same_range(outputs_of(&dims[DEPTH], row->depth), outputs_of(&dims[DEPTH], depth));
}

/* Outputs within [from, to) of a row whose divisors are equal. */
static inline osw_range even_outputs(const osw_pool *pool, int64_t from, int64_t to)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    if (pool->divisor)
        return (osw_range){from, to};
    const int64_t edge = pool->count_include_pad ? dim->padding : 0;
    const int64_t first = osw_ceil_div(dim->padding - edge, dim->stride);
    const int64_t reach = dim->input + edge + dim->padding - dim->kernel;
    const int64_t end = reach < 0 ? 0 : reach / dim->stride + 1;
    return (osw_range){osw_min(osw_max(first, from), to), osw_min(end, to)};
}
