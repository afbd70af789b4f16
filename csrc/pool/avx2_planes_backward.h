/* SPDX-License-Identifier: MIT */
/* max_backward over planes for one dtype; included by avx2_backward.h.
 *
 * Rows of the output are copied with a margin, gradients as floats, and kept for the input rows
 * that share them. Columns of the input that have the same remainder modulo the stride see the same
 * taps: for each remainder, a pixel is the sum of the gradients whose offset is the tap, row after
 * row in the order of the output. */

/* `count` gradients as floats. */
OSW_INLINE void LOCAL(copy_floats)(const ELEMENT *from, float *to, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm256_storeu_ps(to + i, LOAD8(from + i));
    if (i < count && count >= LANES)
        _mm256_storeu_ps(to + count - LANES, LOAD8(from + count - LANES));
    else
        for (; i < count; i++)
            to[i] = LOAD(from[i]);
}

/* Output row (d, h) of the channel, in its slot, filled if it is not yet there. */
OSW_INLINE const osw_margin_row *LOCAL(margin_row)(osw_margin *margin, const osw_pool *pool,
                                                   const osw_row *row, int64_t d, int64_t h)
{
    const int64_t number = d * pool->dims[HEIGHT].output + h;
    const int64_t slot = margin_slot(margin, d, h);
    osw_margin_row *to = &margin->rows[slot];
    if (margin->tag[slot] == number)
        return to;
    margin->tag[slot] = number;
    const int64_t position = osw_output_position(pool, d, h, margin->from);
    const ELEMENT *gradient = (const ELEMENT *)pool->grad_output.base +
                              osw_place(&pool->grad_output, row->image, row->channel, position);
    const uint8_t *offsets = (const uint8_t *)pool->offsets.base +
                             osw_place(&pool->offsets, row->image, row->channel, position);
    const int64_t count = margin->to - margin->from, at = margin->from - margin->first;
    LOCAL(copy_floats)(gradient, to->gradient + at, count);
    copy_bytes(offsets, to->offset + at, count);
    return to;
}

OSW_INLINE void LOCAL(meet)(osw_met *met, osw_margin *margin, const osw_pool *pool,
                            const osw_row *row)
{
    const osw_pool_dim *dims = pool->dims;
    meet_outputs(margin, pool, row);
    met->count = 0;
    for (int64_t d = margin->depth.first; d < margin->depth.end; d++)
        for (int64_t h = margin->height.first; h < margin->height.end; h++) {
            met->row[met->count] = LOCAL(margin_row)(margin, pool, row, d, h);
            met->tap[met->count++] =
                osw_tap(pool, row->depth + dims[DEPTH].padding - d * dims[DEPTH].stride,
                        row->height + dims[HEIGHT].padding - h * dims[HEIGHT].stride, 0);
        }
}

/* Copy the rows that the next input rows meet: what has just been stored cannot be loaded at once
 * at another alignment. */
OSW_INLINE void LOCAL(meet_ahead)(osw_margin *margin, const osw_pool *pool, const osw_row *row)
{
    const int64_t end = osw_min(margin->height.end + AHEAD, pool->dims[HEIGHT].output);
    for (int64_t d = margin->depth.first; d < margin->depth.end; d++)
        for (int64_t h = margin->height.end; h < end; h++)
            LOCAL(margin_row)(margin, pool, row, d, h);
}

/* The same for any dilation. */
static void LOCAL(meet_dilated)(osw_met *met, osw_margin *margin, const osw_pool *pool,
                                const osw_row *row)
{
    osw_walk walk = osw_walk_begin(pool, row);
    met->count = 0;
    while (osw_walk_next(&walk)) {
        met->row[met->count] = LOCAL(margin_row)(margin, pool, row, walk.od, walk.oh);
        met->tap[met->count++] = osw_tap(pool, walk.kd, walk.kh, 0);
    }
}

/* sums[i] of the columns of one remainder, for any window. */
static void LOCAL(sum_columns)(const osw_met *met, const osw_remainder *remainder, float *sums,
                               int64_t columns)
{
    for (int64_t i = 0; i < columns; i += LANES) {
        __m256 total = _mm256_setzero_ps();
        for (int r = 0; r < met->count; r++)
            for (int k = remainder->count - 1; k >= 0; k--) {
                const int64_t at = remainder->at[k] + i;
                const __m256i hit =
                    _mm256_cmpeq_epi32(load_taps(met->row[r]->offset + at),
                                       _mm256_set1_epi32(met->tap[r] + remainder->tap[k]));
                const __m256 gradient = _mm256_loadu_ps(met->row[r]->gradient + at);
                total = ROUND_SUM8(
                    _mm256_add_ps(total, _mm256_and_ps(gradient, _mm256_castsi256_ps(hit))));
            }
        _mm256_storeu_ps(sums + i, total);
    }
}

/* The sums of all remainders, a column after the other. */
OSW_INLINE void LOCAL(merge)(const osw_margin *margin, ELEMENT *to)
{
    const int64_t stride = margin->stride;
    for (int64_t s = 0; s < stride; s++) {
        const float *sums = margin->sums + s * margin->room;
        for (int64_t i = s; i < margin->columns; i += stride)
            to[i] = STORE(*sums++);
    }
}

static void LOCAL(any_line)(osw_margin *margin, const osw_met *met, ELEMENT *to)
{
    const int64_t stride = margin->stride;
    for (int64_t s = 0; s < stride; s++)
        LOCAL(sum_columns)
    (met, &margin->remainders[s], margin->sums + s * margin->room,
     osw_ceil_div(margin->columns, stride));
    LOCAL(merge)(margin, to);
}

/* Eight columns of one remainder, of one line of the input or of two that are neighbours; of two,
 * line l has no use for row l - 1 from either end, and the taps of its rows are those of the other.
 */
OSW_INLINE void LOCAL(sum_taps)(__m256 *totals, const osw_met *met, const __m256i *codes,
                                int64_t at, const int rows, const int taps, const int lines)
{
    for (int l = 0; l < lines; l++)
        totals[l] = _mm256_setzero_ps();
    for (int r = 0; r < rows + lines - 1; r++)
        for (int k = 0; k < taps; k++) {
            const __m256i offset = load_taps(met->row[r]->offset + at + k);
            __m256 gradient = _mm256_loadu_ps(met->row[r]->gradient + at + k);
            KEEP_IN_PLACE(gradient);
            for (int l = 0; l < lines; l++) {
                if (r < l || r >= rows + l)
                    continue;
                const __m256i hit = _mm256_cmpeq_epi32(offset, codes[(r - l) * taps + k]);
                totals[l] =
                    _mm256_add_ps(totals[l], _mm256_and_ps(gradient, _mm256_castsi256_ps(hit)));
                if (r > l || k > 0)
                    totals[l] = ROUND_SUM8(totals[l]);
                KEEP_IN_PLACE(totals[l]);
            }
        }
}

OSW_INLINE void LOCAL(block)(const osw_margin *margin, const osw_met *met, const __m256i *codes,
                             ELEMENT *to, int64_t pitch, int64_t i, const int rows, const int even,
                             const int odd, const int lines)
{
    const osw_remainder *remainders = margin->remainders;
    __m256 a[2], b[2], low, high;
    LOCAL(sum_taps)(a, met, codes, remainders[0].at[even - 1] + i, rows, even, lines);
    if (odd)
        LOCAL(sum_taps)
    (b, met, codes + rows * even, remainders[1].at[odd - 1] + i, rows, odd, lines);
    for (int l = 0; l < lines; l++) {
        if (!odd) {
            STORE8(to + l * pitch, a[l]);
            continue;
        }
        zip(a[l], b[l], &low, &high);
        STORE8(to + l * pitch, low);
        STORE8(to + l * pitch + LANES, high);
    }
}

/* `lines` lines of the input that meet `rows` rows each, in a window whose taps along the width are
 * split into `even` and `odd` by a stride of 2, or all `even`. */
OSW_INLINE void LOCAL(blocks)(const osw_margin *margin, const osw_met *met, ELEMENT *to,
                              const int rows, const int even, const int odd, const int lines)
{
    const int stride = odd ? 2 : 1;
    const int64_t width = margin->columns, pitch = margin->pitch, block = LANES * stride;
    __m256i codes[9];
    spread_codes(codes, met, &margin->remainders[0], rows, even, stride);
    if (odd)
        spread_codes(codes + rows * even, met, &margin->remainders[1], rows, odd, stride);
    int64_t c = 0;
    for (; c + block <= width; c += block)
        LOCAL(block)(margin, met, codes, to + c, pitch, c / stride, rows, even, odd, lines);
    if (c == width)
        return;
    if (width >= block && width % stride == 0) {
        c = width - block;
        LOCAL(block)(margin, met, codes, to + c, pitch, c / stride, rows, even, odd, lines);
        return;
    }
    ELEMENT last[2][2 * LANES];
    LOCAL(block)(margin, met, codes, last[0], 2 * LANES, c / stride, rows, even, odd, lines);
    for (int l = 0; l < lines; l++)
        for (int64_t j = c; j < width; j++)
            to[l * pitch + j] = last[l][j - c];
}

OSW_INLINE void LOCAL(lines_of)(const osw_margin *margin, const osw_met *met, ELEMENT *to,
                                const int even, const int odd, const int lines)
{
    if (lines == 2)
        LOCAL(blocks)(margin, met, to, 3, even, odd, 2);
    else if (met->count == 1)
        LOCAL(blocks)(margin, met, to, 1, even, odd, 1);
    else if (met->count == 2)
        LOCAL(blocks)(margin, met, to, 2, even, odd, 1);
    else
        LOCAL(blocks)(margin, met, to, 3, even, odd, 1);
}

/* Windows of up to three rows and columns, stride 1 or 2 along the width: false for others. */
OSW_INLINE bool LOCAL(small_window)(const osw_margin *margin, const osw_met *met, ELEMENT *to,
                                    const int lines)
{
    const int rows = met->count - lines + 1;
    const int even = margin->remainders[0].count, odd = margin->remainders[1].count;
    if (rows < 1 || rows > 3 || margin->stride > 2)
        return false;
    if (even == 3 && margin->stride == 1)
        LOCAL(lines_of)(margin, met, to, 3, 0, lines);
    else if (margin->stride == 1)
        return false;
    else if (even == 1 && odd == 1)
        LOCAL(lines_of)(margin, met, to, 1, 1, lines);
    else if (even == 1 && odd == 2)
        LOCAL(lines_of)(margin, met, to, 1, 2, lines);
    else if (even == 2 && odd == 1)
        LOCAL(lines_of)(margin, met, to, 2, 1, lines);
    else
        return false;
    return true;
}

/* Whether the row after `row`, too, meets three rows, and only one that `row` does not. */
OSW_INLINE bool LOCAL(is_pair)(const osw_margin *margin, const osw_pool *pool, const osw_row *row)
{
    const osw_pool_dim *dim = &pool->dims[HEIGHT];
    return pool->dims[DEPTH].kernel == 1 && dim->kernel == 3 && dim->stride == 1 &&
           row->height + 1 < dim->input && margin->height.end - margin->height.first == 3 &&
           margin->height.end < dim->output;
}

/* Rows of the input from `row` on, in the columns of the strip; `row` holds the channel of the
 * output. Returns how many of at most `count`. */
OSW_INLINE int64_t LOCAL(gradient_lines)(osw_margin *margin, const osw_pool *pool,
                                         const osw_row *row, int64_t count, ELEMENT *to)
{
    osw_met met;
    if (is_dilated(pool)) {
        LOCAL(meet_dilated)(&met, margin, pool, row);
        LOCAL(any_line)(margin, &met, to);
        return 1;
    }
    LOCAL(meet)(&met, margin, pool, row);
    LOCAL(meet_ahead)(margin, pool, row);
    if (count > 1 && met.count == 3 && LOCAL(is_pair)(margin, pool, row)) {
        met.row[met.count++] =
            LOCAL(margin_row)(margin, pool, row, margin->depth.first, margin->height.end);
        if (LOCAL(small_window)(margin, &met, to, 2))
            return 2;
        met.count--;
    }
    if (!LOCAL(small_window)(margin, &met, to, 1))
        LOCAL(any_line)(margin, &met, to);
    return 1;
}

/* `count` rows of one plane, from `row` on. */
static void LOCAL(gradient_rows)(osw_margin *margin, const osw_pool *pool, osw_row row,
                                 int64_t count)
{
    const int64_t width = pool->dims[WIDTH].input, height = pool->dims[HEIGHT].input;
    const int64_t first = row.depth * height + row.height;
    ELEMENT *to = (ELEMENT *)pool->grad_input.base +
                  osw_place(&pool->grad_input, row.image, row.channel, first * width);
    if (row.channel % pool->channel_step != 0) {
        memset(to, 0, (size_t)(count * width) * sizeof(ELEMENT));
        return;
    }
    row.channel /= pool->channel_step;
    for (int64_t column = 0; column < width; column += margin->columns) {
        begin_margin(margin, pool, column);
        osw_row line = row;
        for (int64_t i = 0; i < count;) {
            const int64_t done =
                LOCAL(gradient_lines)(margin, pool, &line, count - i, to + i * width + column);
            i += done;
            line.height += done;
            if (line.height == height) {
                line.height = 0;
                line.depth++;
            }
        }
    }
}

static void LOCAL(gradient_units)(const osw_pool *pool, int64_t begin, int64_t end)
{
    osw_margin margin;
    margin.column = -1;
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    for (int64_t unit = begin; unit < end;) {
        const int64_t count = osw_min(end - unit, rows - unit % rows);
        LOCAL(gradient_rows)
        (&margin, pool, osw_input_row(pool, pool->input_channels, unit), count);
        unit += count;
    }
}

/* In rows of few vectors, what has to be done once a row weighs more than a scalar loop. */
static void KERNEL(max_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_margin(pool))
        fallback[OSW_POOL_ID_OF(max_backward_planes)](pool, begin, end);
    else if (pool->dims[WIDTH].output <= NARROW)
        LOCAL(scatter_rows)(pool, begin, end, LOCAL(gradient_units));
    else
        LOCAL(gradient_units)(pool, begin, end);
}
