/* SPDX-License-Identifier: MIT */
/* avg and avg_backward for one dtype; included by avx2_backward.h. Neighbouring
 * positions of the input that the same windows read have the same gradient, which is computed once
 * and copied. */

/* Sums of `vectors` vectors of channels from c on, one tap after another, over the divisor. */
OSW_INLINE int64_t LOCAL(avg_channels)(const osw_taps_at *taps, int64_t c, float divisor,
                                       ELEMENT *y, const int vectors)
{
    __m256 sums[8];
    for (int v = 0; v < vectors; v++)
        sums[v] = _mm256_setzero_ps();
    for (int k = 0; k < taps->count; k++)
        for (int v = 0; v < vectors; v++)
            sums[v] = _mm256_add_ps(sums[v], LOAD8((const ELEMENT *)taps->at[k] + c + v * LANES));
    for (int v = 0; v < vectors; v++)
        STORE8(y + c + v * LANES, ROUND8(_mm256_div_ps(sums[v], _mm256_set1_ps(divisor))));
    return c + vectors * LANES;
}

/* All channels of a position. */
OSW_INLINE void LOCAL(avg_dense)(const osw_taps_at *taps, int64_t channels, float divisor,
                                 ELEMENT *y)
{
    int64_t c = 0;
    while (c + 8 * LANES <= channels)
        c = LOCAL(avg_channels)(taps, c, divisor, y, 8);
    if (c + 4 * LANES <= channels)
        c = LOCAL(avg_channels)(taps, c, divisor, y, 4);
    if (c + 2 * LANES <= channels)
        c = LOCAL(avg_channels)(taps, c, divisor, y, 2);
    while (c < channels)
        c = LOCAL(avg_channels)(taps, osw_min(c, channels - LANES), divisor, y, 1);
}

/* sums[c] += the channels of `count` taps, of which the first ones start the sums. */
OSW_INLINE void LOCAL(add_taps)(const void *const *at, int64_t from, int64_t channels, bool start,
                                float *sums, const int count)
{
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        __m256 sum = start ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + c);
        for (int k = 0; k < count; k++)
            sum = _mm256_add_ps(sum, LOAD8((const ELEMENT *)at[k] + from + c));
        _mm256_storeu_ps(sums + c, sum);
    }
    for (; c < channels; c++) {
        float sum = start ? 0 : sums[c];
        for (int k = 0; k < count; k++)
            sum += LOAD(((const ELEMENT *)at[k])[from + c]);
        sums[c] = sum;
    }
}

/* Every step-th channel of a position, of sums of all. */
static void LOCAL(avg_strided)(const osw_pool *pool, const osw_taps_at *taps, float divisor,
                               ELEMENT *y)
{
    const int64_t step = pool->channel_step, most = OSW_POOL_MAX_BLOCK / step * step;
    float sums[OSW_POOL_MAX_BLOCK];
    for (int64_t from = 0; from < pool->input_channels; from += most) {
        const int64_t channels = osw_min(most, pool->input_channels - from);
        int k = 0;
        for (; k + 4 <= taps->count; k += 4)
            LOCAL(add_taps)(taps->at + k, from, channels, k == 0, sums, 4);
        for (; k < taps->count; k++)
            LOCAL(add_taps)(taps->at + k, from, channels, k == 0, sums, 1);
        for (int64_t c = 0; c < channels; c += step)
            y[(from + c) / step] = STORE(sums[c] / divisor);
    }
}

static void KERNEL(avg_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_window(pool)) {
        fallback[OSW_POOL_ID_OF(avg_pixels)](pool, begin, end);
        return;
    }
    osw_taps_at taps;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, 1, unit);
        ELEMENT *y = (ELEMENT *)pool->output.base +
                     osw_place(&pool->output, row.image, 0,
                               osw_output_position(pool, row.depth, row.height, 0));
        for (int64_t w = 0; w < pool->dims[WIDTH].output; w++, y += pool->output.pixel_step) {
            set_taps_at(&taps, pool, &row, w, sizeof(ELEMENT));
            const float divisor = (float)osw_avg_divisor(pool, row.depth, row.height, w);
            if (pool->channel_step == 1)
                LOCAL(avg_dense)(&taps, pool->channels, divisor, y);
            else
                LOCAL(avg_strided)(pool, &taps, divisor, y);
        }
    }
}

/* What output w of row (d, h) gives to each of its taps. */
OSW_INLINE float LOCAL(share)(const osw_pool *pool, ELEMENT gradient, int64_t d, int64_t h,
                              int64_t w)
{
    const float divisor = (float)osw_avg_divisor(pool, d, h, w);
    return LOAD(STORE(LOAD(gradient) / LOAD(STORE(divisor))));
}

/* Output row (d, h) of the channel over its divisors, in its slot, filled if it is not yet there.
 */
OSW_INLINE const osw_margin_row *LOCAL(share_row)(osw_margin *margin, const osw_pool *pool,
                                                  const osw_row *row, int64_t d, int64_t h)
{
    const int64_t number = d * pool->dims[HEIGHT].output + h, slot = margin_slot(margin, d, h);
    osw_margin_row *to = &margin->rows[slot];
    if (margin->tag[slot] == number)
        return to;
    margin->tag[slot] = number;
    const osw_range even = even_outputs(pool, margin->from, margin->to);
    const ELEMENT *gradient =
        (const ELEMENT *)pool->grad_output.base +
        osw_place(&pool->grad_output, row->image, row->channel, osw_output_position(pool, d, h, 0));
    float *share = to->gradient - margin->first;
    int64_t w = margin->from;
    for (; w < even.first; w++)
        share[w] = LOCAL(share)(pool, gradient[w], d, h, w);
    if (w + LANES <= even.end) {
        const float count = LOAD(STORE((float)osw_avg_divisor(pool, d, h, w)));
        for (; w + LANES <= even.end; w += LANES)
            _mm256_storeu_ps(share + w,
                             ROUND8(_mm256_div_ps(LOAD8(gradient + w), _mm256_set1_ps(count))));
    }
    for (; w < margin->to; w++)
        share[w] = LOCAL(share)(pool, gradient[w], d, h, w);
    return to;
}

/* sums[i] of the columns of one remainder. */
static void LOCAL(add_columns)(const osw_met *met, const osw_remainder *remainder, float *sums,
                               int64_t columns)
{
    for (int64_t i = 0; i < columns; i += LANES) {
        __m256 total = _mm256_setzero_ps();
        for (int r = 0; r < met->count; r++)
            for (int k = remainder->count - 1; k >= 0; k--) {
                const float *share = met->row[r]->gradient + remainder->at[k] + i;
                total = ROUND_SUM8(_mm256_add_ps(total, _mm256_loadu_ps(share)));
            }
        _mm256_storeu_ps(sums + i, total);
    }
}

/* One row of the strip that meets the outputs of the margin's ranges. */
static void LOCAL(share_line)(osw_margin *margin, const osw_pool *pool, const osw_row *row,
                              ELEMENT *to)
{
    osw_met met = {.count = 0};
    for (int64_t d = margin->depth.first; d < margin->depth.end; d++)
        for (int64_t h = margin->height.first; h < margin->height.end; h++)
            met.row[met.count++] = LOCAL(share_row)(margin, pool, row, d, h);
    for (int64_t s = 0; s < margin->stride; s++)
        LOCAL(add_columns)
    (&met, &margin->remainders[s], margin->sums + s * margin->room,
     osw_ceil_div(margin->columns, margin->stride));
    LOCAL(merge)(margin, to);
}

/* `count` rows of one plane, from `row` on. */
static void LOCAL(share_rows)(osw_margin *margin, const osw_pool *pool, osw_row row, int64_t count)
{
    const int64_t width = pool->dims[WIDTH].input, height = pool->dims[HEIGHT].input;
    const int64_t first = row.depth * height + row.height;
    ELEMENT *plane = (ELEMENT *)pool->grad_input.base +
                     osw_place(&pool->grad_input, row.image, row.channel, first * width);
    if (row.channel % pool->channel_step != 0) {
        memset(plane, 0, (size_t)(count * width) * sizeof(ELEMENT));
        return;
    }
    row.channel /= pool->channel_step;
    for (int64_t column = 0; column < width; column += margin->columns) {
        begin_margin(margin, pool, column);
        for (int64_t i = 0; i < count; i++) {
            ELEMENT *to = plane + i * width + column;
            row.depth = (first + i) / height;
            row.height = (first + i) % height;
            if (meet_outputs(margin, pool, &row) && i > 0)
                memcpy(to, to - width, (size_t)margin->columns * sizeof(ELEMENT));
            else
                LOCAL(share_line)(margin, pool, &row, to);
        }
    }
}

/* avg_backward of planes with steps between channels, deep windows or long rows. */
static void LOCAL(share_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_margin(pool)) {
        fallback[OSW_POOL_ID_OF(avg_backward_planes)](pool, begin, end);
        return;
    }
    osw_margin margin;
    margin.column = -1;
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    for (int64_t unit = begin; unit < end;) {
        const int64_t count = osw_min(end - unit, rows - unit % rows);
        LOCAL(share_rows)
        (&margin, pool, osw_input_row(pool, pool->input_channels, unit), count);
        unit += count;
    }
}

/* Output row (d, h) in its slot, filled if it is not yet there. */
static const float *LOCAL(ring_row)(osw_ring *ring, const osw_pool *pool, int64_t d, int64_t h)
{
    const int64_t width = pool->dims[WIDTH].output, channels = ring->channels;
    const int64_t slot = d % ring->slots_depth * ring->slots_height + h % ring->slots_height;
    const int64_t number = d * pool->dims[HEIGHT].output + h;
    float *share = ring->share + slot * width * channels;
    if (ring->tag[slot] == number)
        return share;
    ring->tag[slot] = number;
    const ELEMENT *gradient =
        (const ELEMENT *)pool->grad_output.base +
        osw_place(&pool->grad_output, ring->image, ring->first, osw_output_position(pool, d, h, 0));
    for (int64_t w = 0; w < width; w++, gradient += pool->grad_output.pixel_step) {
        const float count = LOAD(STORE((float)osw_avg_divisor(pool, d, h, w)));
        for (int64_t i = 0; i < channels; i += LANES) {
            const int64_t c = osw_min(i, channels - LANES);
            const __m256 quotient = _mm256_div_ps(LOAD8(gradient + c), _mm256_set1_ps(count));
            _mm256_storeu_ps(share + w * channels + c, ROUND8(quotient));
        }
    }
    return share;
}

/* Sums of `vectors` vectors of channels over the outputs of `columns` in all slots. */
OSW_INLINE void LOCAL(sum_shares)(const osw_slots *slots, osw_range columns, int64_t channels,
                                  int64_t c, ELEMENT *to, const int vectors)
{
    __m256 total[4];
    for (int v = 0; v < vectors; v++)
        total[v] = _mm256_setzero_ps();
    for (int slot = 0; slot < slots->count; slot++)
        for (int64_t w = columns.first; w < columns.end; w++)
            for (int v = 0; v < vectors; v++) {
                const float *share = slots->at[slot] + w * channels + c + v * LANES;
                total[v] = ROUND_SUM8(_mm256_add_ps(total[v], _mm256_loadu_ps(share)));
            }
    for (int v = 0; v < vectors; v++)
        STORE8(to + c + v * LANES, total[v]);
}

/* The block's channels of one position; what lies between them is zero. */
OSW_INLINE void LOCAL(share_position)(const osw_ring *ring, const osw_pool *pool,
                                      const osw_slots *slots, osw_range columns, ELEMENT *to)
{
    const int64_t step = pool->channel_step, channels = ring->channels;
    ELEMENT dense[OSW_POOL_MAX_BLOCK], *made = step == 1 ? to : dense;
    int64_t c = 0;
    for (; c + 4 * LANES <= channels; c += 4 * LANES)
        LOCAL(sum_shares)(slots, columns, channels, c, made, 4);
    for (; c < channels; c += LANES)
        LOCAL(sum_shares)(slots, columns, channels, osw_min(c, channels - LANES), made, 1);
    if (step == 1)
        return;
    memset(to, 0, (size_t)ring_inputs(ring, pool) * sizeof(ELEMENT));
    for (c = 0; c < channels; c++)
        to[c * step] = dense[c];
}

/* The block's channels of one row of the input. */
static void LOCAL(share_pixels)(osw_ring *ring, const osw_pool *pool, const osw_row *row,
                                ELEMENT *to)
{
    const osw_pool_dim *width = &pool->dims[WIDTH];
    const osw_range depth = outputs_of(&pool->dims[DEPTH], row->depth);
    const osw_range height = outputs_of(&pool->dims[HEIGHT], row->height);
    const int64_t step = pool->grad_input.pixel_step;
    const size_t bytes = (size_t)ring_inputs(ring, pool) * sizeof(ELEMENT);
    osw_slots slots = {.count = 0};
    for (int64_t d = depth.first; d < depth.end; d++)
        for (int64_t h = height.first; h < height.end; h++)
            slots.at[slots.count++] = LOCAL(ring_row)(ring, pool, d, h);
    osw_range before = {-1, -1};
    for (int64_t w = 0; w < width->input; w++, to += step) {
        const osw_range columns = outputs_of(width, w);
        if (same_range(columns, before)) {
            memcpy(to, to - step, bytes);
            continue;
        }
        before = columns;
        LOCAL(share_position)(ring, pool, &slots, columns, to);
    }
}

/* Rows [begin, end) of one image, for a block of channels. */
static void LOCAL(share_image)(osw_ring *ring, const osw_pool *pool, int64_t begin, int64_t end)
{
    const bool whole = ring_inputs(ring, pool) == pool->grad_input.pixel_step;
    const int64_t length = pool->dims[WIDTH].input * pool->grad_input.pixel_step;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_input_row(pool, 1, unit);
        ELEMENT *to = (ELEMENT *)pool->grad_input.base +
                      osw_place(&pool->grad_input, row.image, ring->first * pool->channel_step,
                                osw_input_position(pool, row.depth, row.height, 0));
        if (whole && unit > begin && as_row_before(pool, &row))
            memcpy(to, to - length, (size_t)length * sizeof(ELEMENT));
        else
            LOCAL(share_pixels)(ring, pool, &row, to);
    }
}

static void KERNEL(avg_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_window(pool) || ring_channels(pool) < LANES) {
        fallback[OSW_POOL_ID_OF(avg_backward_pixels)](pool, begin, end);
        return;
    }
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    const int64_t block = ring_channels(pool);
    osw_ring *const ring = osw_scratch_outer(sizeof *ring);
    for (int64_t unit = begin; unit < end;) {
        const int64_t next = osw_min(end, (unit / rows + 1) * rows);
        for (int64_t i = 0; i < pool->channels; i += block) {
            const int64_t count = osw_min(osw_max(LANES, pool->channels - i), block);
            begin_ring(ring, pool, unit / rows, osw_min(i, pool->channels - count), count);
            LOCAL(share_image)(ring, pool, unit, next);
        }
        unit = next;
    }
}

#include "pool/kernels/interleave.h"

#include "pool/kernels/avg_planes.h"
