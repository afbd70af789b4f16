/* SPDX-License-Identifier: MIT */
/* Maps of planes: sums, which are exact of whole numbers in any order. */
#include "pointwise/pointwise.h"
#include "driver.h"
#include "driver_contract.h"
#include "pointwise/holds.h"

#include <assert.h>

void driver_pointwise_run(driver *d); /* of pointwise_run.c */

typedef struct job {
    osw_pointwise planes;
    osw_pointwise_id id;
    osw_pointwise_grid grid;
    int64_t count; /* planes or columns that blocks cut */
} job;

static void do_blocks(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    for (int64_t i = begin; i < end; i++) {
        const osw_pointwise_block block = osw_pointwise_block_at(&j->planes, &j->grid, i, j->count);
        assert(osw_pointwise_block_holds(&j->planes, &block, j->count));
        ((osw_pointwise_fn *const *)table)[j->id](&j->planes, &block);
    }
}

/* A variant, its dtype, and a size for it. */
typedef struct shape {
    const char *name;
    osw_pointwise_id id;
    driver_type type;
    int64_t images, pixels, inputs, outputs;
    int64_t gap; /* elements behind every plane, and planes behind every image */
} shape;

static osw_pointwise_images images_of(driver *d, const shape *s, int64_t planes,
                                      driver_error *error)
{
    const int64_t plane = s->pixels + s->gap, image = (planes + s->gap) * plane;
    const int64_t count = s->images * image;
    void *base = !error   ? driver_input(d, s->type, count)
                 : s->gap ? driver_inout(d, s->type, count, *error)
                          : driver_output(d, s->type, count, *error);
    return (osw_pointwise_images){base, image, plane};
}

static void make_tensors(driver *d, const shape *s, job *j, int threads)
{
    driver_error error = DRIVER_SUM(s->inputs + 1);
    osw_pointwise *p = &j->planes;
    if (s->id < OSW_POINTWISE_grad_input_f32) {
        p->input = images_of(d, s, s->inputs, NULL);
        p->output = images_of(d, s, s->outputs, &error);
        p->bias = driver_below(2) ? driver_input(d, s->type, s->outputs) : NULL;
        j->count = s->outputs;
    } else {
        p->grad_output = images_of(d, s, s->outputs, NULL);
        j->count = s->inputs;
    }
    if (s->id < OSW_POINTWISE_grad_weight_f32) {
        j->grid = osw_pointwise_image_grid(p, j->count, driver_bytes(s->type), threads);
        error = DRIVER_SUM(s->outputs);
        if (s->id >= OSW_POINTWISE_grad_input_f32)
            p->grad_input = images_of(d, s, s->inputs, &error);
        return;
    }
    const int64_t which = driver_below(4);
    error = DRIVER_SUM(s->images * s->pixels);
    osw_pointwise_cut(p);
    p->input = images_of(d, s, s->inputs, NULL);
    if (which != 0)
        p->grad_weight = driver_output(d, s->type, p->parts * s->outputs * s->inputs, error);
    if (which != 1)
        p->grad_bias = driver_output(d, s->type, p->parts * s->outputs, error);
    j->grid = osw_pointwise_weight_grid(p, threads);
}

static void check_shape(driver *d, const shape *s)
{
    job j = {.id = s->id,
             .planes = {.images = s->images,
                        .pixels = s->pixels,
                        .in_planes = s->inputs,
                        .out_planes = s->outputs,
                        .parts = 1,
                        .part_images = s->images}};
    driver_case(d, s->name, "images %lld, pixels %lld, inputs %lld, outputs %lld, gap %lld",
                (long long)s->images, (long long)s->pixels, (long long)s->inputs,
                (long long)s->outputs, (long long)s->gap);
    j.planes.weight = driver_input(d, s->type, s->outputs * s->inputs);
    make_tensors(d, s, &j, 1 + (int)driver_below(3));
    assert(osw_pointwise_holds(&j.planes));
    driver_run(d, do_blocks, &j, osw_pointwise_blocks(&j.grid));
}

static void check_variant(driver *d, const char *name, osw_pointwise_id id, driver_type type)
{
    static const int64_t some[] = {1, 2, 3, 5, 13, 26, 49};
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, type == DRIVER_F64 ? 8 : 4, lengths);
    shape s = {.name = name, .id = id, .type = type};
    if (d->timed) {
        s = (shape){name, id, type, 4, 196, 128, 128, 0};
        check_shape(d, &s);
        return;
    }
    for (int i = 0; i < 3 * count; i++) { /* each length in each place */
        d->values = (driver_values)driver_below(3);
        s.images = 1 + driver_below(4);
        s.gap = driver_below(3);
        s.pixels = i % 3 == 0 ? lengths[i / 3] : some[driver_below(7)];
        s.inputs = i % 3 == 1 ? lengths[i / 3] : some[driver_below(7)];
        s.outputs = i % 3 == 2 ? lengths[i / 3] : some[driver_below(7)];
        check_shape(d, &s);
    }
    s = (shape){name, id, type, 37, 49, 3, 5, 0}; /* parts of images, passes of several */
    check_shape(d, &s);
    s = (shape){name, id, type, 90, 5, 9, 17, 1}; /* joined images */
    check_shape(d, &s);
    s = (shape){name, id, type, 3, 529, 5, 3, 1}; /* pieces of images, parts of planes */
    check_shape(d, &s);
    s = (shape){name, id, type, 1, 9, 270, 50, 0}; /* several passes of the terms */
    check_shape(d, &s);
    s = (shape){name, id, type, 1, 9, 50, 270, 0};
    check_shape(d, &s);
}

static void check(driver *d)
{
#define X(operation, dtype)                                                                        \
    check_variant(d, #operation "_" #dtype, OSW_POINTWISE_##operation##_##dtype,                   \
                  (driver_type)type_##dtype);
    OSW_POINTWISE_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_pointwise_run(d);
}

extern const driver_contract driver_pointwise_contract;
const driver_family driver_pointwise = {
    "pointwise", osw_pointwise_select,      osw_pointwise_table, sizeof osw_pointwise_table,
    check,       &driver_pointwise_contract};
