/* SPDX-License-Identifier: MIT */
/* What adaptive and global pools need whatever the dtype; included by pool_avx2_max.c inside its
 * target region, after tile.h. */

typedef struct osw_ties {
    float best[OSW_POOL_MAX_BLOCK];
    float hit[OSW_POOL_MAX_BLOCK];
    float miss[OSW_POOL_MAX_BLOCK];
    int32_t count[OSW_POOL_MAX_BLOCK];
} osw_ties;

typedef struct osw_tie {
    __m256 best;
    __m256 hit;
    __m256 miss;
} osw_tie;

static inline bool is_global(const osw_pool *pool)
{
    return osw_output_plane(pool) == 1;
}

OSW_INLINE __m256i count_hits(__m256i ties, __m256 x, __m256 best)
{
    return _mm256_sub_epi32(ties, _mm256_castps_si256(_mm256_cmp_ps(x, best, _CMP_EQ_OQ)));
}

OSW_INLINE int32_t sum_ints(__m256i v)
{
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

/* The greatest of eight numbers, in all lanes. */
OSW_INLINE __m256 max_lanes(__m256 v)
{
    v = _mm256_max_ps(v, _mm256_permute2f128_ps(v, v, 1));
    v = _mm256_max_ps(v, _mm256_shuffle_ps(v, v, 0x4e));
    return _mm256_max_ps(v, _mm256_shuffle_ps(v, v, 0xb1));
}

/* Rows of the input that output rows of an adaptive pool read. */
static inline osw_range adaptive_rows(const osw_pool_dim *height, osw_range rows)
{
    return (osw_range){osw_adaptive(height, rows.first).first,
                       osw_adaptive(height, rows.end - 1).end};
}

/* Whether output rows of an adaptive pool, and what they read, fit a tile. */
static inline bool adaptive_rows_fit(const osw_pool *pool, osw_range rows)
{
    const osw_range read = adaptive_rows(&pool->dims[HEIGHT], rows);
    return (read.end - read.first) * pool->dims[WIDTH].input <= OCTET_TILE &&
           (rows.end - rows.first) * pool->dims[WIDTH].output <= OCTET_TILE;
}

/* Planes of which every output row fits a tile. */
static inline bool adaptive_fits(const osw_pool *pool)
{
    bool fits = pool->dims[DEPTH].input == 1 && pool->dims[DEPTH].output == 1;
    for (int64_t h = 0; fits && h < pool->dims[HEIGHT].output; h++)
        fits = adaptive_rows_fit(pool, (osw_range){h, h + 1});
    return fits;
}
