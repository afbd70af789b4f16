/* SPDX-License-Identifier: MIT */
/* What max_backward over planes needs for windows of two or three rows and columns whatever the
 * dtype; included by pool_avx2_backward.c inside its target region. */

enum { MAX_LINE = 2048, BEYOND = 2 * LANES, MAX_MET = 4 };

/* How the windows lie along one dimension: window o of a block meets position s of the block with
 * its tap `tap` + s - o * stride, if it has that tap. */
typedef struct osw_side {
    int kernel;
    int stride;
    int tap;
} osw_side;

#define SIDE_K3S1   {3, 1, 2}
#define SIDE_K3S2   {3, 2, 2}
#define SIDE_K3S2P1 {3, 2, 1}
#define SIDE_K2S2   {2, 2, 0}

/* Windows that meet a block of `positions`. */
OSW_INLINE int windows_met(osw_side side, int positions)
{
    return (side.tap + positions - 1) / side.stride + 1;
}

/* Of the first window that meets position 0 or, with a stride of 2, position 1. */
static inline osw_side side_of(const osw_pool_dim *dim)
{
    const int64_t before = (dim->kernel - 1 - dim->padding) / dim->stride;
    return (osw_side){(int)dim->kernel, (int)dim->stride,
                      (int)(dim->padding + before * dim->stride)};
}

/* That window, which may lie before the output. */
OSW_INLINE int64_t first_window(const osw_pool_dim *dim, const osw_side side)
{
    return (dim->padding - side.tap) / side.stride;
}

static inline bool same_side(osw_side a, osw_side b)
{
    return a.kernel == b.kernel && a.stride == b.stride && a.tap == b.tap;
}

static inline bool fits_lines(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return !pool->wide && dims[DEPTH].kernel == 1 && dims[HEIGHT].dilation == 1 &&
           dims[WIDTH].dilation == 1 && dims[WIDTH].output <= MAX_LINE &&
           dims[WIDTH].input <= 2 * MAX_LINE;
}

/* Elements from the base to the end of the last plane. */
static inline int64_t extent_of(const osw_pool *pool, const osw_pool_tensor *t)
{
    return osw_place(t, pool->images - 1, pool->channels - 1, osw_output_plane(pool));
}

/* Rows of the slice of the output at `at`, around which whole vectors can be read within `extent`
 * elements. */
static inline osw_range readable_rows(const osw_pool *pool, int64_t at, int64_t extent)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const int64_t height = pool->dims[HEIGHT].output, width = dim->output;
    const int64_t behind = osw_max(dim->input / dim->stride - width, 0) + BEYOND;
    if (at >= BEYOND && at + height * width + behind <= extent)
        return (osw_range){0, height};
    return (osw_range){
        .first = osw_ceil_div(BEYOND - at, width),
        .end = osw_min(height, osw_max(extent - behind - at, 0) / width),
    };
}

/* Lanes that hold columns [0, width) where lane 0 holds column `at`. */
OSW_INLINE __m256 columns_within(int64_t at, int64_t width)
{
    static const int32_t ramp[3 * LANES] = {0,  0,  0,  0,  0, 0, 0, 0, -1, -1, -1, -1,
                                            -1, -1, -1, -1, 0, 0, 0, 0, 0,  0,  0,  0};
    const int64_t before = osw_min(osw_max(-at, 0), LANES);
    const int64_t behind = osw_min(osw_max(at + LANES - width, 0), LANES);
    return _mm256_castsi256_ps(
        _mm256_and_si256(load_ints(ramp + LANES - before), load_ints(ramp + LANES + behind)));
}
