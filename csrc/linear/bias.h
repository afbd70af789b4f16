/* SPDX-License-Identifier: MIT */
/* The gradient of the bias, for both tiers; included with LOCAL, ELEMENT, SUM, LOAD and STORE
 * defined. */

/* grad_bias[o] = sum of grad_output[n][o] over n of a row part, for the outputs of group g; in
 * blocks of rows, whose sums are added up, so that the error grows slowly. */
static void LOCAL(sum_rows)(const osw_linear *l, int64_t g, int64_t part)
{
    enum { COLUMNS = 16, ROWS = 128 };
    const int64_t step = l->grad_output.row_step, end = l->first[g + 1];
    const int64_t rows_end = osw_linear_part_end(l, part);
    ELEMENT *grad_bias = (ELEMENT *)l->grad_bias + part * l->first[l->groups];
    for (int64_t o = l->first[g]; o < end; o += COLUMNS) {
        const int columns = end - o < COLUMNS ? (int)(end - o) : COLUMNS;
        SUM total[COLUMNS] = {0};
        for (int64_t n = part * l->part_rows; n < rows_end; n += ROWS) {
            const int64_t last = rows_end - n < ROWS ? rows_end : n + ROWS;
            SUM sum[COLUMNS] = {0};
            for (int64_t m = n; m < last; m++) {
                const ELEMENT *dy = (const ELEMENT *)l->grad_output.base + m * step + o;
                if (columns == COLUMNS)
                    for (int j = 0; j < COLUMNS; j++)
                        sum[j] += LOAD(dy[j]);
                else
                    for (int j = 0; j < columns; j++)
                        sum[j] += LOAD(dy[j]);
            }
            for (int j = 0; j < COLUMNS; j++)
                total[j] += sum[j];
        }
        for (int j = 0; j < columns; j++)
            grad_bias[o + j] = STORE(total[j]);
    }
}
