/* SPDX-License-Identifier: MIT */
/* Whole maps of planes of whole numbers, cut by pointwise/run.c, against one product after the
 * other. */
#include "driver.h"
#include "driver_rooms.h"
#include "pointwise/run.h"

#include <stdlib.h>
#include <string.h>

typedef struct whole {
    osw_pointwise_job job;
    driver_type type;
} whole;

static void add_at(driver_type type, void *to, int64_t at, double value)
{
    if (to)
        driver_set(type, to, at, driver_value(type, to, at) + value);
}

/* Plane o of image n, pixel p. */
static void add_output(const whole *w, int64_t n, int64_t o, int64_t p)
{
    const osw_pointwise *l = &w->job.planes;
    const int64_t output = (n * l->out_planes + o) * l->pixels + p;
    const bool backward = l->grad_output.base != NULL;
    const double dy = backward ? driver_value(w->type, l->grad_output.base, output) : 0;
    double sum = l->bias ? driver_value(w->type, l->bias, o) : 0;
    for (int64_t i = 0; i < l->in_planes; i++) {
        const int64_t input = (n * l->in_planes + i) * l->pixels + p, at = o * l->in_planes + i;
        const double x = driver_value(w->type, l->input.base, input);
        const double factor = driver_value(w->type, l->weight, at);
        sum += x * factor;
        add_at(w->type, l->grad_input.base, input, dy * factor);
        add_at(w->type, l->grad_weight, at, dy * x);
    }
    add_at(w->type, l->grad_bias, o, dy);
    if (l->output.base)
        driver_set(w->type, l->output.base, output, sum);
}

static void run_plainly(const whole *w)
{
    const osw_pointwise *l = &w->job.planes;
    const int64_t bytes = driver_bytes(w->type);
    if (l->grad_input.base)
        memset(l->grad_input.base, 0, (size_t)(l->images * l->in_planes * l->pixels * bytes));
    if (l->grad_weight)
        memset(l->grad_weight, 0, (size_t)(l->out_planes * l->in_planes * bytes));
    if (l->grad_bias)
        memset(l->grad_bias, 0, (size_t)(l->out_planes * bytes));
    for (int64_t n = 0; n < l->images; n++)
        for (int64_t o = 0; o < l->out_planes; o++)
            for (int64_t p = 0; p < l->pixels; p++)
                add_output(w, n, o, p);
}

static void run_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    static uint64_t calls[OSW_POINTWISE_COUNT];
    const whole *w = context;
    osw_pointwise_job job = w->job;
    (void)begin, (void)end;
    if (table == driver_scalar_table) {
        run_plainly(w);
        return;
    }
    memcpy(osw_pointwise_table, table, sizeof osw_pointwise_table);
    const size_t bytes = osw_pointwise_plan(&job, calls);
    char *parts = malloc(bytes + 1);
    if (!parts)
        abort();
    osw_pointwise_run(&job, parts);
    free(parts);
}

static osw_pointwise_images images_of(const osw_pointwise *l, void *base, int64_t planes)
{
    return (osw_pointwise_images){base, planes * l->pixels, l->pixels};
}

static void *maybe(driver *d, driver_type type, int64_t count)
{
    return driver_below(4) ? driver_output(d, type, count, DRIVER_EQUAL) : NULL;
}

static void make_tensors(driver *d, whole *w, bool backward)
{
    osw_pointwise *l = &w->job.planes;
    const int64_t in = l->images * l->in_planes * l->pixels;
    const int64_t out = l->images * l->out_planes * l->pixels;
    l->input = images_of(l, driver_input(d, w->type, in), l->in_planes);
    l->weight = driver_input(d, w->type, l->out_planes * l->in_planes);
    if (!backward) {
        l->bias = driver_below(2) ? driver_input(d, w->type, l->out_planes) : NULL;
        l->output = images_of(l, driver_output(d, w->type, out, DRIVER_EQUAL), l->out_planes);
        return;
    }
    l->grad_output = images_of(l, driver_input(d, w->type, out), l->out_planes);
    l->grad_input = images_of(l, maybe(d, w->type, in), l->in_planes);
    l->grad_weight = maybe(d, w->type, l->out_planes * l->in_planes);
    l->grad_bias = driver_output(d, w->type, l->out_planes, DRIVER_EQUAL);
}

/* Many images are summed in parts. */
void driver_pointwise_run(driver *d)
{
    static const int64_t images[] = {1, 2, 7, 40};
    static const int64_t pixels[] = {1, 30, 49, 300};
    d->values = DRIVER_WHOLE;
    for (int i = 0; i < 32; i++) {
        const bool backward = i & 2;
        whole w = {.type = i % 2 ? DRIVER_F64 : DRIVER_F32};
        osw_pointwise *l = &w.job.planes;
        w.job.dtype = i % 2 ? OSW_F64 : OSW_F32;
        l->images = images[i / 4 % 4];
        l->pixels = pixels[driver_below(4)];
        l->in_planes = 1 + driver_below(40);
        l->out_planes = 1 + driver_below(40);
        driver_case(d, backward ? "backward" : "forward",
                    "%s, images %lld, pixels %lld, inputs %lld, outputs %lld",
                    i % 2 ? "f64" : "f32", (long long)l->images, (long long)l->pixels,
                    (long long)l->in_planes, (long long)l->out_planes);
        make_tensors(d, &w, backward);
        driver_run(d, run_whole, &w, 1);
    }
}
