/* SPDX-License-Identifier: MIT */
/* What the direct form of max_backward needs whatever the dtype; included by pool_avx2.c inside its
 * target region, after avx2_margin.h. */

enum { MAX_ROWS = 9 };

/* A row of the output that meets the input row. */
typedef struct osw_term_row {
    const void *gradient;
    const uint8_t *offsets;
    int32_t tap; /* the first of the taps with which it does */
} osw_term_row;

/* Columns of the input that leave the same remainder modulo the stride: their taps along the width
 * from the last to the first, `stride` apart, see outputs that are neighbours. */
typedef struct osw_term_columns {
    int count;
    int32_t tap;   /* the last one */
    int64_t shift; /* the output that it sees, seen from the first column */
} osw_term_columns;

typedef struct osw_terms {
    int64_t width;                         /* of the output */
    int64_t inner_first, inner_end;        /* columns at which all vectors stay in their rows */
    osw_range gradient_rows, offsets_rows; /* elements at which vectors stay in the tensor */
    int stride;                            /* 1 or 2: how many remainders there are */
    int rows;
    osw_term_columns columns[2];
    osw_term_row row[MAX_ROWS];
} osw_terms;

/* Outputs [first, end) whose windows meet input position i; dilation 1. */
static inline osw_range outputs_of(const osw_pool_dim *dim, int64_t i)
{
    return (osw_range){osw_ceil_div(i + dim->padding - dim->kernel + 1, dim->stride),
                       osw_min(dim->output, (i + dim->padding) / dim->stride + 1)};
}

/* All bits of lane l where 0 <= column + l < width. */
OSW_INLINE __m256i columns_within(int64_t column, int64_t width)
{
    static const int32_t bits[3 * LANES] = {[LANES] = -1, -1, -1, -1, -1, -1, -1, -1};
    const int64_t before = osw_min(osw_max(column, -LANES), 0);
    const int64_t beyond = osw_min(osw_max(LANES - (width - column), 0), LANES);
    return _mm256_and_si256(load_ints(bits + LANES + before), load_ints(bits + LANES + beyond));
}

static inline bool within(osw_range range, int64_t i)
{
    return i >= range.first && i < range.end;
}

/* First and last element of a tensor at which a row may begin. */
static inline osw_range safe_rows(const osw_pool *pool, const osw_pool_tensor *t, int64_t before,
                                  int64_t after)
{
    const int64_t last = (pool->images - 1) * osw_max(t->image_step, 0) +
                         (pool->channels - 1) * osw_max(t->channel_step, 0) +
                         osw_output_plane(pool) - 1;
    return (osw_range){before, last + 2 - after};
}

static inline bool fits_terms(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[WIDTH].stride <= 2 && dims[WIDTH].dilation == 1 && dims[HEIGHT].dilation == 1 &&
           dims[DEPTH].dilation == 1;
}

/* The taps of a row's terms, in all lanes: those of the first remainder, then of the second. */
OSW_INLINE void spread_codes(const osw_terms *terms, __m256i *codes, const int rows, const int even,
                             const int odd)
{
    for (int r = 0; r < rows; r++) {
        for (int k = 0; k < even; k++)
            codes[r * even + k] =
                _mm256_set1_epi32(terms->row[r].tap + terms->columns[0].tap - k * terms->stride);
        for (int k = 0; k < odd; k++)
            codes[rows * even + r * odd + k] =
                _mm256_set1_epi32(terms->row[r].tap + terms->columns[1].tap - k * terms->stride);
    }
}

static void set_terms(osw_terms *terms, const osw_pool *pool)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    int64_t low = 0, high = 0;
    terms->width = dim->output;
    terms->stride = (int)dim->stride;
    for (int s = 0; s < dim->stride; s++) {
        osw_remainder remainder;
        set_remainder(&remainder, dim, s);
        const int last = remainder.count - 1;
        terms->columns[s] = (osw_term_columns){.count = remainder.count};
        if (last < 0)
            continue;
        terms->columns[s].tap = remainder.tap[last];
        terms->columns[s].shift = remainder.at[last];
        low = osw_min(low, remainder.at[last]);
        high = osw_max(high, remainder.at[0]);
    }
    terms->inner_first = -low;
    terms->inner_end = dim->output - high - LANES + 1;
    const int64_t reach = osw_ceil_div(dim->input, dim->stride) + LANES + high;
    terms->gradient_rows = safe_rows(pool, &pool->grad_output, -low, reach);
    terms->offsets_rows = safe_rows(pool, &pool->offsets, -low, reach);
}
