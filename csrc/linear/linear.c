/* SPDX-License-Identifier: MIT */
#include "linear/linear.h"

#include "core/ints.h"

#include <stdbool.h>
#include <string.h>

enum {
    THIN_WEIGHT = 1 << 18, /* bytes of all weights up to which blocks of rows span all groups, so
                              that rows are walked as they lie in memory, */
    THIN_BLOCK = 1 << 17,  /* bytes of such a block, */
    THIN_ROWS = 3,         /* its rows at least, */
    MANY = 16,             /* and how many of them there must be */
    ROWS = 24,             /* blocks of rows of one group are multiples of it */
    FEATURES = 64,         /* the same of features: the widest panel of floats, */
    FEW_FEATURES = OSW_LINEAR_LEAST_FEATURES, /* or a vector of it, so that threads share few
                                                 features evenly */
    MOST_PARTS = 8,  /* of a group: in more of them it is packed too often */
    PART_ROWS = 528, /* of a row part at least */
    MOST_ROW_PARTS = 32,
    FEW_GROUPS = 4,    /* up to which rows are cut into parts */
    PARTIAL = 1 << 18, /* elements that all parts of a gradient of the weight may hold */
};

osw_linear_fn *osw_linear_table[OSW_LINEAR_COUNT];

OSW_DEFINE_SELECT(osw_linear_select, osw_linear_fn **, osw_linear_table, OSW_FILLS(osw_linear_fill))

bool osw_linear_leads(osw_isa isa)
{
    return isa >= OSW_ISA_AVX2;
}

void osw_linear_cut(osw_linear *linear)
{
    const int64_t weight = linear->first[linear->groups] * linear->in_features;
    const int64_t fitting = weight < PARTIAL / MOST_ROW_PARTS ? MOST_ROW_PARTS : PARTIAL / weight;
    const bool cuts = linear->groups <= FEW_GROUPS && fitting > 1;
    const int64_t even =
        cuts ? osw_ceil(osw_ceil(linear->rows, fitting), ROWS) * ROWS : linear->rows;
    linear->part_rows = cuts && even < PART_ROWS ? PART_ROWS : even;
    linear->row_parts = osw_ceil(linear->rows, linear->part_rows);
}

void osw_linear_zero_gaps(const osw_linear *linear, int64_t element_bytes, int64_t begin,
                          int64_t end)
{
    char *const base = linear->grad_input.base;
    int64_t at = osw_linear_grad_input_at(linear, begin);
    for (int64_t n = begin; n < end; n++) {
        const int64_t next = osw_linear_grad_input_at(linear, n + 1);
        const int64_t gap = next - at - linear->in_features;
        if (gap > 0)
            memset(base + (at + linear->in_features) * element_bytes, 0,
                   (size_t)(gap * element_bytes));
        at = next;
    }
}

/* One group a block, or, if threads would wait for each other for more than an eighth of the
 * time, each group in parts of whole `unit`s, the last one with a rest of less than `least`;
 * `copies` of it side by side. */
static osw_linear_grid by_group(const osw_linear *linear, int64_t total, int64_t unit,
                                int64_t least, int64_t copies, int threads)
{
    const int64_t blocks = linear->groups * copies;
    int64_t wanted = 1;
    while (wanted < MOST_PARTS &&
           8 * osw_ceil(wanted * blocks, threads) * threads > 9 * wanted * blocks)
        wanted++;
    const int64_t length = osw_ceil(osw_ceil(total, unit), wanted) * unit;
    const int64_t parts = osw_ceil(total, length);
    const bool joins = parts > 1 && total - (parts - 1) * length < least;
    return (osw_linear_grid){1, length, linear->groups, parts - joins, copies};
}

osw_linear_grid osw_linear_row_grid(const osw_linear *linear, int threads)
{
    const int64_t row = linear->groups * linear->in_features * (int64_t)sizeof(float);
    const int64_t weight = linear->first[linear->groups] * linear->in_features;
    if (weight * (int64_t)sizeof(float) <= THIN_WEIGHT &&
        linear->first[linear->groups] <= 2 * linear->groups) {
        const int64_t fitting = THIN_BLOCK / row;
        const int64_t length = fitting > THIN_ROWS ? fitting : THIN_ROWS;
        const int64_t parts = osw_ceil(linear->rows, length);
        if (parts >= MANY)
            return (osw_linear_grid){linear->groups, length, 1, parts, 1};
    }
    if (linear->row_parts > 1) /* beside grad_weight, which reads the same rows */
        return (osw_linear_grid){1, linear->part_rows, linear->groups, linear->row_parts, 1};
    return by_group(linear, linear->rows, ROWS, 1, 1, threads);
}

osw_linear_grid osw_linear_feature_grid(const osw_linear *linear, int threads)
{
    const bool few = linear->in_features < 2 * MOST_PARTS * FEATURES;
    return by_group(linear, linear->in_features, few ? FEW_FEATURES : FEATURES, FEW_FEATURES,
                    linear->row_parts, threads);
}

osw_linear_block osw_linear_block_at(const osw_linear *linear, const osw_linear_grid *grid,
                                     int64_t i, int64_t total)
{
    const int64_t row_part = i / (grid->group_parts * grid->parts);
    const int64_t group = i / grid->parts % grid->group_parts * grid->groups;
    const int64_t part = i % grid->parts, begin = part * grid->length;
    const int64_t group_end = group + grid->groups;
    const int64_t end = part == grid->parts - 1 ? total : begin + grid->length;
    return (osw_linear_block){group, group_end < linear->groups ? group_end : linear->groups, begin,
                              end, row_part};
}
