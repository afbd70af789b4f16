/* SPDX-License-Identifier: MIT */
/* Tiles of one width and one vector size; included by avx2_width.h with VECTOR (bits) and VEC (its
 * type) defined.
 *
 * A tile is LANES columns of 2, 4 or 8 rows, one vector a row. Zipping rows k and k + rows / 2,
 * log2(rows) times over, turns it into the wide order; unzipping turns it back. `rows` is a
 * constant at every call. */

#define TILE(name) JOIN(WITH_WIDTH(name), JOIN(_v, VECTOR))
#define LANES      (VECTOR / WIDTH)
#define LOAD       JOIN(load_v, VECTOR)
#define STORE      JOIN(store_v, VECTOR)

/* v: row by row on entry, in wide order on return. */
OSW_INLINE void TILE(zip_tile)(VEC *v, const int rows)
{
    VEC t[MAX_TILE_ROWS];
    const int half = rows / 2;
    for (int streams = rows; streams > 1; streams /= 2) {
        for (int i = 0; i < half; i++)
            TILE(zip)(v[i], v[half + i], &t[2 * i], &t[2 * i + 1]);
        for (int i = 0; i < rows; i++)
            v[i] = t[i];
    }
}

/* The inverse of zip_tile. */
OSW_INLINE void TILE(unzip_tile)(VEC *v, const int rows)
{
    VEC t[MAX_TILE_ROWS];
    const int half = rows / 2;
    for (int streams = 1; streams < rows; streams *= 2) {
        for (int i = 0; i < half; i++)
            TILE(unzip)(v[2 * i], v[2 * i + 1], &t[i], &t[half + i]);
        for (int i = 0; i < rows; i++)
            v[i] = t[i];
    }
}

/* Columns j to j + LANES of a pixel. The wide side of a tile is dense where the run has as many
 * rows as the tile (stride == rows); otherwise its columns lie `stride` elements apart and a column
 * is a whole number of vectors. */
OSW_INLINE void TILE(zip_columns)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j, int64_t stride,
                                  const int rows)
{
    VEC v[MAX_TILE_ROWS];
    for (int i = 0; i < rows; i++)
        v[i] = LOAD(narrow[i] + j);
    TILE(zip_tile)(v, rows);
    for (int i = 0; i < rows; i++)
        STORE(wide + (j + i * LANES / rows) * stride + i * LANES % rows, v[i]);
}

OSW_INLINE void TILE(unzip_columns)(const ELEMENT *wide, ELEMENT *const *narrow, int64_t j,
                                    int64_t stride, const int rows)
{
    VEC v[MAX_TILE_ROWS];
    for (int i = 0; i < rows; i++)
        v[i] = LOAD(wide + (j + i * LANES / rows) * stride + i * LANES % rows);
    TILE(unzip_tile)(v, rows);
    for (int i = 0; i < rows; i++)
        STORE(narrow[i] + j, v[i]);
}

/* All columns of a pixel, at least LANES; the last tile overlaps the one before. */
OSW_INLINE void TILE(pixel)(ELEMENT *wide, ELEMENT *const *narrow, int64_t columns, int64_t stride,
                            const int rows, const int interleave)
{
    for (int64_t j = 0; j < columns; j += LANES) {
        const int64_t first = j + LANES <= columns ? j : columns - LANES;
        if (interleave)
            TILE(zip_columns)(wide, narrow, first, stride, rows);
        else
            TILE(unzip_columns)(wide, narrow, first, stride, rows);
    }
}

/* Runs of exactly `rows` rows. */
OSW_INLINE void TILE(fixed)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                            const int rows, const int interleave)
{
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = WITH_WIDTH(locate)(run, image, p, narrow, rows);
        TILE(pixel)(wide, narrow, run->columns, rows, rows, interleave);
    }
}

/* Runs of `rows` rows or more: tiles of `rows` rows, the last one overlapping the one before. */
OSW_INLINE void TILE(any)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                          const int rows, const int interleave)
{
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = (ELEMENT *)osw_at(&run->wide, image, p);
        for (int64_t row = 0; row < run->rows; row += rows) {
            const int64_t i = row + rows <= run->rows ? row : run->rows - rows;
            for (int k = 0; k < rows; k++)
                narrow[k] = (ELEMENT *)osw_at(&run->narrow[i + k], image, p);
            TILE(pixel)(wide + i, narrow, run->columns, run->rows, rows, interleave);
        }
    }
}

#undef TILE
#undef LANES
#undef LOAD
#undef STORE
#undef VECTOR
#undef VEC
