/* SPDX-License-Identifier: MIT */
/* Grouped linear maps: sums, which are exact of whole numbers in any order. */
#include "linear/linear.h"
#include "driver.h"
#include "driver_contract.h"
#include "linear/holds.h"

#include <assert.h>
#include <stdio.h>

enum { MOST_GROUPS = 4 };

void driver_linear_run(driver *d); /* of linear_run.c */

typedef struct job {
    osw_linear linear;
    osw_linear_id id;
    osw_linear_grid grid;
    int64_t total; /* rows or features that blocks cut */
} job;

static void do_blocks(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    for (int64_t i = begin; i < end; i++) {
        const osw_linear_block block = osw_linear_block_at(&j->linear, &j->grid, i, j->total);
        assert(osw_linear_block_holds(&j->linear, &block, j->total));
        ((osw_linear_fn *const *)table)[j->id](&j->linear, &block);
    }
}

/* A variant, its dtype, and a size for it. */
typedef struct shape {
    const char *name;
    osw_linear_id id;
    driver_type type;
    int64_t rows, groups, features, outputs; /* outputs of a group at most */
    int64_t gap;                             /* elements behind every row */
    osw_linear_lines lines;                  /* of input and grad_input; gaps behind lines, too */
    bool planes;                             /* the rows of the input are pixels of planes */
} shape;

/* Rows, lines and images with gaps behind them. */
static osw_linear_rows images_of(driver *d, const shape *s, osw_linear_steps *steps,
                                 driver_error *error)
{
    const int64_t row = s->features + s->gap;
    steps->line = s->lines.rows * row + s->gap * row;
    steps->image = s->lines.count * steps->line + s->gap * 3;
    const int64_t count = s->rows / (s->lines.rows * s->lines.count) * steps->image;
    void *base = error ? driver_inout(d, s->type, count, *error) : driver_input(d, s->type, count);
    return (osw_linear_rows){base, row, 0};
}

static osw_linear_rows planes_of(driver *d, const shape *s, osw_linear *l)
{
    const int64_t line = s->lines.rows + s->gap, plane = s->lines.count * line + s->gap;
    const int64_t image = s->features * plane + s->gap;
    const int64_t images = s->rows / (s->lines.rows * s->lines.count);
    l->input_steps = (osw_linear_steps){line, image};
    l->planes = true;
    l->plane_step = driver_below(8) ? plane : 0; /* as of an expanded tensor */
    return (osw_linear_rows){driver_input(d, s->type, images * image), 1, 0};
}

/* Groups of all sizes up to `outputs`, none among them. */
static int64_t draw_groups(const shape *s, int64_t first[MOST_GROUPS + 1])
{
    first[0] = 0;
    for (int64_t g = 0; g < s->groups; g++) {
        const bool some = g > 0 && driver_below(4) == 0;
        first[g + 1] = first[g] + (some ? driver_below(s->outputs + 1) : s->outputs);
    }
    return first[s->groups];
}

static osw_linear_rows rows_of(driver *d, const shape *s, int64_t length, driver_error *error)
{
    const bool once = !error && driver_below(8) == 0; /* as of an expanded tensor */
    const int64_t step = once ? 0 : length + s->gap, count = once ? length : s->rows * step;
    void *base = !error   ? driver_input(d, s->type, count)
                 : s->gap ? driver_inout(d, s->type, count, *error)
                          : driver_output(d, s->type, count, *error);
    return (osw_linear_rows){base, step, s->features};
}

static osw_linear_rows input_of(driver *d, const shape *s, osw_linear *l)
{
    if (s->planes)
        return planes_of(d, s, l);
    return s->lines.rows ? images_of(d, s, &l->input_steps, NULL)
                         : rows_of(d, s, s->groups * s->features, NULL);
}

static void check_forward(driver *d, const shape *s, job *j, int64_t outputs)
{
    driver_error error = DRIVER_SUM(s->features + 1);
    osw_linear *l = &j->linear;
    l->input = input_of(d, s, l);
    l->output = rows_of(d, s, outputs, &error);
    l->bias = driver_below(2) ? driver_input(d, s->type, outputs) : NULL;
    j->total = s->rows;
    j->grid = osw_linear_row_grid(l, 1 + (int)driver_below(3));
}

static void check_grad_input(driver *d, const shape *s, job *j, int64_t outputs)
{
    driver_error error = DRIVER_SUM(s->outputs);
    osw_linear *l = &j->linear;
    l->grad_output = rows_of(d, s, outputs, NULL);
    l->grad_input = s->lines.rows ? images_of(d, s, &l->grad_input_steps, &error)
                                  : rows_of(d, s, s->groups * s->features, &error);
    j->total = s->rows;
    j->grid = osw_linear_row_grid(l, 1 + (int)driver_below(3));
}

static void check_grad_weight(driver *d, const shape *s, job *j, int64_t outputs)
{
    const int64_t which = driver_below(4);
    osw_linear *l = &j->linear;
    l->input = input_of(d, s, l);
    l->grad_output = rows_of(d, s, outputs, NULL);
    if (s->type == DRIVER_F32 || s->type == DRIVER_F64)
        osw_linear_cut(l);
    if (which != 0)
        l->grad_weight =
            driver_output(d, s->type, l->row_parts * outputs * s->features, DRIVER_SUM(s->rows));
    if (which != 1)
        l->grad_bias = driver_output(d, s->type, l->row_parts * outputs, DRIVER_SUM(s->rows));
    j->total = s->features;
    j->grid = osw_linear_feature_grid(l, 1 + (int)driver_below(3));
}

static void check_shape(driver *d, const shape *s)
{
    int64_t first[MOST_GROUPS + 1];
    const int64_t outputs = draw_groups(s, first);
    job j = {.id = s->id,
             .linear = {.rows = s->rows,
                        .groups = s->groups,
                        .in_features = s->features,
                        .first = first,
                        .lines = s->lines,
                        .row_parts = 1,
                        .part_rows = s->rows}};
    driver_case(
        d, s->name, "rows %lld, groups %lld, features %lld, outputs %lld, gap %lld, line %lld%s",
        (long long)s->rows, (long long)s->groups, (long long)s->features, (long long)s->outputs,
        (long long)s->gap, (long long)s->lines.rows, s->planes ? ", planes" : "");
    j.linear.weight = driver_input(d, s->type, outputs * s->features);
    if (s->id < OSW_LINEAR_grad_input_f32)
        check_forward(d, s, &j, outputs);
    else if (s->id < OSW_LINEAR_grad_weight_f32)
        check_grad_input(d, s, &j, outputs);
    else
        check_grad_weight(d, s, &j, outputs);
    assert(osw_linear_holds(&j.linear, s->type < DRIVER_BF16));
    driver_run(d, do_blocks, &j, osw_linear_blocks(&j.grid));
}

/* Images of one group, in float and double. */
static void check_images(driver *d, shape s, const int64_t *lengths, int count)
{
    static const int64_t lines[] = {1, 2, 5, 7, 9, 14, 28};
    for (int i = 0; i < 4 * count; i++) {
        d->values = (driver_values)driver_below(3);
        s.planes = i >= 2 * count;
        s.lines = (osw_linear_lines){lines[driver_below(7)], 1 + driver_below(4)};
        s.rows = s.lines.rows * s.lines.count * (1 + driver_below(3));
        s.groups = 1;
        s.gap = driver_below(4);
        s.features = lengths[i % count];
        s.outputs = lengths[driver_below(count)];
        check_shape(d, &s);
    }
    s.lines = (osw_linear_lines){9, 7}; /* parts of rows that begin in a line */
    s.rows = 63 * 17, s.features = 3, s.outputs = 4;
    check_shape(d, &s);
    s.planes = false;
    check_shape(d, &s);
}

/* Rows of input and output that lie in pages of their own, and, for the gradient of the weight, of
 * a large input. */
static void check_apart(driver *d, shape s)
{
    const bool large = s.id >= OSW_LINEAR_grad_weight_f32;
    s.rows = 40, s.groups = 2, s.features = 150, s.outputs = 12;
    s.gap = large ? (4 << 20) / (s.rows * (s.type == DRIVER_F64 ? 8 : 4)) : 1024;
    check_shape(d, &s);
}

static void check_variant(driver *d, const char *name, osw_linear_id id, driver_type type)
{
    static const int64_t some[] = {1, 2, 3, 5, 13, 26, 49};
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, type == DRIVER_F64 ? 8 : 4, lengths);
    shape s = {.name = name, .id = id, .type = type};
    if (d->timed) {
        s = (shape){name, id, type, 128, 2, 256, 256, 0, {0, 0}, false};
        check_shape(d, &s);
        return;
    }
    for (int i = 0; i < 2 * count; i++) {
        d->values = (driver_values)driver_below(3);
        s.rows = some[driver_below(7)];
        s.groups = 1 + driver_below(MOST_GROUPS);
        s.gap = driver_below(3);
        s.features = i < count ? lengths[i] : some[driver_below(7)];
        s.outputs = i < count ? some[driver_below(7)] : lengths[i - count];
        check_shape(d, &s);
    }
    s = (shape){name, id, type, 1061, 1, 3, 4, 0, {0, 0}, false}; /* parts of rows */
    check_shape(d, &s);
    if (type == DRIVER_F32 || type == DRIVER_F64) {
        check_images(d, s, lengths, count);
        check_apart(d, (shape){.name = name, .id = id, .type = type});
    }
}

static void check(driver *d)
{
#define X(operation, dtype)                                                                        \
    check_variant(d, #operation "_" #dtype, OSW_LINEAR_##operation##_##dtype,                      \
                  (driver_type)type_##dtype);
    OSW_LINEAR_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_linear_run(d);
}

extern const driver_contract driver_linear_contract;
const driver_family driver_linear = {
    "linear", osw_linear_select,      osw_linear_table, sizeof osw_linear_table,
    check,    &driver_linear_contract};
