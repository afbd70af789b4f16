/* SPDX-License-Identifier: MIT */
/* max_backward over planes for one dtype, where the width has stride 1 or 2: reads the gradients
 * and the offsets where they lie; included by avx2_types.h before avx2_collect.h, which takes the
 * rest.
 *
 * At both ends of a row a vector reaches into the rows beside it; what it finds there is masked
 * away. */

/* The gradients of columns i to i + 8 of one remainder. */
OSW_INLINE __m256 LOCAL(direct_sum)(const osw_terms *terms, const osw_term_columns *columns,
                                    const __m256i *codes, int64_t i, const int rows, const int taps,
                                    const bool edge)
{
    __m256 total = _mm256_setzero_ps();
    const int64_t at = i + columns->shift;
    for (int r = 0; r < rows; r++) {
        const uint8_t *offsets = terms->row[r].offsets + at;
        const ELEMENT *gradients = (const ELEMENT *)terms->row[r].gradient + at;
        for (int k = 0; k < taps; k++) {
            __m256i hit = _mm256_cmpeq_epi32(load_taps(offsets + k), codes[r * taps + k]);
            if (edge)
                hit = _mm256_and_si256(hit, columns_within(at + k, terms->width));
            const __m256 chosen = _mm256_and_ps(LOAD8(gradients + k), _mm256_castsi256_ps(hit));
            total = _mm256_add_ps(total, chosen);
            if (r + k > 0)
                total = ROUND8(total);
        }
    }
    return total;
}

/* Eight columns of every remainder. */
OSW_INLINE void LOCAL(direct_block)(const osw_terms *terms, const __m256i *codes, ELEMENT *to,
                                    int64_t i, const int rows, const int even, const int odd,
                                    const int stride, const bool edge)
{
    const osw_term_columns *columns = terms->columns;
    const __m256 a = LOCAL(direct_sum)(terms, &columns[0], codes, i, rows, even, edge);
    if (stride == 1) {
        STORE8(to, a);
        return;
    }
    const __m256 b = LOCAL(direct_sum)(terms, &columns[1], codes + rows * even, i, rows, odd, edge);
    __m256 low, high;
    zip(a, b, &low, &high);
    STORE8(to, low);
    STORE8(to + LANES, high);
}

/* One row of `width` columns; all but these are constants in the calls that matter. */
OSW_INLINE void LOCAL(direct_blocks)(const osw_terms *terms, ELEMENT *to, int64_t width,
                                     const int rows, const int even, const int odd,
                                     const int stride)
{
    const int64_t block = LANES * stride;
    __m256i codes[2 * MAX_SOURCES];
    spread_codes(terms, codes, rows, even, odd);
    int64_t c = 0;
    for (; c + block <= width; c += block) {
        const int64_t i = c / stride;
        if (i >= terms->inner_first && i < terms->inner_end)
            LOCAL(direct_block)(terms, codes, to + c, i, rows, even, odd, stride, false);
        else
            LOCAL(direct_block)(terms, codes, to + c, i, rows, even, odd, stride, true);
    }
    if (c == width)
        return;
    if (width >= block && width % stride == 0) {
        c = width - block;
        LOCAL(direct_block)(terms, codes, to + c, c / stride, rows, even, odd, stride, true);
        return;
    }
    ELEMENT last[2 * LANES];
    LOCAL(direct_block)(terms, codes, last, c / stride, rows, even, odd, stride, true);
    for (int64_t j = c; j < width; j++)
        to[j] = last[j - c];
}

/* Constants for rows: 1 to 3 of them have their own code. */
OSW_INLINE void LOCAL(direct_rows)(const osw_terms *terms, ELEMENT *to, int64_t width,
                                   const int even, const int odd, const int stride)
{
    if (terms->rows == 1)
        LOCAL(direct_blocks)(terms, to, width, 1, even, odd, stride);
    else if (terms->rows == 2)
        LOCAL(direct_blocks)(terms, to, width, 2, even, odd, stride);
    else if (terms->rows == 3)
        LOCAL(direct_blocks)(terms, to, width, 3, even, odd, stride);
    else
        LOCAL(direct_blocks)(terms, to, width, terms->rows, even, odd, stride);
}

OSW_INLINE void LOCAL(direct_row)(const osw_terms *terms, ELEMENT *to, int64_t width)
{
    const int even = terms->columns[0].count, odd = terms->columns[1].count;
    if (terms->rows == 0)
        memset(to, 0, (size_t)width * sizeof(ELEMENT));
    else if (terms->stride == 1 && even == 3)
        LOCAL(direct_rows)(terms, to, width, 3, 0, 1);
    else if (terms->stride == 1)
        LOCAL(direct_blocks)(terms, to, width, terms->rows, even, 0, 1);
    else if (even == 1 && odd == 1)
        LOCAL(direct_rows)(terms, to, width, 1, 1, 2);
    else if (even == 1 && odd == 2)
        LOCAL(direct_rows)(terms, to, width, 1, 2, 2);
    else if (even == 2 && odd == 1)
        LOCAL(direct_rows)(terms, to, width, 2, 1, 2);
    else
        LOCAL(direct_blocks)(terms, to, width, terms->rows, even, odd, 2);
}

/* Do one row if all that its vectors touch lies within the tensors; `row` holds the channel of the
 * output. */
OSW_INLINE bool LOCAL(direct)(osw_terms *terms, const osw_pool *pool, const osw_row *row,
                              ELEMENT *to)
{
    const osw_pool_dim *dims = pool->dims;
    const osw_range depth = outputs_of(&dims[DEPTH], row->depth);
    const osw_range height = outputs_of(&dims[HEIGHT], row->height);
    terms->rows = 0;
    for (int64_t d = depth.first; d < depth.end; d++) {
        for (int64_t h = height.first; h < height.end; h++) {
            const int64_t position = osw_output_position(pool, d, h, 0);
            const int64_t at = osw_place(&pool->grad_output, row->image, row->channel, position);
            const int64_t taps_at = osw_place(&pool->offsets, row->image, row->channel, position);
            if (!within(terms->gradient_rows, at) || !within(terms->offsets_rows, taps_at))
                return false;
            terms->row[terms->rows++] = (osw_term_row){
                (const ELEMENT *)pool->grad_output.base + at,
                (const uint8_t *)pool->offsets.base + taps_at,
                osw_tap(pool, row->depth + dims[DEPTH].padding - d * dims[DEPTH].stride,
                        row->height + dims[HEIGHT].padding - h * dims[HEIGHT].stride, 0)};
        }
    }
    LOCAL(direct_row)(terms, to, dims[WIDTH].input);
    return true;
}
