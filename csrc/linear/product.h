/* SPDX-License-Identifier: MIT */
/* A matrix product c = start + a b with one of its factors, b, packed in panels of one to four
 * vectors of columns. A panel stays in L1 while the rows of a block of a pass. */

enum {
    LOCAL(MOST_VECTORS) = 4,
    /* of a panel */
    LOCAL(MOST_ROWS) = 8,
    /* of a tile */
    LOCAL(DEPTH) = 256,
    /* terms that are summed before they are added to c */
    LOCAL(FAR_DEPTH) = 128,
    /* the same, where those of a lie in rows of their own */
    LOCAL(PANELS) =
        262144 / (int)sizeof(ELEMENT),
    /* of b, packed at once */
    LOCAL(ROW_BLOCK) =
        65536 / (int)sizeof(ELEMENT) /* of a, for which panels are fetched again */
};

/* Rows of a tile, by its vectors: as many sums as registers hold. */
static const int LOCAL(tile_rows)[LOCAL(MOST_VECTORS) + 1] = {0, 8, 6, 4, 3};

/* One tile of c, rows x vectors, of whose last vector `last` lanes are there; `start` is a tile
 * with rows start_row apart, NULL for zero. */
typedef struct LOCAL(tile) {
    int64_t terms;
    const ELEMENT *a;
    int64_t a_row, a_term;
    const ELEMENT *panel;
    int64_t panel_step; /* from one term to the next */
    const ELEMENT *start;
    int64_t start_row;
    ELEMENT *c;
    int64_t c_row;
    int64_t last;
} LOCAL(tile);

OSW_INLINE void LOCAL(multiply_tile)(const int rows, const int vectors, const LOCAL(tile) *t)
{
    const ELEMENT *a = t->a, *panel = t->panel;
    const int64_t a_row = t->a_row, a_term = t->a_term, panel_step = t->panel_step;
    const bool whole = t->last == LANES;
    const __m256i mask = LOCAL(mask)(t->last);
    VECTOR sums[LOCAL(MOST_ROWS)][LOCAL(MOST_VECTORS)];
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vectors; v++)
            sums[m][v] = V(setzero)();
    for (int64_t d = t->terms; d > 0; d--) {
        VECTOR bs[LOCAL(MOST_VECTORS)];
        for (int v = 0; v < vectors; v++)
            bs[v] = V(loadu)(panel + v * LANES);
        for (int m = 0; m < rows; m++) {
            const VECTOR as = V(set1)(a[m * a_row]);
            for (int v = 0; v < vectors; v++)
                sums[m][v] = V(fmadd)(as, bs[v], sums[m][v]);
        }
        panel += panel_step;
        a += a_term;
    }
    for (int m = 0; m < rows; m++) {
        const ELEMENT *start = t->start + m * t->start_row;
        ELEMENT *c = t->c + m * t->c_row;
        for (int v = 0; v < vectors; v++) {
            const bool full = v < vectors - 1 || whole;
            if (t->start)
                sums[m][v] = V(add)(sums[m][v], full ? V(loadu)(start + v * LANES)
                                                     : V(maskload)(start + v * LANES, mask));
            if (full)
                V(storeu)(c + v * LANES, sums[m][v]);
            else
                LOCAL(store_some)(c + v * LANES, sums[m][v], t->last);
        }
    }
}

#define TILE(rows, vectors)                                                                        \
    static void JOIN(LOCAL(tile), _##rows, _##vectors)(const LOCAL(tile) * t)                      \
    {                                                                                              \
        LOCAL(multiply_tile)(rows, vectors, t);                                                    \
    }
#define TILES(X, vectors)                                                                          \
    X(1, vectors)                                                                                  \
    X(2, vectors)                                                                                  \
    X(3, vectors)                                                                                  \
    X(4, vectors)
#define MORE_TILES(X, vectors) X(5, vectors) X(6, vectors)
TILES(TILE, 1)
MORE_TILES(TILE, 1)
TILE(7, 1)
TILE(8, 1)
TILES(TILE, 2)
MORE_TILES(TILE, 2)
TILES(TILE, 3)
TILE(1, 4)
TILE(2, 4)
TILE(3, 4)
#define NAME(rows, vectors) JOIN(LOCAL(tile), _##rows, _##vectors),
typedef void LOCAL(tile_fn)(const LOCAL(tile) *t);
static LOCAL(tile_fn) *const LOCAL(tiles)[LOCAL(MOST_VECTORS)][LOCAL(MOST_ROWS)] = {
    {TILES(NAME, 1) MORE_TILES(NAME, 1) NAME(7, 1) NAME(8, 1)},
    {TILES(NAME, 2) MORE_TILES(NAME, 2)},
    {TILES(NAME, 3)},
    {NAME(1, 4) NAME(2, 4) NAME(3, 4)},
};

/* Columns [0, columns) of b, `terms` long, with zeros up to whole vectors. */
static void
LOCAL(pack)(const ELEMENT *b, int64_t b_term, int64_t terms, int64_t columns, int64_t width,
                 ELEMENT *panel)
{
    const int64_t whole = columns / LANES * LANES;
    const __m256i mask = LOCAL(mask)(columns - whole);
    for (int64_t d = 0; d < terms; d++, b += b_term, panel += width) {
        for (int64_t j = 0; j < whole; j += LANES)
            V(store)(panel + j, V(loadu)(b + j));
        if (whole < width)
            V(store)(panel + whole, V(maskload)(b + whole, mask));
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

/* Vectors of the panel at hand where so many are left: three, or four where that leaves threes and
 * fours only. */
static int64_t LOCAL(panel_vectors)(int64_t left)
{
    if (left <= LOCAL(MOST_VECTORS))
        return left;
    return left % 3 == 1 || left == 8 ? 4 : 3;
}

/* Rows [m, end) of c, from column j on, terms [d, d + terms), by one panel. */
static void
LOCAL(multiply_panel)(const LOCAL(product) *p, int64_t m, int64_t end, int64_t j, int64_t vectors,
                           int64_t last, int64_t d, int64_t terms, const ELEMENT *panel,
                           int64_t panel_step)
{
    const bool adds = d > 0 || p->adds;
    const ELEMENT *start = adds ? p->c : p->start;
    const int64_t start_row = adds ? p->c_row : 0, most = LOCAL(tile_rows)[vectors];
    for (; m < end; m += most) {
        const int64_t rows = end - m < most ? end - m : most;
        const LOCAL(tile) tile = {
            .terms = terms,
            .a = p->a + m * p->a_row + d * p->a_term,
            .a_row = p->a_row,
            .a_term = p->a_term,
            .panel = panel,
            .panel_step = panel_step,
            .start = start ? start + m * start_row + j : NULL,
            .start_row = start_row,
            .c = p->c + m * p->c_row + j,
            .c_row = p->c_row,
            .last = last,
        };
        LOCAL(tiles)[vectors - 1][rows - 1](&tile);
    }
}

/* Columns [j, j + columns) of c, terms [d, d + terms). b is packed, then all rows pass; for few
 * rows whole vectors of it are read where they lie. */
static void LOCAL(
    multiply_columns)(const LOCAL(product) *p, int64_t j, int64_t columns, int64_t d, int64_t terms,
                             ELEMENT *panels)
{
    enum { ROWS = 24 /* of whole tiles of every kind */, FEW_ROWS = 32 };
    const int64_t fitting = LOCAL(ROW_BLOCK) / (terms ? terms : 1) / ROWS;
    const int64_t block = (fitting ? fitting : 1) * ROWS;
    for (int64_t m = 0; m < p->rows; m += block) {
        const int64_t end = m + block < p->rows ? m + block : p->rows;
        for (int64_t k = 0; k < columns;) {
            const int64_t rest = columns - k;
            const int64_t vectors = LOCAL(panel_vectors)((rest + LANES - 1) / LANES);
            const int64_t width = vectors * LANES, count = rest < width ? rest : width;
            const bool packs = p->transposed || p->rows > FEW_ROWS || count < width;
            ELEMENT *const panel = panels + k * terms;
            const ELEMENT *const b =
                p->transposed ? p->b + (j + k) * p->b_term + d : p->b + d * p->b_term + j + k;
            if (packs && m == 0 && p->transposed)
                LOCAL(pack_transposed)(b, p->b_term, terms, count, width, panel);
            else if (packs && m == 0)
                LOCAL(pack)(b, p->b_term, terms, count, width, panel);
            LOCAL(multiply_panel)(p, m, end, j + k, vectors, count - width + LANES, d, terms,
                           packs ? panel : b, packs ? width : p->b_term);
            k += width;
        }
    }
}

static void LOCAL(multiply)(const LOCAL(product) *p)
{
    ELEMENT *const panels = osw_scratch_inner(LOCAL(PANELS) * sizeof(ELEMENT));
    const int64_t most = p->a_term == 1 ? LOCAL(DEPTH) : LOCAL(FAR_DEPTH);
    const int64_t passes = (p->terms + most - 1) / most;
    const int64_t unit = passes * LANES; /* passes of the same length, in whole vectors */
    const int64_t depth = passes > 1 ? (p->terms + unit - 1) / unit * LANES : p->terms;
    const int64_t widest = LOCAL(MOST_VECTORS) * LANES;
    const int64_t full = LOCAL(PANELS) / (depth ? depth : 1) / widest * widest;
    for (int64_t j = 0; j < p->columns; j += full) {
        const int64_t columns = p->columns - j < full ? p->columns - j : full;
        int64_t d = 0;
        do { /* once without terms too: c becomes `start` */
            const int64_t terms = p->terms - d < depth ? p->terms - d : depth;
            LOCAL(multiply_columns)(p, j, columns, d, terms, panels);
            d += depth;
        } while (d < p->terms);
    }
}

#undef TILE
#undef TILES
#undef MORE_TILES
#undef NAME
