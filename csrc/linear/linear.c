/* SPDX-License-Identifier: MIT */
#include "linear/linear.h"

/* FEW_GROUPS: with fewer, groups are cut so that every thread finds work. THIN: bytes of all
 * weights up to which blocks span all groups, so that rows are walked as they lie in memory.
 * FEATURES: a line's worth of floats times the vectors that a kernel holds at once. */
enum {
    FEW_GROUPS = 16,
    THIN_WEIGHT = 1 << 18,
    THIN_BLOCK = 1 << 17,
    THIN_ROWS = 3,
    ROWS = 24,
    FEATURES = 64
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

/* One group a block; with few groups, each of them in parts of whole `unit`s. */
static osw_linear_grid by_group(const osw_linear *linear, int64_t total, int64_t unit)
{
    const int64_t wanted = ceil_div(FEW_GROUPS, linear->groups);
    const int64_t length = ceil_div(ceil_div(total, unit), wanted) * unit;
    return (osw_linear_grid){1, length, linear->groups, ceil_div(total, length)};
}

osw_linear_grid osw_linear_row_grid(const osw_linear *linear)
{
    const int64_t row = linear->groups * linear->in_features * (int64_t)sizeof(float);
    const int64_t weight = linear->first[linear->groups] * linear->in_features;
    if (weight * (int64_t)sizeof(float) <= THIN_WEIGHT &&
        linear->first[linear->groups] <= 2 * linear->groups) {
        const int64_t fitting = THIN_BLOCK / row;
        const int64_t length = fitting > THIN_ROWS ? fitting : THIN_ROWS;
        const int64_t parts = ceil_div(linear->rows, length);
        if (parts >= FEW_GROUPS)
            return (osw_linear_grid){linear->groups, length, 1, parts};
    }
    return by_group(linear, linear->rows, ROWS);
}

osw_linear_grid osw_linear_feature_grid(const osw_linear *linear)
{
    return by_group(linear, linear->in_features, FEATURES);
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
