/* SPDX-License-Identifier: MIT */
/* Batch normalisation with an activation. Of whole numbers all of z is exact, so that no gate may
 * differ, and, unless the activation is smooth, so are sums and results. */
#include "norm/norm.h"
#include "core/ints.h"
#include "driver.h"
#include "driver_contract.h"

#include <stdio.h>

void driver_norm_run(driver *d); /* of norm_run.c */

typedef enum operation { sample, moments, apply, reduce, gradient } operation;

enum form { planes, pixels };

enum { CHUNKS = 2 };

typedef struct variant {
    const char *name;
    osw_norm_id id;
    operation operation;
    enum form form;
    driver_type type;
} variant;

typedef struct job {
    osw_norm norm;
    const variant *variant;
    double *first, *second; /* [chunk][channel] */
    int64_t chunk;          /* images or rows of a chunk, or of a unit that is written */
} job;

static int64_t extent(const job *j)
{
    return j->norm.images * (j->variant->form == pixels ? j->norm.positions : 1);
}

/* Units of sums are chunks with sums of their own, in blocks of channels. */
static void do_units(const void *context, const void *table, int64_t begin, int64_t end)
{
    const job *j = context;
    const osw_norm *n = &j->norm;
    osw_norm_fn *kernel = ((osw_norm_fn *const *)table)[j->variant->id];
    const bool sums = j->variant->operation == moments || j->variant->operation == reduce;
    const int64_t block = j->variant->form == planes && sums ? OSW_NORM_MAX_BLOCK : n->channels;
    for (int64_t unit = begin; unit < end; unit++)
        for (int64_t c = 0; c < n->channels; c += block)
            kernel(n, &(osw_norm_part){.channel_begin = c,
                                       .channel_end = osw_min_int(c + block, n->channels),
                                       .begin = osw_min_int(unit * j->chunk, extent(j)),
                                       .end = osw_min_int((unit + 1) * j->chunk, extent(j)),
                                       .first = sums ? j->first + unit * n->channels : NULL,
                                       .second = sums ? j->second + unit * n->channels : NULL});
}

/* One value per channel: `beside` a multiple of `unit`, from -4 to 4 of them. */
static double *factors(driver *d, int64_t channels, double unit, double beside)
{
    double *values = driver_input(d, DRIVER_F64, channels);
    for (int64_t c = 0; c < channels; c++)
        values[c] = unit * (double)(driver_below(9) - 4) + beside;
    driver_keep(d, values);
    return values;
}

/* Powers of two, by which products are exact. */
static double *scales(driver *d, int64_t channels, bool small)
{
    static const double all[] = {0.5, -0.5, 1, -1, 2, -2};
    double *values = driver_input(d, DRIVER_F64, channels);
    for (int64_t c = 0; c < channels; c++)
        values[c] = all[driver_below(small ? 2 : 6)];
    driver_keep(d, values);
    return values;
}

/* How far y, dx or a sum may be from the scalar kernel's, from the largest |x|, |x - center| and
 * |z| that there are. An activation and its derivative, at most 1.2 for z of 1, are within FUNCTION
 * roundings; z is exact, or within three roundings of its terms. */
static driver_error error_of(const driver *d, const job *j)
{
    const double largest = 7, centered = largest + 2, z = 2 * centered + 2, smallest = 0x1p-24;
    const double function = 16,
                 of_z = d->values == DRIVER_REAL || d->values == DRIVER_WORST ? 3 : 0;
    const double gate = (function + of_z * z) * 1.2 * largest * smallest;
    const double terms = (double)(j->norm.images * j->norm.positions);
    const osw_activation_kind kind = j->norm.activation.kind;
    const bool whole = d->values == DRIVER_WHOLE;
    const bool exact = whole && (kind <= OSW_HARDTANH || kind == OSW_LEAKY_RELU);
    switch (j->variant->operation) {
    case apply:
        return exact ? DRIVER_EQUAL
                     : DRIVER_BY(function * smallest, of_z * z * 1.2 * smallest + 0x1p-140);
    case gradient:
        return exact ? DRIVER_EQUAL
                     : DRIVER_BY(2 * smallest, 2 * gate + 4 * (centered + 2) * smallest);
    case moments:
        return whole ? DRIVER_EQUAL
                     : DRIVER_BY(0, (terms + 4) * smallest * terms * centered * centered);
    case reduce:
        return exact ? DRIVER_EQUAL
                     : DRIVER_BY(0, terms * centered * (gate + terms * 1.2 * largest * smallest));
    default:
        return DRIVER_EXACT;
    }
}

/* Numbers whose gates may differ on either side of a bend are whole. */
static driver_values values_for(const job *j)
{
    static const driver_values all[] = {DRIVER_WHOLE, DRIVER_WHOLE_WORST, DRIVER_REAL,
                                        DRIVER_WORST};
    const osw_activation_kind kind = j->norm.activation.kind;
    const bool bends = kind != OSW_IDENTITY && kind != OSW_SIGMOID && kind != OSW_SILU &&
                       kind != OSW_GELU && kind != OSW_GELU_TANH && kind != OSW_MISH;
    const operation o = j->variant->operation;
    return all[driver_below((o == reduce || o == gradient) && bends ? 2 : 4)];
}

static void *read_tensor(driver *d, const job *j, osw_norm_tensor *t)
{
    const osw_norm *n = &j->norm;
    t->image_step = n->channels * n->positions;
    t->image_step += j->variant->form == planes ? driver_below(3) : 0;
    return t->base = driver_input(d, j->variant->type, n->images * t->image_step);
}

static void write_tensor(driver *d, const job *j, driver_error error, osw_norm_tensor *t)
{
    const osw_norm *n = &j->norm;
    t->image_step = n->channels * n->positions;
    t->base = driver_output(d, j->variant->type, n->images * t->image_step, error);
}

static void make_tensors(driver *d, job *j)
{
    const operation operation = j->variant->operation;
    osw_norm *n = &j->norm;
    const driver_error error = error_of(d, j);
    const osw_activation_kind kind = n->activation.kind;
    /* An infinite dy times a derivative that rounding makes 0 or not: none of z = -1.5 for
     * hardswish and of numbers whose derivative has no float. */
    n->scale = scales(d, n->channels, kind >= OSW_SIGMOID);
    n->shift = factors(d, n->channels, 0.5,
                       kind == OSW_HARDSWISH && d->values != DRIVER_WHOLE ? 0.125 : 0);
    if (operation == sample)
        n->center = driver_output(d, DRIVER_F64, n->channels, DRIVER_EXACT);
    else
        n->center = factors(d, n->channels, 0.5, 0);
    if (operation == gradient && driver_below(3)) {
        n->tilt = factors(d, n->channels, 0.125, 0);
        n->offset = factors(d, n->channels, 0.125, 0);
    }
    if (operation == apply && driver_below(3) == 0) {
        n->x.image_step = n->y.image_step = n->channels * n->positions;
        n->x.base = n->y.base =
            driver_inout(d, j->variant->type, n->images * n->x.image_step, error);
        return;
    }
    read_tensor(d, j, &n->x);
    if (operation == apply)
        write_tensor(d, j, error, &n->y);
    if (operation == reduce || operation == gradient)
        read_tensor(d, j, &n->dy);
    if (operation == gradient)
        write_tensor(d, j, error, &n->dx);
    const driver_values values = d->values;
    d->values = DRIVER_WHOLE; /* what sums begin with */
    if (operation == moments || operation == reduce) {
        j->first = driver_inout(d, DRIVER_F64, CHUNKS * n->channels, error);
        j->second = driver_inout(d, DRIVER_F64, CHUNKS * n->channels, error);
    }
    d->values = values;
}

static void check_size(driver *d, const variant *v, int64_t images, int64_t channels,
                       int64_t positions)
{
    static const double parameters[OSW_ACTIVATION_COUNT][2] = {[OSW_HARDTANH] = {-1.5, 2},
                                                               [OSW_LEAKY_RELU] = {0.25},
                                                               [OSW_ELU] = {0.5},
                                                               [OSW_SOFTPLUS] = {1, 20}};
    const int kind = (int)driver_below(OSW_ACTIVATION_COUNT);
    job j = {.variant = v,
             .norm = {.images = images,
                      .channels = channels,
                      .positions = positions,
                      .activation = {.kind = (osw_activation_kind)kind,
                                     .a = parameters[kind][0],
                                     .b = parameters[kind][1]},
                      .stream = driver_below(4) == 0}};
    d->values = d->timed ? DRIVER_WHOLE : values_for(&j);
    driver_case(d, v->name, "images %lld, channels %lld, positions %lld, activation %d%s",
                (long long)images, (long long)channels, (long long)positions, kind,
                j.norm.stream ? ", stream" : "");
    make_tensors(d, &j);
    const int64_t rows = v->form == pixels ? OSW_NORM_ROWS : 1;
    const bool writes = v->operation == apply || v->operation == gradient;
    const int64_t most = osw_ceil(extent(&j), rows);
    j.chunk = writes ? rows : osw_ceil(most, CHUNKS) * rows;
    driver_run(d, do_units, &j, v->operation == sample ? 1 : osw_ceil(extent(&j), j.chunk));
}

static void check_variant(driver *d, const variant *v)
{
    static const int64_t few[] = {1, 2, 3, 5, 7};
    int64_t lengths[DRIVER_MOST_LENGTHS];
    const int count = driver_lengths(d, 4, lengths);
    if (d->timed) {
        check_size(d, v, 8, 64, 784);
        return;
    }
    for (int i = 0; i < 2 * count; i++) {
        const int64_t images = 1 + driver_below(3), other = few[driver_below(5)];
        if (v->form == planes)
            check_size(d, v, images, other, lengths[i / 2]);
        else
            check_size(d, v, images, lengths[i / 2], other * (1 + driver_below(60)));
    }
    if (v->form == planes) {
        check_size(d, v, 2, 2, OSW_NORM_FLUSH + 5);
        check_size(d, v, 3, OSW_NORM_MAX_BLOCK + 1, 7);
    } else {
        check_size(d, v, 1, 1037, 3); /* wider than a strip */
    }
}

static void check(driver *d)
{
#define X(operation, form, dtype)                                                                  \
    check_variant(d, &(variant){#operation "_" #form "_" #dtype,                                   \
                                OSW_NORM_##operation##_##form##_##dtype, operation, form,          \
                                (driver_type)type_##dtype});
    OSW_NORM_VARIANTS(X)
#undef X
    if (!d->timed)
        driver_norm_run(d);
}

extern const driver_contract driver_norm_contract;
const driver_family driver_norm = {
    "norm", osw_norm_select, osw_norm_table, sizeof osw_norm_table, check, &driver_norm_contract};
