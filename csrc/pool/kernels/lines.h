/* SPDX-License-Identifier: MIT */
/* Windows of two or three rows and columns over planes: max and its backward work on two lines at a
 * time, and read whole vectors where the rows lie, up to BEYOND elements outside. */
#ifndef OSW_POOL_LINES_H
#define OSW_POOL_LINES_H

#include "core/simd.h"
#include "pool/window.h"

enum { MAX_LINE = 4096, BEYOND = 3 * LANES, MAX_MET = 4, MAX_ROWS = 5 };

/* How the windows lie along one dimension: window o of a block overlaps position s of the block
 * with its tap `tap` + s - o * stride, if it has that tap. */
typedef struct osw_side {
    int kernel;
    int stride;
    int tap;
} osw_side;

#define SIDE_K3S1   {3, 1, 2}
#define SIDE_K3S2   {3, 2, 2}
#define SIDE_K3S2P1 {3, 2, 1}
#define SIDE_K2S2   {2, 2, 0}

/* Windows that overlap a block of `positions`. */
OSW_INLINE int windows_met(osw_side side, int positions)
{
    return (side.tap + positions - 1) / side.stride + 1;
}

/* Of the first window that overlaps position 0 or, with a stride of 2, position 1. */
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

/* Lanes that hold columns [0, width) if lane 0 holds column `at`. */
OSW_INLINE vi32 columns_within(int64_t at, int64_t width)
{
    enum { MOST = 16 };
    static const int32_t ramp[3 * MOST] = {[MOST] = -1, -1, -1, -1, -1, -1, -1, -1,
                                           -1,          -1, -1, -1, -1, -1, -1, -1};
    const int64_t before = osw_min(osw_max(-at, 0), LANES);
    const int64_t behind = osw_min(osw_max(at + LANES - width, 0), LANES);
    return load_i32(ramp + MOST - before) & load_i32(ramp + 2 * MOST - LANES + behind);
}

/* inside[k]: where tap k of LANES windows is in the input, the first window beginning at `column`;
 * with a stride of 2 in the order of even_f32. */
OSW_INLINE void find_inside(vi32 *inside, int64_t column, int64_t width, const osw_side columns)
{
    for (int k = 0; k < columns.kernel; k++) {
        inside[k] = columns_within(column + k, width);
        if (columns.stride == 2)
            inside[k] =
                (vi32)even_f32((vf32)inside[k], (vf32)columns_within(column + k + LANES, width));
    }
}

/* `size` bytes, `whole` in the calls that matter: no call of memcpy for these. */
OSW_INLINE void copy_part(void *to, const void *from, size_t size, const size_t whole)
{
    if (size == whole)
        memcpy(to, from, whole);
    else
        memcpy(to, from, size);
}

#endif
