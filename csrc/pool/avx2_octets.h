/* SPDX-License-Identifier: MIT */
/* Planes read eight at a time, side by side, so that a vector holds one position of each and no row
 * is too short for it; included inside a target region, after avx2_sources.h. */

/* Positions of a plane that are worked on together: with eight planes, half of an L1 cache. */
enum { OCTET_TILE = 1024 };

/* Rows of 4 + 4 lanes turned into columns. */
OSW_INLINE void transpose8(__m256 v[8])
{
    __m256 pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
}

/* Windows one slice deep, of which a tile holds at least one row, in both directions. */
static inline bool fits_octets(const osw_pool *pool)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    return pool->dims[DEPTH].kernel == 1 && height->kernel <= MAX_TAPS &&
           width->kernel <= MAX_TAPS && height->kernel * width->input <= OCTET_TILE &&
           height->kernel * width->output <= OCTET_TILE;
}

/* Rows of the input that output rows read. */
static inline osw_range rows_read(const osw_pool_dim *height, osw_range rows)
{
    return (osw_range){inputs_of(height, rows.first).first, inputs_of(height, rows.end - 1).end};
}

/* Rows of the output that read input rows. */
static inline osw_range rows_reading(const osw_pool_dim *height, osw_range rows)
{
    return (osw_range){outputs_of(height, rows.first).first, outputs_of(height, rows.end - 1).end};
}

/* The depth that reads slice d of the input with a window one slice deep, or -1. */
static inline int64_t depth_reading(const osw_pool_dim *depth, int64_t d)
{
    return d % depth->stride == 0 && d / depth->stride < depth->output ? d / depth->stride : -1;
}

/* Output rows of a tile: as many as it holds with all that they read. */
static inline int64_t tile_outputs(const osw_pool *pool)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const int64_t rows_in = OCTET_TILE / width->input, rows_out = OCTET_TILE / width->output;
    return osw_max(1, osw_min(rows_out, (rows_in - height->kernel) / height->stride + 1));
}

/* Input rows of a tile: as many as it holds with all that read them. */
static inline int64_t tile_inputs(const osw_pool *pool)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const int64_t rows_in = OCTET_TILE / width->input, rows_out = OCTET_TILE / width->output;
    /* n rows of the input are read by at most (n + kernel - 2) / stride + 1 of the output. */
    return osw_max(1, osw_min(rows_in, (rows_out - 1) * height->stride - height->kernel + 2));
}

/* The outputs that meet each column of the input, and whether they are those of the column before.
 */
typedef struct osw_columns {
    int32_t first[OCTET_TILE];
    int32_t end[OCTET_TILE];
    bool same[OCTET_TILE];
} osw_columns;

static inline void set_columns(osw_columns *columns, const osw_pool_dim *width)
{
    osw_range before = {-1, -1};
    for (int64_t w = 0; w < width->input; w++) {
        const osw_range range = outputs_of(width, w);
        columns->first[w] = (int32_t)range.first;
        columns->end[w] = (int32_t)range.end;
        columns->same[w] = same_range(range, before);
        before = range;
    }
}

/* The next planes of units [unit, end) that are rows of planes: up to `most` whole ones, or what is
 * there of one; their rows. */
static inline int64_t next_planes(int64_t unit, int64_t end, int64_t rows, int64_t most,
                                  osw_range *range)
{
    const int64_t first = unit % rows;
    *range = (osw_range){first, osw_min(rows, first + end - unit)};
    return first == 0 ? osw_max(1, osw_min(most, (end - unit) / rows)) : 1;
}
