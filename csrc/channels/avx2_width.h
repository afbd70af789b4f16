/* SPDX-License-Identifier: MIT */
/* The AVX2 kernels for one width; included once a width by channels_avx2.c, inside its target
 * region, with WIDTH, ELEMENT and THREE (whether three rows have a kernel of their own) defined.
 *
 * A tile is LANES columns of 2, 4 or 8 rows: one vector a row. Zipping rows k and k + rows/2,
 * log2(rows) times over, turns it into the wide order; unzipping turns it back. 128-bit vectors,
 * because AVX2 zips within 128-bit halves: wider ones spend as many instructions on mending the
 * order as they save. */

#define JOIN_(a, b)      a##b
#define JOIN(a, b)       JOIN_(a, b)
#define WITH_WIDTH(name) JOIN(name##_x, WIDTH)
#define KERNEL(name)     JOIN(JOIN(osw_##name##_x, WIDTH), __avx2)
#define LANES            (128 / WIDTH)
#define MAX_TILE_ROWS    8

/* v: tile of `rows` vectors, row by row on entry, in wide order on return. */
OSW_INLINE void WITH_WIDTH(zip_tile)(__m128i *v, const int rows)
{
    __m128i t[MAX_TILE_ROWS];
    const int half = rows / 2;
    for (int streams = rows; streams > 1; streams /= 2) {
        for (int i = 0; i < half; i++)
            WITH_WIDTH(zip)(v[i], v[half + i], &t[2 * i], &t[2 * i + 1]);
        for (int i = 0; i < rows; i++)
            v[i] = t[i];
    }
}

/* The inverse of zip_tile. */
OSW_INLINE void WITH_WIDTH(unzip_tile)(__m128i *v, const int rows)
{
    __m128i t[MAX_TILE_ROWS];
    const int half = rows / 2;
    for (int streams = 1; streams < rows; streams *= 2) {
        for (int i = 0; i < half; i++)
            WITH_WIDTH(unzip)(v[2 * i], v[2 * i + 1], &t[i], &t[half + i]);
        for (int i = 0; i < rows; i++)
            v[i] = t[i];
    }
}

OSW_INLINE void WITH_WIDTH(zip_columns)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j,
                                        const int rows)
{
    __m128i v[MAX_TILE_ROWS];
    for (int i = 0; i < rows; i++)
        v[i] = _mm_loadu_si128((const __m128i *)(narrow[i] + j));
    WITH_WIDTH(zip_tile)(v, rows);
    for (int i = 0; i < rows; i++)
        _mm_storeu_si128((__m128i *)(wide + j * rows) + i, v[i]);
}

OSW_INLINE void WITH_WIDTH(unzip_columns)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j,
                                          const int rows)
{
    __m128i v[MAX_TILE_ROWS];
    for (int i = 0; i < rows; i++)
        v[i] = _mm_loadu_si128((const __m128i *)(wide + j * rows) + i);
    WITH_WIDTH(unzip_tile)(v, rows);
    for (int i = 0; i < rows; i++)
        _mm_storeu_si128((__m128i *)(narrow[i] + j), v[i]);
}

OSW_INLINE void WITH_WIDTH(zip_scalar)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j,
                                       int64_t columns, const int rows)
{
    for (; j < columns; j++)
        for (int i = 0; i < rows; i++)
            wide[j * rows + i] = narrow[i][j];
}

OSW_INLINE void WITH_WIDTH(unzip_scalar)(const ELEMENT *wide, ELEMENT *const *narrow, int64_t j,
                                         int64_t columns, const int rows)
{
    for (; j < columns; j++)
        for (int i = 0; i < rows; i++)
            narrow[i][j] = wide[j * rows + i];
}

/* Addresses of one pixel of a run, and the prefetch of those that follow. */
OSW_INLINE ELEMENT *WITH_WIDTH(locate)(const osw_run *run, int64_t image, int64_t pixel,
                                       ELEMENT **narrow, const int rows)
{
    const int64_t row_bytes = run->columns * (int64_t)sizeof(ELEMENT);
    char *wide = osw_at(&run->wide, image, pixel);
    prefetch(wide, row_bytes * rows);
    for (int i = 0; i < rows; i++) {
        narrow[i] = (ELEMENT *)osw_at(&run->narrow[i], image, pixel);
        prefetch((const char *)narrow[i], row_bytes);
    }
    return (ELEMENT *)wide;
}

OSW_INLINE void WITH_WIDTH(interleave_pow2)(const osw_run *run, int64_t image, int64_t begin,
                                            int64_t end, const int rows)
{
    const int64_t columns = run->columns;
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = WITH_WIDTH(locate)(run, image, p, narrow, rows);
        int64_t j = 0;
        for (; j + LANES <= columns; j += LANES)
            WITH_WIDTH(zip_columns)(wide, narrow, j, rows);
        if (j < columns && columns >= LANES)
            WITH_WIDTH(zip_columns)(wide, narrow, columns - LANES, rows);
        else
            WITH_WIDTH(zip_scalar)(wide, narrow, j, columns, rows);
    }
}

OSW_INLINE void WITH_WIDTH(deinterleave_pow2)(const osw_run *run, int64_t image, int64_t begin,
                                              int64_t end, const int rows)
{
    const int64_t columns = run->columns;
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = WITH_WIDTH(locate)(run, image, p, narrow, rows);
        int64_t j = 0;
        for (; j + LANES <= columns; j += LANES)
            WITH_WIDTH(unzip_columns)(wide, narrow, j, rows);
        if (j < columns && columns >= LANES)
            WITH_WIDTH(unzip_columns)(wide, narrow, columns - LANES, rows);
        else
            WITH_WIDTH(unzip_scalar)(wide, narrow, j, columns, rows);
    }
}

static void KERNEL(interleave_2)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(interleave_pow2)(run, image, begin, end, 2);
}

static void KERNEL(interleave_4)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(interleave_pow2)(run, image, begin, end, 4);
}

static void KERNEL(interleave_8)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(interleave_pow2)(run, image, begin, end, 8);
}

static void KERNEL(deinterleave_2)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(deinterleave_pow2)(run, image, begin, end, 2);
}

static void KERNEL(deinterleave_4)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(deinterleave_pow2)(run, image, begin, end, 4);
}

static void KERNEL(deinterleave_8)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(deinterleave_pow2)(run, image, begin, end, 8);
}

#if THREE

/* Three rows are four with a gap that is closed after the zip. The four bytes that the last vector
 * of a tile writes or reads too many are mended by what follows, so a tile ends SPARE columns
 * before the end of the run. */
#    define SPARE 2

OSW_INLINE void WITH_WIDTH(zip_three)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j)
{
    __m128i v[MAX_TILE_ROWS];
    for (int i = 0; i < 3; i++)
        v[i] = _mm_loadu_si128((const __m128i *)(narrow[i] + j));
    v[3] = v[2];
    WITH_WIDTH(zip_tile)(v, 4);
    for (int i = 0; i < 4; i++)
        _mm_storeu_si128((__m128i *)(wide + 3 * j + 3 * LANES / 4 * i), WITH_WIDTH(close)(v[i]));
}

OSW_INLINE void WITH_WIDTH(unzip_three)(const ELEMENT *wide, ELEMENT *const *narrow, int64_t j)
{
    __m128i v[MAX_TILE_ROWS];
    for (int i = 0; i < 4; i++)
        v[i] = WITH_WIDTH(spread)(
            _mm_loadu_si128((const __m128i *)(wide + 3 * j + 3 * LANES / 4 * i)));
    WITH_WIDTH(unzip_tile)(v, 4);
    for (int i = 0; i < 3; i++)
        _mm_storeu_si128((__m128i *)(narrow[i] + j), v[i]);
}

static void KERNEL(interleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    const int64_t tiled = run->columns - SPARE;
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = WITH_WIDTH(locate)(run, image, p, narrow, 3);
        int64_t j = 0;
        for (; j + LANES <= tiled; j += LANES)
            WITH_WIDTH(zip_three)(wide, narrow, j);
        if (j < tiled && tiled >= LANES) {
            WITH_WIDTH(zip_three)(wide, narrow, tiled - LANES);
            j = tiled;
        }
        WITH_WIDTH(zip_scalar)(wide, narrow, j, run->columns, 3);
    }
}

static void KERNEL(deinterleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    const int64_t tiled = run->columns - SPARE;
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = WITH_WIDTH(locate)(run, image, p, narrow, 3);
        int64_t j = 0;
        for (; j + LANES <= tiled; j += LANES)
            WITH_WIDTH(unzip_three)(wide, narrow, j);
        if (j < tiled && tiled >= LANES) {
            WITH_WIDTH(unzip_three)(wide, narrow, tiled - LANES);
            j = tiled;
        }
        WITH_WIDTH(unzip_scalar)(wide, narrow, j, run->columns, 3);
    }
}

#    undef SPARE
#endif

/* Any number of rows: tiles of 8 rows, or of 4 where there are fewer than 8, the last tile
 * overlapping the one before. The columns of a tile lie `rows` apart on the wide side, so they go
 * through a buffer. */
OSW_INLINE void WITH_WIDTH(any_tile)(const osw_run *run, ELEMENT *wide, ELEMENT *const *narrow,
                                     int64_t i, int64_t j, const int tile_rows,
                                     const int interleave)
{
    __m128i v[MAX_TILE_ROWS];
    ELEMENT column[LANES * MAX_TILE_ROWS];
    ELEMENT *corner = wide + j * run->rows + i;
    if (interleave) {
        for (int k = 0; k < tile_rows; k++)
            v[k] = _mm_loadu_si128((const __m128i *)(narrow[k] + j));
        WITH_WIDTH(zip_tile)(v, tile_rows);
        memcpy(column, v, (size_t)tile_rows * sizeof v[0]);
        for (int k = 0; k < LANES; k++)
            memcpy(corner + k * run->rows, column + k * tile_rows, tile_rows * sizeof(ELEMENT));
        return;
    }
    for (int k = 0; k < LANES; k++)
        memcpy(column + k * tile_rows, corner + k * run->rows, tile_rows * sizeof(ELEMENT));
    memcpy(v, column, (size_t)tile_rows * sizeof v[0]);
    WITH_WIDTH(unzip_tile)(v, tile_rows);
    for (int k = 0; k < tile_rows; k++)
        _mm_storeu_si128((__m128i *)(narrow[k] + j), v[k]);
}

OSW_INLINE void WITH_WIDTH(any_pixel)(const osw_run *run, int64_t image, int64_t pixel,
                                      const int tile_rows, const int interleave)
{
    ELEMENT *wide = (ELEMENT *)osw_at(&run->wide, image, pixel);
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t row = 0; row < run->rows; row += tile_rows) {
        const int64_t i = row + tile_rows <= run->rows ? row : run->rows - tile_rows;
        for (int k = 0; k < tile_rows; k++)
            narrow[k] = (ELEMENT *)osw_at(&run->narrow[i + k], image, pixel);
        int64_t j = 0;
        for (; j + LANES <= run->columns; j += LANES)
            WITH_WIDTH(any_tile)(run, wide, narrow, i, j, tile_rows, interleave);
        if (j < run->columns)
            WITH_WIDTH(any_tile)(run, wide, narrow, i, run->columns - LANES, tile_rows, interleave);
    }
}

OSW_INLINE void WITH_WIDTH(any_scalar)(const osw_run *run, int64_t image, int64_t pixel,
                                       const int interleave)
{
    ELEMENT *wide = (ELEMENT *)osw_at(&run->wide, image, pixel);
    for (int64_t i = 0; i < run->rows; i++) {
        ELEMENT *narrow = (ELEMENT *)osw_at(&run->narrow[i], image, pixel);
        for (int64_t j = 0; j < run->columns; j++) {
            if (interleave)
                wide[j * run->rows + i] = narrow[j];
            else
                narrow[j] = wide[j * run->rows + i];
        }
    }
}

OSW_INLINE void WITH_WIDTH(any)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                                const int interleave)
{
    for (int64_t p = begin; p < end; p++) {
        if (run->columns < LANES || run->rows < 4)
            WITH_WIDTH(any_scalar)(run, image, p, interleave);
        else if (run->rows < 8)
            WITH_WIDTH(any_pixel)(run, image, p, 4, interleave);
        else
            WITH_WIDTH(any_pixel)(run, image, p, 8, interleave);
    }
}

static void KERNEL(interleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(any)(run, image, begin, end, 1);
}

static void KERNEL(deinterleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    WITH_WIDTH(any)(run, image, begin, end, 0);
}

#undef JOIN_
#undef JOIN
#undef WITH_WIDTH
#undef KERNEL
#undef LANES
#undef MAX_TILE_ROWS
#undef WIDTH
#undef ELEMENT
#undef THREE
