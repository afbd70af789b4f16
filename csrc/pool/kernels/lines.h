/* SPDX-License-Identifier: MIT */
/* What max and its backward over planes need for windows of two or three rows and columns whatever
 * the dtype; included inside a target region. Both work on two lines at a time, and read whole
 * vectors where the rows lie, up to BEYOND elements outside. */

enum { MAX_LINE = 4096, BEYOND = 3 * LANES, MAX_MET = 4, MAX_ROWS = 5 };

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

/* Whether the windows reach as far as they can. */
static inline bool covers(const osw_pool_dim *dim)
{
    return dim->output * dim->stride > dim->input + 2 * dim->padding - dim->kernel;
}

static inline bool fits_lines(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return !pool->wide && dims[DEPTH].kernel == 1 && dims[HEIGHT].dilation == 1 &&
           dims[WIDTH].dilation == 1 && dims[WIDTH].output <= MAX_LINE &&
           dims[WIDTH].input <= MAX_LINE && covers(&dims[HEIGHT]) && covers(&dims[WIDTH]);
}

/* Rows of a slice at element `at`, each with BEYOND elements on either side within a tensor of
 * `extent` elements. */
static inline osw_range readable_rows(int64_t at, int64_t extent, int64_t height, int64_t width)
{
    if (at >= BEYOND && at + height * width + BEYOND <= extent)
        return (osw_range){0, height};
    return (osw_range){
        .first = osw_ceil_div(BEYOND - at, width),
        .end = osw_min(height, osw_max(extent - BEYOND - at, 0) / width),
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

/* `size` bytes, `whole` in the calls that matter: no call of memcpy for these. */
OSW_INLINE void copy_part(void *to, const void *from, size_t size, const size_t whole)
{
    if (size == whole)
        memcpy(to, from, whole);
    else
        memcpy(to, from, size);
}
