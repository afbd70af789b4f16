/* SPDX-License-Identifier: MIT */
/* A matrix product c = start + a b with one of its factors, b, packed in panels that stay in L1. */

enum {
    LOCAL(TILE_ROWS) = 6,
    LOCAL(TILE_COLUMNS) = 2 * LANES,
    LOCAL(PANEL) = 16384 / (int)sizeof(ELEMENT),
    LOCAL(DEPTH) = 256 /* terms that are summed before they are added to c */
};

/* Element (m, d) of a lies at a[m * a_row + d * a_term]; (d, j) of b at b[d * b_term + j], or at
 * b[d + j * b_term] if transposed; (m, j) of c at c[m * c_row + j]. start: one value a column, or
 * NULL for zero. */
typedef struct LOCAL(product) {
    int64_t rows, columns, terms;
    const ELEMENT *a, *b, *start;
    ELEMENT *c;
    int64_t a_row, a_term, b_term, c_row;
    bool transposed;
} LOCAL(product);

/* One tile of c, rows x vectors; `start` is a tile with rows start_row apart, NULL for zero. */
OSW_INLINE void LOCAL(tile)(const int rows, const int vectors, int64_t terms, const ELEMENT *a,
                            int64_t a_row, int64_t a_term, const ELEMENT *panel, int64_t width,
                            const ELEMENT *start, int64_t start_row, ELEMENT *c, int64_t c_row)
{
    VECTOR sums[LOCAL(TILE_ROWS)][2];
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vectors; v++)
            sums[m][v] = start ? V(loadu)(start + m * start_row + v * LANES) : V(setzero)();
    for (int64_t d = 0; d < terms; d++) {
        VECTOR bs[2];
        for (int v = 0; v < vectors; v++)
            bs[v] = V(loadu)(panel + d * width + v * LANES);
        for (int m = 0; m < rows; m++) {
            const VECTOR as = V(set1)(a[m * a_row + d * a_term]);
            for (int v = 0; v < vectors; v++)
                sums[m][v] = V(fmadd)(as, bs[v], sums[m][v]);
        }
    }
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vectors; v++)
            V(storeu)(c + m * c_row + v * LANES, sums[m][v]);
}

#define TILE_PARAMETERS                                                                            \
    int64_t terms, const ELEMENT *a, int64_t a_row, int64_t a_term, const ELEMENT *panel,          \
        int64_t width, const ELEMENT *start, int64_t start_row, ELEMENT *c, int64_t c_row
#define TILE(rows, vectors)                                                                        \
    static void JOIN(LOCAL(tile), _##rows, _##vectors)(TILE_PARAMETERS)                            \
    {                                                                                              \
        LOCAL(tile)                                                                                \
        (rows, vectors, terms, a, a_row, a_term, panel, width, start, start_row, c, c_row);        \
    }
#define TILES(rows)      TILE(rows, 1) TILE(rows, 2)
#define TILE_NAMES(rows) {JOIN(LOCAL(tile), _##rows, _1), JOIN(LOCAL(tile), _##rows, _2)}
TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)
typedef void LOCAL(tile_fn)(TILE_PARAMETERS);
static LOCAL(tile_fn) *const LOCAL(tiles)[LOCAL(TILE_ROWS)][2] = {
    TILE_NAMES(1), TILE_NAMES(2), TILE_NAMES(3), TILE_NAMES(4), TILE_NAMES(5), TILE_NAMES(6)};

/* A tile with fewer than whole vectors of columns, by way of a whole one. */
static void LOCAL(edge)(int64_t rows, int64_t columns, int64_t terms, const ELEMENT *a,
                        int64_t a_row, int64_t a_term, const ELEMENT *panel, int64_t width,
                        const ELEMENT *start, int64_t start_row, ELEMENT *c, int64_t c_row)
{
    ELEMENT whole[LOCAL(TILE_ROWS) * LOCAL(TILE_COLUMNS)] = {0};
    const size_t bytes = (size_t)columns * sizeof(ELEMENT);
    for (int64_t m = 0; start && m < rows; m++)
        memcpy(whole + m * LOCAL(TILE_COLUMNS), start + m * start_row, bytes);
    LOCAL(tiles)
    [rows - 1][columns > LANES](terms, a, a_row, a_term, panel, width, start ? whole : NULL,
                                LOCAL(TILE_COLUMNS), whole, LOCAL(TILE_COLUMNS));
    for (int64_t m = 0; m < rows; m++)
        memcpy(c + m * c_row, whole + m * LOCAL(TILE_COLUMNS), bytes);
}

/* Columns [0, columns) of b, `terms` long, with zeros up to `width`. */
static void LOCAL(pack)(const ELEMENT *b, int64_t b_term, int64_t terms, int64_t columns,
                        int64_t width, ELEMENT *panel)
{
    for (int64_t d = 0; d < terms; d++) {
        memcpy(panel + d * width, b + d * b_term, (size_t)columns * sizeof *b);
        for (int64_t j = columns; j < width; j++)
            panel[d * width + j] = 0;
    }
}

static void LOCAL(pack_transposed)(const ELEMENT *b, int64_t b_term, int64_t terms, int64_t columns,
                                   int64_t width, ELEMENT *panel)
{
    const int64_t squares = columns / LANES * LANES, long_terms = terms / LANES * LANES;
    for (int64_t j = 0; j < squares; j += LANES)
        for (int64_t d = 0; d < long_terms; d += LANES)
            LOCAL(transpose)(b + j * b_term + d, b_term, panel + d * width + j, width);
    for (int64_t d = 0; d < terms; d++)
        for (int64_t j = d < long_terms ? squares : 0; j < width; j++)
            panel[d * width + j] = j < columns ? b[j * b_term + d] : 0;
}

/* Ask for `count` elements of each of the rows [m, m + TILE_ROWS) that there are. */
OSW_INLINE void LOCAL(fetch)(const ELEMENT *base, int64_t step, int64_t m, int64_t rows,
                             int64_t count)
{
    const int64_t end = m + LOCAL(TILE_ROWS) < rows ? m + LOCAL(TILE_ROWS) : rows;
    for (; m < end; m++)
        for (int64_t i = 0; i < count; i += 64 / (int)sizeof(ELEMENT))
            _mm_prefetch((const char *)(base + m * step + i), _MM_HINT_T0);
}

/* Columns [j, j + columns) of c, terms [d, d + terms), with the panel packed for them. */
static void LOCAL(multiply_panel)(const LOCAL(product) * p, int64_t j, int64_t columns, int64_t d,
                                  int64_t terms, const ELEMENT *panel, int64_t width)
{
    const ELEMENT *start = d ? p->c : p->start;
    const int64_t start_row = d ? p->c_row : 0;
    for (int64_t m = 0; m < p->rows; m += LOCAL(TILE_ROWS)) {
        const int64_t rows = p->rows - m < LOCAL(TILE_ROWS) ? p->rows - m : LOCAL(TILE_ROWS);
        const ELEMENT *a = p->a + m * p->a_row + d * p->a_term;
        if (j == 0 && p->a_term == 1)
            LOCAL(fetch)(p->a + d, p->a_row, m + LOCAL(TILE_ROWS), p->rows, terms);
        if (d == 0)
            LOCAL(fetch)(p->c + j, p->c_row, m + LOCAL(TILE_ROWS), p->rows, columns);
        for (int64_t k = 0; k < columns; k += LOCAL(TILE_COLUMNS)) {
            const int64_t rest = columns - k;
            const ELEMENT *from = start ? start + m * start_row + j + k : NULL;
            ELEMENT *to = p->c + m * p->c_row + j + k;
            if (rest >= LOCAL(TILE_COLUMNS) || rest == LANES)
                LOCAL(tiles)
            [rows - 1][rest > LANES](terms, a, p->a_row, p->a_term, panel + k, width, from,
                                     start_row, to, p->c_row);
            else LOCAL(edge)(rows, rest, terms, a, p->a_row, p->a_term, panel + k, width, from,
                             start_row, to, p->c_row);
        }
    }
}

static void LOCAL(multiply)(const LOCAL(product) * p)
{
    alignas(32) ELEMENT panel[LOCAL(PANEL)];
    const int64_t depth = p->terms < LOCAL(DEPTH) ? p->terms : LOCAL(DEPTH);
    const int64_t most = LOCAL(PANEL) / (depth ? depth : 1) / LOCAL(TILE_COLUMNS);
    for (int64_t j = 0; j < p->columns; j += most * LOCAL(TILE_COLUMNS)) {
        const int64_t rest = p->columns - j, full = most * LOCAL(TILE_COLUMNS);
        const int64_t columns = rest < full ? rest : full;
        const int64_t width = (columns + LANES - 1) / LANES * LANES;
        int64_t d = 0;
        do { /* once without terms too: c becomes `start` */
            const int64_t terms = p->terms - d < depth ? p->terms - d : depth;
            if (p->transposed)
                LOCAL(pack_transposed)
            (p->b + j * p->b_term + d, p->b_term, terms, columns, width, panel);
            else LOCAL(pack)(p->b + d * p->b_term + j, p->b_term, terms, columns, width, panel);
            LOCAL(multiply_panel)(p, j, columns, d, terms, panel, width);
            d += depth;
        } while (d < p->terms);
    }
}

#undef TILE_PARAMETERS
#undef TILE
#undef TILES
#undef TILE_NAMES
