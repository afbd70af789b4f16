/* SPDX-License-Identifier: MIT */
/* Whole linear maps of whole numbers, cut by linear/run.c, against one product after the other. */
#include "driver.h"
#include "driver_rooms.h"
#include "linear/run.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 4 };

typedef struct whole {
    osw_linear_job job;
    driver_type type;
    int64_t first[MOST_GROUPS + 1];
} whole;

static void add_at(driver_type type, void *to, int64_t at, double value)
{
    if (to)
        driver_set(type, to, at, driver_value(type, to, at) + value);
}

/* Row n and output o, of group g. */
static void add_output(const whole *w, int64_t n, int64_t g, int64_t o)
{
    const osw_linear *l = &w->job.linear;
    const int64_t output = n * w->first[l->groups] + o;
    const int64_t row = (n * l->groups + g) * l->in_features, weight = o * l->in_features;
    const bool backward = l->grad_output.base != NULL;
    const double dy = backward ? driver_value(w->type, l->grad_output.base, output) : 0;
    double sum = l->bias ? driver_value(w->type, l->bias, o) : 0;
    for (int64_t i = 0; i < l->in_features; i++) {
        const double x = driver_value(w->type, l->input.base, row + i);
        const double factor = driver_value(w->type, l->weight, weight + i);
        sum += x * factor;
        add_at(w->type, l->grad_input.base, row + i, dy * factor);
        add_at(w->type, l->grad_weight, weight + i, dy * x);
    }
    add_at(w->type, l->grad_bias, o, dy);
    if (l->output.base)
        driver_set(w->type, l->output.base, output, sum);
}

static void run_plainly(const whole *w)
{
    const osw_linear *l = &w->job.linear;
    const int64_t outputs = w->first[l->groups], bytes = driver_bytes(w->type);
    if (l->grad_input.base)
        memset(l->grad_input.base, 0, (size_t)(l->rows * l->groups * l->in_features * bytes));
    if (l->grad_weight)
        memset(l->grad_weight, 0, (size_t)(outputs * l->in_features * bytes));
    if (l->grad_bias)
        memset(l->grad_bias, 0, (size_t)(outputs * bytes));
    for (int64_t n = 0; n < l->rows; n++)
        for (int64_t g = 0; g < l->groups; g++)
            for (int64_t o = w->first[g]; o < w->first[g + 1]; o++)
                add_output(w, n, g, o);
}

static void run_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    static uint64_t calls[OSW_LINEAR_COUNT];
    const whole *w = context;
    osw_linear_job job = w->job;
    (void)begin, (void)end;
    if (table == driver_scalar_table) {
        run_plainly(w);
        return;
    }
    memcpy(osw_linear_table, table, sizeof osw_linear_table);
    const size_t bytes = osw_linear_plan(&job, calls);
    char *parts = malloc(bytes + 1);
    if (!parts)
        abort();
    osw_linear_run(&job, parts);
    free(parts);
}

static void *maybe(driver *d, driver_type type, int64_t count)
{
    return driver_below(4) ? driver_output(d, type, count, DRIVER_EQUAL) : NULL;
}

static void make_tensors(driver *d, whole *w, bool backward)
{
    osw_linear *l = &w->job.linear;
    const int64_t outputs = w->first[l->groups], row = l->groups * l->in_features;
    l->input = (osw_linear_rows){driver_input(d, w->type, l->rows * row), row, l->in_features};
    l->weight = driver_input(d, w->type, outputs * l->in_features);
    if (!backward) {
        l->bias = driver_below(2) ? driver_input(d, w->type, outputs) : NULL;
        l->output = (osw_linear_rows){driver_output(d, w->type, l->rows * outputs, DRIVER_EQUAL),
                                      outputs, 0};
        return;
    }
    l->grad_output = (osw_linear_rows){driver_input(d, w->type, l->rows * outputs), outputs, 0};
    l->grad_input = (osw_linear_rows){maybe(d, w->type, l->rows * row), row, l->in_features};
    l->grad_weight = maybe(d, w->type, outputs * l->in_features);
    l->grad_bias = driver_output(d, w->type, outputs, DRIVER_EQUAL);
}

/* Many rows are summed in parts. */
void driver_linear_run(driver *d)
{
    static const int64_t rows[] = {1, 7, 40, 1200};
    d->values = DRIVER_WHOLE;
    for (int i = 0; i < 16; i++) {
        const bool backward = i & 2;
        whole w = {.type = i % 2 ? DRIVER_F64 : DRIVER_F32};
        osw_linear *l = &w.job.linear;
        w.job.dtype = i % 2 ? OSW_F64 : OSW_F32;
        l->rows = rows[i / 4];
        l->groups = 1 + driver_below(MOST_GROUPS);
        l->in_features = 1 + driver_below(40);
        for (int64_t g = 0; g < l->groups; g++)
            w.first[g + 1] = w.first[g] + (g ? driver_below(9) : 1 + driver_below(9));
        driver_case(d, backward ? "backward" : "forward",
                    "%s, rows %lld, groups %lld, features %lld, outputs %lld",
                    i % 2 ? "f64" : "f32", (long long)l->rows, (long long)l->groups,
                    (long long)l->in_features, (long long)w.first[l->groups]);
        l->first = w.first;
        make_tensors(d, &w, backward);
        driver_run(d, run_whole, &w, 1);
    }
}
