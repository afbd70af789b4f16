/* SPDX-License-Identifier: MIT */
#include "linear/linear.h"

/* THIN: bytes of all weights up to which blocks span all groups, so that rows are walked as they
 * lie in memory; such blocks must be MANY. FEATURES: a line's worth of floats times the vectors
 * that a kernel holds at once. MOST_PARTS: a group in more parts is packed too often. */
enum {
    THIN_WEIGHT = 1 << 18,
    THIN_BLOCK = 1 << 17,
    THIN_ROWS = 3,
    MANY = 16,
    ROWS = 24,
    FEATURES = 64,
    MOST_PARTS = 8
};

osw_linear_fn *osw_linear_table[OSW_LINEAR_COUNT];

void osw_linear_select(osw_isa isa)
{
    osw_linear_fill__scalar(osw_linear_table);
#if defined(__x86_64__)
    if (isa >= OSW_ISA_AVX2)
        osw_linear_fill__avx2(osw_linear_table);
#else
    (void)isa;
#endif
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* One group a block, or, where threads would wait for each other for more than an eighth of the
 * time, each group in parts of whole `unit`s. */
static osw_linear_grid by_group(const osw_linear *linear, int64_t total, int64_t unit, int threads)
{
    int64_t wanted = 1;
    while (wanted < MOST_PARTS &&
           8 * ceil_div(wanted * linear->groups, threads) * threads > 9 * wanted * linear->groups)
        wanted++;
    const int64_t length = ceil_div(ceil_div(total, unit), wanted) * unit;
    return (osw_linear_grid){1, length, linear->groups, ceil_div(total, length)};
}

osw_linear_grid osw_linear_row_grid(const osw_linear *linear, int threads)
{
    const int64_t row = linear->groups * linear->in_features * (int64_t)sizeof(float);
    const int64_t weight = linear->first[linear->groups] * linear->in_features;
    if (weight * (int64_t)sizeof(float) <= THIN_WEIGHT &&
        linear->first[linear->groups] <= 2 * linear->groups) {
        const int64_t fitting = THIN_BLOCK / row;
        const int64_t length = fitting > THIN_ROWS ? fitting : THIN_ROWS;
        const int64_t parts = ceil_div(linear->rows, length);
        if (parts >= MANY)
            return (osw_linear_grid){linear->groups, length, 1, parts};
    }
    return by_group(linear, linear->rows, ROWS, threads);
}

osw_linear_grid osw_linear_feature_grid(const osw_linear *linear, int threads)
{
    return by_group(linear, linear->in_features, FEATURES, threads);
}

osw_linear_block osw_linear_block_at(const osw_linear *linear, const osw_linear_grid *grid,
                                     int64_t i, int64_t total)
{
    const int64_t group = i / grid->parts * grid->groups;
    const int64_t begin = i % grid->parts * grid->length;
    const int64_t group_end = group + grid->groups, end = begin + grid->length;
    return (osw_linear_block){group, group_end < linear->groups ? group_end : linear->groups, begin,
                              end < total ? end : total};
}
