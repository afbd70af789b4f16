/* SPDX-License-Identifier: MIT */
/* What max_backward over planes needs whatever the dtype; included by pool_avx2.c inside its target
 * region, after avx2_strip.h. */

enum { MARGIN_ROWS = 9, MARGIN_ROOM = 520, MAX_STRIDE = 4, MAX_SOURCES = 64 };

/* A row of the output: element i is column first + i, with offset -1 where there is none. */
typedef struct osw_margin_row {
    float gradient[MARGIN_ROOM];
    int32_t offset[MARGIN_ROOM];
} osw_margin_row;

/* Columns of the input that leave the same remainder: their taps along the width, and where in a
 * margin row the output of the first of these columns lies for each. */
typedef struct osw_remainder {
    int count;
    int32_t tap[MAX_KERNEL];
    int64_t at[MAX_KERNEL];
} osw_remainder;

/* One term of a sum. */
typedef struct osw_source {
    const float *gradient;
    const int32_t *offset;
    int32_t tap;
} osw_source;

/* Columns [column, column + columns) of the input, column being a multiple of the stride. */
typedef struct osw_margin {
    int64_t column, columns;
    int64_t first;    /* column of the output at element 0 of a margin row; may be negative */
    int64_t from, to; /* columns of the output that there are */
    int64_t slots_depth, slots_height;
    int64_t room; /* floats of the sums of one remainder */
    osw_remainder remainders[MAX_STRIDE];
    int64_t tag[MARGIN_ROWS];
    osw_margin_row rows[MARGIN_ROWS];
    float sums[2 * MARGIN_ROOM];
} osw_margin;

/* Output rows that one input row can meet. */
static inline int64_t rows_met(const osw_pool_dim *dim)
{
    return osw_ceil_div((dim->kernel - 1) * dim->dilation + 1, dim->stride);
}

/* Columns of one remainder in a strip: whole vectors, with the margin of the widest tap. */
static inline int64_t margin_columns(const osw_pool *pool)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const int64_t reach = rows_met(dim) + 1;
    const int64_t room = osw_min(MARGIN_ROOM - reach, 2 * MARGIN_ROOM / dim->stride);
    return room / LANES * LANES;
}

static inline bool fits_margin(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[WIDTH].stride <= MAX_STRIDE && dims[WIDTH].kernel <= MAX_KERNEL &&
           dims[HEIGHT].kernel <= MAX_KERNEL && dims[DEPTH].kernel <= MAX_KERNEL &&
           dims[DEPTH].kernel * dims[HEIGHT].kernel * dims[WIDTH].kernel <= MAX_SOURCES &&
           rows_met(&dims[DEPTH]) * rows_met(&dims[HEIGHT]) <= MARGIN_ROWS &&
           rows_met(&dims[WIDTH]) < MARGIN_ROOM / 2 && !pool->wide;
}

/* Taps that meet column `column` + s of the input, with the output column of each. */
static void set_remainder(osw_remainder *remainder, const osw_pool_dim *dim, int64_t column)
{
    remainder->count = 0;
    for (int64_t k = 0; k < dim->kernel; k++) {
        const int64_t reach = column + dim->padding - k * dim->dilation;
        if (reach % dim->stride != 0)
            continue;
        remainder->tap[remainder->count] = (int32_t)k;
        remainder->at[remainder->count++] = reach / dim->stride;
    }
}

/* Set all of the strip that begins at input column `column`. */
static void set_margin(osw_margin *margin, const osw_pool *pool, int64_t column)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    margin->column = column;
    margin->room = margin_columns(pool);
    margin->columns = osw_min(margin->room * dim->stride, dim->input - column);
    margin->slots_depth = rows_met(&pool->dims[DEPTH]);
    margin->slots_height = rows_met(&pool->dims[HEIGHT]);
    int64_t first = INT64_MAX, last = 0;
    for (int64_t s = 0; s < dim->stride; s++) {
        osw_remainder *remainder = &margin->remainders[s];
        set_remainder(remainder, dim, column + s);
        for (int k = 0; k < remainder->count; k++) {
            first = osw_min(first, remainder->at[k]);
            last = osw_max(last, remainder->at[k]);
        }
    }
    for (int64_t s = 0; s < dim->stride; s++)
        for (int k = 0; k < margin->remainders[s].count; k++)
            margin->remainders[s].at[k] -= first;
    margin->first = first;
    margin->from = osw_max(first, 0);
    margin->to = osw_min(dim->output, last + osw_ceil_div(margin->columns, dim->stride));
    for (int64_t i = 0; i < margin->slots_depth * margin->slots_height; i++) {
        for (int64_t j = 0; j < MARGIN_ROOM; j += LANES) {
            _mm256_storeu_ps(margin->rows[i].gradient + j, _mm256_setzero_ps());
            _mm256_storeu_si256((__m256i *)(margin->rows[i].offset + j), _mm256_set1_epi32(-1));
        }
    }
}

/* Begin with a plane: nothing of it is there yet. The margins stay from plane to plane. */
static inline void begin_margin(osw_margin *margin, const osw_pool *pool, int64_t column)
{
    if (margin->column != column)
        set_margin(margin, pool, column);
    for (int64_t i = 0; i < margin->slots_depth * margin->slots_height; i++)
        margin->tag[i] = -1;
}
