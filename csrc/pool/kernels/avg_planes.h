/* SPDX-License-Identifier: MIT */
/* avg and avg_backward over planes, eight planes at a time, for one dtype; included by avg_backward.h.
 */

/* One row of averages; `tile` begins with row `top` of the input. */
OSW_INLINE void LOCAL(avg_row_of_eight)(const osw_pool *pool, int64_t d, int64_t h,
                                        const float *tile, int64_t top, float *to)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const osw_range rows = rows_read(height, (osw_range){h, h + 1});
    for (int64_t w = 0; w < width->output; w++, to += 8) {
        const osw_range columns = inputs_of(width, w);
        __m256 sum = _mm256_setzero_ps();
        for (int64_t row = rows.first; row < rows.end; row++) {
            const float *x = tile + ((row - top) * width->input + columns.first) * 8;
            for (int64_t i = columns.first; i < columns.end; i++, x += 8)
                sum = _mm256_add_ps(sum, _mm256_loadu_ps(x));
        }
        const float divisor = (float)osw_avg_divisor(pool, d, h, w);
        _mm256_storeu_ps(to, ROUND8(_mm256_div_ps(sum, _mm256_set1_ps(divisor))));
    }
}

/* Rows [rows.first, rows.end) of slice d of eight outputs, which fit a tile. */
static void LOCAL(avg_tile)(const osw_pool *pool, int64_t d, osw_range rows, ELEMENT *const *x,
                            ELEMENT *const *y)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const osw_range read = rows_read(height, rows);
    float *const tile = osw_scratch_outer(2 * 8 * OCTET_TILE * sizeof(float));
    float *const made = tile + 8 * OCTET_TILE;
    ELEMENT *from[8], *to[8];
    LOCAL(move_planes)
    (x, osw_input_position(pool, d * pool->dims[DEPTH].stride, read.first, 0), from);
    LOCAL(interleave)
    ((const ELEMENT *const *)from, (read.end - read.first) * width->input, tile);
    for (int64_t h = rows.first; h < rows.end; h++)
        LOCAL(avg_row_of_eight)
    (pool, d, h, tile, read.first, made + (h - rows.first) * width->output * 8);
    LOCAL(move_planes)(y, osw_output_position(pool, d, rows.first, 0), to);
    LOCAL(separate)(made, (rows.end - rows.first) * width->output, to);
}

static void KERNEL(avg_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_octets(pool)) {
        fallback[OSW_POOL_ID_OF(avg_planes)](pool, begin, end);
        return;
    }
    const int64_t height = pool->dims[HEIGHT].output, rows = pool->dims[DEPTH].output * height;
    const int64_t most = tile_outputs(pool);
    for (int64_t unit = begin; unit < end;) {
        osw_range range;
        const int64_t count = next_planes(unit, end, rows, 8, &range);
        ELEMENT *x[8], *y[8];
        LOCAL(eight_planes)
        (&pool->input, pool->channels, pool->channel_step, unit / rows, count, x);
        LOCAL(eight_planes)(&pool->output, pool->channels, 1, unit / rows, count, y);
        for (int64_t row = range.first; row < range.end;) {
            const int64_t d = row / height, h = row % height;
            const int64_t next = osw_min(osw_min(h + most, height), h + range.end - row);
            LOCAL(avg_tile)(pool, d, (osw_range){h, next}, x, y);
            row += next - h;
        }
        unit += count * (range.end - range.first);
    }
}

/* The gradients of eight outputs over their divisors, in place. */
OSW_INLINE void LOCAL(share_eight)(const osw_pool *pool, int64_t d, osw_range rows, float *tile)
{
    for (int64_t h = rows.first; h < rows.end; h++)
        for (int64_t w = 0; w < pool->dims[WIDTH].output; w++, tile += 8) {
            const float divisor = LOAD(STORE((float)osw_avg_divisor(pool, d, h, w)));
            const __m256 share = _mm256_div_ps(_mm256_loadu_ps(tile), _mm256_set1_ps(divisor));
            _mm256_storeu_ps(tile, ROUND8(share));
        }
}

/* One row of the gradient of the input; `shares` begin with row `top` of the output. */
OSW_INLINE void LOCAL(gather_row_of_eight)(const osw_pool *pool, osw_range rows,
                                           const osw_columns *columns, const float *shares,
                                           int64_t top, float *to)
{
    const osw_pool_dim *width = &pool->dims[WIDTH];
    __m256 total = _mm256_setzero_ps();
    for (int64_t w = 0; w < width->input; w++, to += 8) {
        if (!columns->same[w]) {
            total = _mm256_setzero_ps();
            for (int64_t row = rows.first; row < rows.end; row++) {
                const float *share = shares + (row - top) * width->output * 8;
                for (int32_t i = columns->first[w]; i < columns->end[w]; i++)
                    total = ROUND_SUM8(_mm256_add_ps(total, _mm256_loadu_ps(share + i * 8)));
            }
        }
        _mm256_storeu_ps(to, total);
    }
}

/* Rows of slice d of the gradients of eight inputs, which fit a tile; `y` those of the outputs. */
static void LOCAL(gather_tile)(const osw_pool *pool, int64_t d, osw_range rows,
                               const osw_columns *columns, ELEMENT *const *y, ELEMENT *const *x)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const osw_range read = rows_reading(height, rows);
    const int64_t od = depth_reading(&pool->dims[DEPTH], d);
    float *const shares = osw_scratch_outer(2 * 8 * OCTET_TILE * sizeof(float));
    float *const made = shares + 8 * OCTET_TILE;
    ELEMENT *from[8], *to[8];
    if (od >= 0 && read.first < read.end) {
        LOCAL(move_planes)(y, osw_output_position(pool, od, read.first, 0), from);
        LOCAL(interleave)
        ((const ELEMENT *const *)from, (read.end - read.first) * width->output, shares);
        LOCAL(share_eight)(pool, od, read, shares);
        for (int64_t h = rows.first; h < rows.end; h++)
            LOCAL(gather_row_of_eight)
        (pool, outputs_of(height, h), columns, shares, read.first,
         made + (h - rows.first) * width->input * 8);
    } else {
        memset(made, 0, (size_t)((rows.end - rows.first) * width->input) * 8 * sizeof(float));
    }
    LOCAL(move_planes)(x, osw_input_position(pool, d, rows.first, 0), to);
    LOCAL(separate)(made, (rows.end - rows.first) * width->input, to);
}

/* The rows of the range of eight inputs; `y` of the outputs. */
static void LOCAL(gather_eight)(const osw_pool *pool, osw_range range, const osw_columns *columns,
                                ELEMENT *const *y, ELEMENT *const *x)
{
    const int64_t height = pool->dims[HEIGHT].input, most = tile_inputs(pool);
    for (int64_t row = range.first; row < range.end;) {
        const int64_t d = row / height, h = row % height;
        const int64_t next = osw_min(osw_min(h + most, height), h + range.end - row);
        LOCAL(gather_tile)(pool, d, (osw_range){h, next}, columns, y, x);
        row += next - h;
    }
}

/* Planes counted through image, input channel, whose `count` rows of the range are to be written;
 * those between the channels of the output are zero. */
static void LOCAL(gather_planes)(const osw_pool *pool, int64_t plane, int64_t count,
                                 osw_range range, const osw_columns *columns)
{
    const int64_t width = pool->dims[WIDTH].input;
    ELEMENT *x[8], *y[8];
    int found = 0;
    for (int64_t i = plane; i < plane + count; i++) {
        const int64_t n = i / pool->input_channels, c = i % pool->input_channels;
        ELEMENT *to = (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, n, c, 0);
        if (c % pool->channel_step != 0) {
            memset(to + range.first * width, 0,
                   (size_t)((range.end - range.first) * width) * sizeof(ELEMENT));
            continue;
        }
        y[found] = (ELEMENT *)pool->grad_output.base +
                   osw_place(&pool->grad_output, n, c / pool->channel_step, 0);
        x[found++] = to;
        if (found == 8) {
            LOCAL(gather_eight)(pool, range, columns, y, x);
            found = 0;
        }
    }
    for (int i = found; found > 0 && i < 8; i++) {
        x[i] = x[found - 1];
        y[i] = y[found - 1];
    }
    if (found > 0)
        LOCAL(gather_eight)(pool, range, columns, y, x);
}

static void KERNEL(avg_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_octets(pool)) {
        LOCAL(share_planes)(pool, begin, end);
        return;
    }
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    osw_columns columns;
    set_columns(&columns, &pool->dims[WIDTH]);
    for (int64_t unit = begin; unit < end;) {
        osw_range range;
        const int64_t most = 8 * osw_min(pool->channel_step, pool->input_channels);
        const int64_t count = next_planes(unit, end, rows, most, &range);
        LOCAL(gather_planes)(pool, unit / rows, count, range, &columns);
        unit += count * (range.end - range.first);
    }
}
