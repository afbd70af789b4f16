/* SPDX-License-Identifier: MIT */
/* max_backward over planes for one dtype; included by avx2_types.h.
 *
 * Rows of the output are copied with a margin, gradients as floats and offsets as 32-bit numbers,
 * and kept for the input rows that share them. Columns of the input that have the same remainder
 * modulo the stride see the same taps: for each remainder, a pixel is the sum of the gradients
 * whose offset is the tap, over a list of (row, tap) in the order of the output. */

/* Output row (d, h) of the channel into a slot, if it is not yet there. */
OSW_INLINE const osw_margin_row *LOCAL(margin_row)(osw_margin *margin, const osw_pool *pool,
                                                   const osw_row *row, int64_t d, int64_t h)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t slot = d % margin->slots_depth * margin->slots_height + h % margin->slots_height;
    const int64_t position = osw_output_position(pool, d, h, margin->from);
    osw_margin_row *to = &margin->rows[slot];
    if (margin->tag[slot] == d * dims[HEIGHT].output + h)
        return to;
    margin->tag[slot] = d * dims[HEIGHT].output + h;
    const ELEMENT *gradient = (const ELEMENT *)pool->grad_output.base +
                              osw_place(&pool->grad_output, row->image, row->channel, position);
    const uint8_t *offsets = (const uint8_t *)pool->offsets.base +
                             osw_place(&pool->offsets, row->image, row->channel, position);
    const int64_t count = margin->to - margin->from, at = margin->from - margin->first;
    int64_t i = 0;
    for (; i < count && count >= LANES; i += LANES) {
        i = osw_min(i, count - LANES);
        _mm256_storeu_ps(to->gradient + at + i, LOAD8(gradient + i));
        _mm256_storeu_si256((__m256i *)(to->offset + at + i), load_taps(offsets + i));
    }
    for (; i < count; i++) {
        to->gradient[at + i] = LOAD(gradient[i]);
        to->offset[at + i] = offsets[i];
    }
    return to;
}

/* sum[i] = what the list collects for columns i of one remainder; count is a constant in the calls
 * that matter. */
OSW_INLINE void LOCAL(collect_list)(const osw_source *list, const int count, float *sum,
                                    int64_t columns)
{
    for (int64_t i = 0; i < columns; i += LANES) {
        __m256 total = _mm256_setzero_ps();
        for (int k = 0; k < count; k++) {
            const __m256i tap = _mm256_set1_epi32(list[k].tap);
            const __m256i hit = _mm256_cmpeq_epi32(load_ints(list[k].offset + i), tap);
            const __m256 gradient = _mm256_loadu_ps(list[k].gradient + i);
            total = ROUND8(_mm256_add_ps(total, _mm256_and_ps(gradient, _mm256_castsi256_ps(hit))));
        }
        _mm256_storeu_ps(sum + i, total);
    }
}

OSW_INLINE void LOCAL(collect_columns)(const osw_source *list, int count, float *sum,
                                       int64_t columns)
{
    switch (count) {
    case 1:
        LOCAL(collect_list)(list, 1, sum, columns);
        break;
    case 2:
        LOCAL(collect_list)(list, 2, sum, columns);
        break;
    case 3:
        LOCAL(collect_list)(list, 3, sum, columns);
        break;
    case 4:
        LOCAL(collect_list)(list, 4, sum, columns);
        break;
    case 6:
        LOCAL(collect_list)(list, 6, sum, columns);
        break;
    case 9:
        LOCAL(collect_list)(list, 9, sum, columns);
        break;
    default:
        LOCAL(collect_list)(list, count, sum, columns);
    }
}

OSW_INLINE void LOCAL(merge_one)(const float *sum, ELEMENT *to, int64_t count)
{
    int64_t i = 0;
    for (; i < count && count >= LANES; i += LANES) {
        i = osw_min(i, count - LANES);
        STORE8(to + i, _mm256_loadu_ps(sum + i));
    }
    for (; i < count; i++)
        to[i] = STORE(sum[i]);
}

OSW_INLINE void LOCAL(merge_two)(const float *even, const float *odd, ELEMENT *to, int64_t count)
{
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        __m256 low, high;
        zip(_mm256_loadu_ps(even + i / 2), _mm256_loadu_ps(odd + i / 2), &low, &high);
        STORE8(to + i, low);
        STORE8(to + i + LANES, high);
    }
    for (; i < count; i++)
        to[i] = STORE((i % 2 ? odd : even)[i / 2]);
}

/* The list of one remainder: all rows that contribute, each with its taps, backwards. */
OSW_INLINE int LOCAL(list_sources)(osw_margin *margin, const osw_pool *pool, const osw_row *row,
                                   const osw_remainder *remainder, osw_source *list)
{
    const osw_pool_dim *dims = pool->dims;
    int count = 0;
    for (int64_t d = dims[DEPTH].kernel - 1; d >= 0; d--) {
        const int64_t od = osw_output_of(&dims[DEPTH], row->depth, d);
        for (int64_t h = dims[HEIGHT].kernel - 1; od >= 0 && h >= 0; h--) {
            const int64_t oh = osw_output_of(&dims[HEIGHT], row->height, h);
            if (oh < 0)
                continue;
            const osw_margin_row *from = LOCAL(margin_row)(margin, pool, row, od, oh);
            for (int k = remainder->count - 1; k >= 0; k--)
                list[count++] =
                    (osw_source){from->gradient + remainder->at[k], from->offset + remainder->at[k],
                                 osw_tap(pool, d, h, remainder->tap[k])};
        }
    }
    return count;
}

/* One row of the strip's columns. `row` holds the channel of the output. */
OSW_INLINE void LOCAL(gradient_row)(osw_margin *margin, const osw_pool *pool, const osw_row *row,
                                    ELEMENT *to)
{
    const int64_t stride = pool->dims[WIDTH].stride;
    osw_source list[MAX_SOURCES];
    for (int64_t s = 0; s < stride; s++) {
        const int count = LOCAL(list_sources)(margin, pool, row, &margin->remainders[s], list);
        LOCAL(collect_columns)
        (list, count, margin->sums + s * margin->room, osw_ceil_div(margin->columns, stride));
    }
    if (stride == 1)
        LOCAL(merge_one)(margin->sums, to, margin->columns);
    else if (stride == 2)
        LOCAL(merge_two)(margin->sums, margin->sums + margin->room, to, margin->columns);
    else
        for (int64_t i = 0; i < margin->columns; i++)
            to[i] = STORE(margin->sums[i % stride * margin->room + i / stride]);
}

/* `count` rows of one plane, from `row` on: directly where that is possible. */
OSW_INLINE void LOCAL(gradient_rows)(osw_margin *margin, osw_terms *terms, const osw_pool *pool,
                                     osw_row row, int64_t count)
{
    const int64_t width = pool->dims[WIDTH].input, height = pool->dims[HEIGHT].input;
    const int64_t first = row.depth * height + row.height;
    ELEMENT *plane =
        (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, row.image, row.channel, 0);
    if (row.channel % pool->channel_step != 0) {
        memset(plane + first * width, 0, (size_t)(count * width) * sizeof(ELEMENT));
        return;
    }
    row.channel /= pool->channel_step;
    const bool direct = fits_terms(pool);
    for (int64_t i = first; i < first + count; i++) {
        row.depth = i / height;
        row.height = i % height;
        if (direct && LOCAL(direct)(terms, pool, &row, plane + i * width))
            continue;
        for (int64_t column = 0; column < width; column += margin->columns) {
            begin_margin(margin, pool, column);
            LOCAL(gradient_row)(margin, pool, &row, plane + i * width + column);
        }
    }
}

static void LOCAL(gradient_units)(const osw_pool *pool, int64_t begin, int64_t end)
{
    osw_margin margin;
    osw_terms terms;
    margin.column = -1;
    if (fits_terms(pool))
        set_terms(&terms, pool);
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    for (int64_t unit = begin; unit < end;) {
        const int64_t count = osw_min(end - unit, rows - unit % rows);
        LOCAL(gradient_rows)
        (&margin, &terms, pool, osw_input_row(pool, pool->input_channels, unit), count);
        unit += count;
    }
}

static void KERNEL(max_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (fits_margin(pool))
        LOCAL(scatter_rows)(pool, begin, end, LOCAL(gradient_units));
    else
        fallback[OSW_POOL_ID_OF(max_backward_planes)](pool, begin, end);
}
