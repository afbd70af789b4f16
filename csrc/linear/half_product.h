/* SPDX-License-Identifier: MIT */
/* The product of a 16-bit type: pieces of both factors are widened to float, multiplied by the
 * kernel of float, and the sums of all terms are rounded once. */

/* Of a piece of c; as many terms are widened at once as multiply_f32 sums before it adds. */
enum { LOCAL(PIECE_ROWS) = 128, LOCAL(PIECE_COLUMNS) = 128, LOCAL(PIECE_TERMS) = DEPTH_f32 };

typedef struct LOCAL(piece) {
    alignas(64) float a[LOCAL(PIECE_ROWS) * LOCAL(PIECE_TERMS)];
    alignas(64) float b[LOCAL(PIECE_COLUMNS) * LOCAL(PIECE_TERMS)];
    alignas(64) float c[LOCAL(PIECE_ROWS) * LOCAL(PIECE_COLUMNS)];
    alignas(64) float start[LOCAL(PIECE_COLUMNS)];
} LOCAL(piece);

/* Lines of `to` have room for whole vectors. */
static void
LOCAL(widen)(int64_t lines, int64_t count, const ELEMENT *from, int64_t from_step, float *to,
                  int64_t to_step)
{
    for (; lines > 0; lines--, from += from_step, to += to_step) {
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES)
            _mm256_store_ps(to + i, LOCAL(load)(from + i));
        if (i < count)
            _mm256_store_ps(to + i, LOCAL(load_some)(from + i, count - i));
    }
}

static void
LOCAL(narrow)(int64_t lines, int64_t count, const float *from, int64_t from_step, ELEMENT *to,
                   int64_t to_step)
{
    for (; lines > 0; lines--, from += from_step, to += to_step) {
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES)
            LOCAL(store_rounded)(to + i, _mm256_load_ps(from + i));
        if (i < count)
            LOCAL(store_some)(to + i, _mm256_load_ps(from + i), count - i);
    }
}

/* c of the piece += terms [d, d + terms) of a and b, for rows [m, m + rows) and columns
 * [j, j + columns). */
static void
LOCAL(add_terms)(const LOCAL(product) *p, int64_t m, int64_t rows, int64_t j, int64_t columns,
                      int64_t d, int64_t terms, LOCAL(piece) *piece)
{
    const ELEMENT *a = p->a + m * p->a_row + d * p->a_term;
    const bool lies = p->a_term == 1; /* the terms of a side by side */
    if (lies)
        LOCAL(widen)(rows, terms, a, p->a_row, piece->a, LOCAL(PIECE_TERMS));
    else
        LOCAL(widen)(terms, rows, a, p->a_term, piece->a, LOCAL(PIECE_ROWS));
    if (p->transposed)
        LOCAL(widen)(columns, terms, p->b + j * p->b_term + d, p->b_term, piece->b,
                     LOCAL(PIECE_TERMS));
    else
        LOCAL(widen)(terms, columns, p->b + d * p->b_term + j, p->b_term, piece->b,
                     LOCAL(PIECE_COLUMNS));
    multiply_f32(&(product_f32){
        .rows = rows,
        .columns = columns,
        .terms = terms,
        .a = piece->a,
        .a_row = lies ? LOCAL(PIECE_TERMS) : 1,
        .a_term = lies ? 1 : LOCAL(PIECE_ROWS),
        .b = piece->b,
        .b_term = p->transposed ? LOCAL(PIECE_TERMS) : LOCAL(PIECE_COLUMNS),
        .transposed = p->transposed,
        .start = p->start ? piece->start : NULL,
        .adds = d > 0,
        .c = piece->c,
        .c_row = LOCAL(PIECE_COLUMNS),
    });
}

static void LOCAL(multiply)(const LOCAL(product) *p)
{
    LOCAL(piece) *const piece = osw_scratch_outer(sizeof *piece);
    for (int64_t j = 0; j < p->columns; j += LOCAL(PIECE_COLUMNS)) {
        const int64_t left = p->columns - j;
        const int64_t columns = left < LOCAL(PIECE_COLUMNS) ? left : LOCAL(PIECE_COLUMNS);
        if (p->start)
            LOCAL(widen)(1, columns, p->start + j, 0, piece->start, 0);
        for (int64_t m = 0; m < p->rows; m += LOCAL(PIECE_ROWS)) {
            const int64_t rest = p->rows - m;
            const int64_t rows = rest < LOCAL(PIECE_ROWS) ? rest : LOCAL(PIECE_ROWS);
            int64_t d = 0;
            do { /* once without terms too: c becomes `start` */
                const int64_t terms = p->terms - d < LOCAL(PIECE_TERMS) ? p->terms - d : LOCAL(PIECE_TERMS);
                LOCAL(add_terms)(p, m, rows, j, columns, d, terms, piece);
                d += LOCAL(PIECE_TERMS);
            } while (d < p->terms);
            LOCAL(narrow)(rows, columns, piece->c,
                          LOCAL(PIECE_COLUMNS), p->c + m * p->c_row + j, p->c_row);
        }
    }
}
