/* SPDX-License-Identifier: MIT */
/* Eight planes of one dtype, side by side and back; included after tile.h. */

/* `count` neighbouring elements of eight planes, side by side. */
static void LOCAL(interleave)(const ELEMENT *const *planes, int64_t count, float *to)
{
    for (int64_t i = 0; count >= LANES && i < count; i += LANES) {
        const int64_t at = osw_min(i, count - LANES);
        __m256 v[8];
        for (int plane = 0; plane < 8; plane++)
            v[plane] = LOAD8(planes[plane] + at);
        transpose8(v);
        for (int position = 0; position < 8; position++)
            _mm256_storeu_ps(to + (at + position) * 8, v[position]);
    }
    for (int64_t i = 0; count < LANES && i < count; i++)
        for (int plane = 0; plane < 8; plane++)
            to[i * 8 + plane] = LOAD(planes[plane][i]);
}

/* The same back, values of the dtype. */
static void LOCAL(separate)(const float *from, int64_t count, ELEMENT *const *planes)
{
    for (int64_t i = 0; count >= LANES && i < count; i += LANES) {
        const int64_t at = osw_min(i, count - LANES);
        __m256 v[8];
        for (int position = 0; position < 8; position++)
            v[position] = _mm256_loadu_ps(from + (at + position) * 8);
        transpose8(v);
        for (int plane = 0; plane < 8; plane++)
            STORE8(planes[plane] + at, v[plane]);
    }
    for (int64_t i = 0; count < LANES && i < count; i++)
        for (int plane = 0; plane < 8; plane++)
            planes[plane][i] = STORE(from[i * 8 + plane]);
}

/* The first elements of eight planes, counted through image, channel, of which the last may stand
 * for several. */
OSW_INLINE void LOCAL(eight_planes)(const osw_pool_tensor *t, int64_t channels, int64_t step,
                                    int64_t plane, int64_t count, ELEMENT **at)
{
    for (int64_t i = 0; i < 8; i++) {
        const int64_t number = plane + osw_min(i, count - 1);
        at[i] = (ELEMENT *)t->base + osw_place(t, number / channels, number % channels * step, 0);
    }
}

OSW_INLINE void LOCAL(move_planes)(ELEMENT *const *planes, int64_t by, ELEMENT **moved)
{
    for (int i = 0; i < 8; i++)
        moved[i] = planes[i] + by;
}
