/* SPDX-License-Identifier: MIT */
/* The AVX2 kernels of one width; included once a width by channels_avx2.c, inside its target
 * region, with WIDTH and ELEMENT defined. A run takes the largest vectors that its columns fill;
 * runs too short for any go to the scalar loops. Eight rows stay with 128-bit vectors: mending the
 * order of 256-bit ones costs what they save. */

#define JOIN_(a, b)      a##b
#define JOIN(a, b)       JOIN_(a, b)
#define WITH_WIDTH(name) JOIN(name##_x, WIDTH)
#define KERNEL(name)     JOIN(JOIN(osw_##name##_x, WIDTH), __avx2)
#define MAX_TILE_ROWS    8

/* Addresses of one pixel of a run, and the prefetch of those that follow. */
OSW_INLINE ELEMENT *WITH_WIDTH(locate)(const osw_run *run, int64_t image, int64_t pixel,
                                       ELEMENT **narrow, const int rows)
{
    char *wide = osw_at(&run->wide, image, pixel);
    for (int i = 0; i < rows; i++)
        narrow[i] = (ELEMENT *)osw_at(&run->narrow[i], image, pixel);
    if (osw_prefetch_ahead) {
        const int64_t row_bytes = run->columns * (int64_t)sizeof(ELEMENT);
        prefetch(wide, row_bytes * rows);
        for (int i = 0; i < rows; i++)
            prefetch((const char *)narrow[i], row_bytes);
    }
    return (ELEMENT *)wide;
}

#if WIDTH == 8
#    define VECTOR 32
#    define VEC    __m128i
#    include "channels/avx2_tile.h"
#endif

#if WIDTH < 64
#    define VECTOR 64
#    define VEC    __m128i
#    include "channels/avx2_tile.h"
#endif

#define VECTOR 128
#define VEC    __m128i
#include "channels/avx2_tile.h"

#define VECTOR 256
#define VEC    __m256i
#include "channels/avx2_tile.h"

/* Fewer columns than the smallest vector holds. */
OSW_INLINE void WITH_WIDTH(short)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                                  const int interleave)
{
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = (ELEMENT *)osw_at(&run->wide, image, p);
        for (int64_t i = 0; i < run->rows; i++) {
            ELEMENT *narrow = (ELEMENT *)osw_at(&run->narrow[i], image, p);
            for (int64_t j = 0; j < run->columns; j++) {
                if (interleave)
                    wide[j * run->rows + i] = narrow[j];
                else
                    narrow[j] = wide[j * run->rows + i];
            }
        }
    }
}

OSW_INLINE void WITH_WIDTH(fixed)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                                  const int rows, const int interleave)
{
    if (rows == 2 && run->columns >= 256 / WIDTH)
        JOIN(WITH_WIDTH(fixed), _v256)(run, image, begin, end, rows, interleave);
    else if (run->columns >= 128 / WIDTH)
        JOIN(WITH_WIDTH(fixed), _v128)(run, image, begin, end, rows, interleave);
#if WIDTH < 64
    else if (run->columns >= 64 / WIDTH)
        JOIN(WITH_WIDTH(fixed), _v64)(run, image, begin, end, rows, interleave);
#endif
    else
        WITH_WIDTH(short)(run, image, begin, end, interleave);
}

/* A column of a tile must fill whole vectors: 8 rows fill 64 bits of bytes, 4 rows 64 bits of
 * 16-bit elements. */
OSW_INLINE void WITH_WIDTH(any)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                                const int interleave)
{
#if WIDTH > 8
    if (run->rows >= 8 && run->columns >= 128 / WIDTH) {
        JOIN(WITH_WIDTH(any), _v128)(run, image, begin, end, 8, interleave);
        return;
    }
#endif
#if WIDTH < 64
    if (run->rows >= 8 && run->columns >= 64 / WIDTH) {
        JOIN(WITH_WIDTH(any), _v64)(run, image, begin, end, 8, interleave);
        return;
    }
#endif
#if WIDTH > 16
    if (run->rows >= 4 && run->columns >= 128 / WIDTH) {
        JOIN(WITH_WIDTH(any), _v128)(run, image, begin, end, 4, interleave);
        return;
    }
#endif
#if WIDTH == 16
    if (run->rows >= 4 && run->columns >= 64 / WIDTH) {
        JOIN(WITH_WIDTH(any), _v64)(run, image, begin, end, 4, interleave);
        return;
    }
#endif
#if WIDTH == 8
    if (run->rows >= 4 && run->columns >= 4) {
        JOIN(WITH_WIDTH(any), _v32)(run, image, begin, end, 4, interleave);
        return;
    }
#endif
    WITH_WIDTH(short)(run, image, begin, end, interleave);
}

#if WIDTH < 64

/* Three rows are four with a gap that is closed after the zip. The four bytes that the last vector
 * of a tile writes or reads too many are mended by what follows, so a tile ends SPARE columns
 * before the end of the run. */
#    define SPARE 2
#    define LANES (128 / WIDTH)

OSW_INLINE void WITH_WIDTH(zip_three)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j)
{
    __m128i v[MAX_TILE_ROWS];
    for (int i = 0; i < 3; i++)
        v[i] = load_v128(narrow[i] + j);
    v[3] = v[2];
    JOIN(WITH_WIDTH(zip_tile), _v128)(v, 4);
    for (int i = 0; i < 4; i++)
        store_v128(wide + 3 * j + 3 * LANES / 4 * i, WITH_WIDTH(close)(v[i]));
}

OSW_INLINE void WITH_WIDTH(unzip_three)(const ELEMENT *wide, ELEMENT *const *narrow, int64_t j)
{
    __m128i v[MAX_TILE_ROWS];
    for (int i = 0; i < 4; i++)
        v[i] = WITH_WIDTH(spread)(load_v128(wide + 3 * j + 3 * LANES / 4 * i));
    JOIN(WITH_WIDTH(unzip_tile), _v128)(v, 4);
    for (int i = 0; i < 3; i++)
        store_v128(narrow[i] + j, v[i]);
}

OSW_INLINE void WITH_WIDTH(three)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                                  const int interleave)
{
    const int64_t tiled = run->columns - SPARE;
    if (tiled < LANES) {
        WITH_WIDTH(short)(run, image, begin, end, interleave);
        return;
    }
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = WITH_WIDTH(locate)(run, image, p, narrow, 3);
        for (int64_t j = 0; j < tiled; j += LANES) {
            const int64_t first = j + LANES <= tiled ? j : tiled - LANES;
            if (interleave)
                WITH_WIDTH(zip_three)(wide, narrow, first);
            else
                WITH_WIDTH(unzip_three)(wide, narrow, first);
        }
        for (int64_t j = tiled; j < run->columns; j++) {
            for (int i = 0; i < 3; i++) {
                if (interleave)
                    wide[3 * j + i] = narrow[i][j];
                else
                    narrow[i][j] = wide[3 * j + i];
            }
        }
    }
}

static void KERNEL(interleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(three)(run, image, begin, end, 1);
}

static void KERNEL(deinterleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(three)(run, image, begin, end, 0);
}

#    undef SPARE
#    undef LANES
#endif

static void KERNEL(interleave_2)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(fixed)(run, image, begin, end, 2, 1);
}

static void KERNEL(interleave_4)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(fixed)(run, image, begin, end, 4, 1);
}

static void KERNEL(interleave_8)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(fixed)(run, image, begin, end, 8, 1);
}

static void KERNEL(interleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(any)(run, image, begin, end, 1);
}

static void KERNEL(deinterleave_2)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(fixed)(run, image, begin, end, 2, 0);
}

static void KERNEL(deinterleave_4)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(fixed)(run, image, begin, end, 4, 0);
}

static void KERNEL(deinterleave_8)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(fixed)(run, image, begin, end, 8, 0);
}

static void KERNEL(deinterleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(any)(run, image, begin, end, 0);
}

#undef JOIN_
#undef JOIN
#undef WITH_WIDTH
#undef KERNEL
#undef MAX_TILE_ROWS
#undef WIDTH
#undef ELEMENT
