/* SPDX-License-Identifier: MIT */
/* forward as dot products: rows of the input against rows of the weight, both as they lie in
 * memory. For few rows and few outputs, where a repacked weight would not pay. */

enum {
    LOCAL(DOT_ROWS) = 3,
    LOCAL(DOT_OUTPUTS) = 4,
    /* Elements of weight that stay in L1 while all rows pass. */
    LOCAL(DOT_BLOCK) =
        16384 / (int)sizeof(ELEMENT)
};

/* y[r][o] = bias[o] + sum of x[r][i] * w[o][i] */
OSW_INLINE void LOCAL(dot_tile)(const int rows, const int outputs, int64_t count, const ELEMENT *x,
                         int64_t x_step, const ELEMENT *w, const ELEMENT *bias, ELEMENT *y,
                         int64_t y_step)
{
    VECTOR sums[LOCAL(DOT_ROWS)][LOCAL(DOT_OUTPUTS)];
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < LOCAL(DOT_OUTPUTS); o++)
            sums[r][o] = V(setzero)();
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        VECTOR xs[LOCAL(DOT_ROWS)];
        for (int r = 0; r < rows; r++)
            xs[r] = LOCAL(load)(x + r * x_step + i);
        for (int o = 0; o < outputs; o++) {
            const VECTOR ws = LOCAL(load)(w + o * count + i);
            for (int r = 0; r < rows; r++)
                sums[r][o] = V(fmadd)(xs[r], ws, sums[r][o]);
        }
    }
    if (i < count) {
        VECTOR xs[LOCAL(DOT_ROWS)];
        for (int r = 0; r < rows; r++)
            xs[r] = LOCAL(load_some)(x + r * x_step + i, count - i);
        for (int o = 0; o < outputs; o++) {
            const VECTOR ws = LOCAL(load_some)(w + o * count + i, count - i);
            for (int r = 0; r < rows; r++)
                sums[r][o] = V(fmadd)(xs[r], ws, sums[r][o]);
        }
    }
    for (int r = 0; r < rows; r++) {
        SUM four[LOCAL(DOT_OUTPUTS)];
        LOCAL(sum4)(sums[r], four);
        for (int o = 0; o < outputs; o++)
            y[r * y_step + o] = STORE(bias ? four[o] + LOAD(bias[o]) : four[o]);
    }
}

#define DOT_TILE(rows, outputs)                                                                    \
    static void JOIN(LOCAL(dot_tile), _##rows, _##outputs)(                                        \
        int64_t count, const ELEMENT *x, int64_t x_step, const ELEMENT *w, const ELEMENT *bias,    \
        ELEMENT *y, int64_t y_step)                                                                \
    {                                                                                              \
        LOCAL(dot_tile)(rows, outputs, count, x, x_step, w, bias, y, y_step);                      \
    }
#define DOT_TILES(rows) DOT_TILE(rows, 1) DOT_TILE(rows, 2) DOT_TILE(rows, 3) DOT_TILE(rows, 4)
DOT_TILES(1)
DOT_TILES(2)
DOT_TILES(3)
#define DOT_NAME(rows, outputs) JOIN(LOCAL(dot_tile), _##rows, _##outputs)
#define DOT_NAMES(rows) {DOT_NAME(rows, 1), DOT_NAME(rows, 2), DOT_NAME(rows, 3), DOT_NAME(rows, 4)}

typedef void LOCAL(dot_fn)(int64_t count, const ELEMENT *x, int64_t x_step, const ELEMENT *w,
                    const ELEMENT *bias, ELEMENT *y, int64_t y_step);
static LOCAL(dot_fn) *const LOCAL(dot_tiles)[LOCAL(DOT_ROWS)][LOCAL(DOT_OUTPUTS)] = {DOT_NAMES(1), DOT_NAMES(2), DOT_NAMES(3)};

/* Outputs [first, last) of group g for rows [begin, end). */
static void
LOCAL(dot_outputs)(const osw_linear *l, int64_t g, int64_t begin, int64_t end, int64_t first,
                        int64_t last)
{
    const ELEMENT *weight = l->weight, *bias = l->bias, *input = l->input.base;
    const int64_t count = l->in_features, x_step = l->input.row_step, y_step = l->output.row_step;
    for (int64_t n = begin; n < end; n += LOCAL(DOT_ROWS)) {
        const int64_t rows = end - n < LOCAL(DOT_ROWS) ? end - n : LOCAL(DOT_ROWS);
        const ELEMENT *x = input + n * x_step + g * l->input.group_step;
        ELEMENT *y = (ELEMENT *)l->output.base + n * y_step;
        for (int64_t o = first; o < last; o += LOCAL(DOT_OUTPUTS)) {
            const int64_t outputs = last - o < LOCAL(DOT_OUTPUTS) ? last - o : LOCAL(DOT_OUTPUTS);
            LOCAL(dot_tiles)[rows - 1][outputs - 1](count, x, x_step, weight + o * count,
                                             bias ? bias + o : NULL, y + o, y_step);
        }
    }
}

static void LOCAL(dot_forward)(const osw_linear *l, int64_t g, int64_t begin, int64_t end)
{
    const int64_t fitting = LOCAL(DOT_BLOCK) / l->in_features / LOCAL(DOT_OUTPUTS);
    const int64_t block = (fitting ? fitting : 1) * LOCAL(DOT_OUTPUTS);
    for (int64_t o = l->first[g]; o < l->first[g + 1]; o += block) {
        const int64_t last = l->first[g + 1] - o < block ? l->first[g + 1] : o + block;
        LOCAL(dot_outputs)(l, g, begin, end, o, last);
    }
}

#undef DOT_TILE
#undef DOT_TILES
#undef DOT_NAME
#undef DOT_NAMES
