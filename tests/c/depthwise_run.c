/* SPDX-License-Identifier: MIT */
/* Whole depthwise convolutions of whole numbers, packed and cut by depthwise/run.c, against one
 * product after the other. */
#include "depthwise/run.h"
#include "driver.h"
#include "driver_rooms.h"

#include <stdlib.h>
#include <string.h>

typedef struct whole {
    osw_depthwise_job job;
    driver_type type, weight_type; /* of the images; of the weight, the bias and their gradients */
    bool backward;
} whole;

/* Sums for the elements of a tensor, which are rounded once, at the end; NULL: it is not wanted. */
typedef struct sums {
    void *to;
    driver_type type;
    int64_t count;
    double *values;
} sums;

typedef enum result { OUTPUT, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, RESULTS } result;

/* The output pixel (i, j) of image n, tap (r, s) and channel c, and where they meet the input. */
typedef struct term {
    int64_t n, i, j, r, s, c;
} term;

static int64_t input_at(const osw_depthwise *d, const term *t)
{
    const int64_t y = t->i * d->stride + t->r * d->dilation - d->top;
    const int64_t x = t->j * d->stride + t->s * d->dilation - d->left;
    const bool inside = y >= 0 && y < d->height && x >= 0 && x < d->width;
    return inside ? ((t->n * d->height + y) * d->width + x) * d->channels + t->c : -1;
}

static void add_at(const sums *s, int64_t at, double value)
{
    if (s->to)
        s->values[at] += value;
}

static void add_term(const whole *w, const sums *results, const term *t)
{
    const osw_depthwise_job *job = &w->job;
    const osw_depthwise *d = &job->d;
    const int64_t output =
        ((t->n * d->out_height + t->i) * d->out_width + t->j) * d->channels + t->c;
    const int64_t tap = (t->c * d->tall + t->r) * d->wide + t->s, input = input_at(d, t);
    const double dy = w->backward ? driver_value(w->type, d->grad_output, output) : 0;
    const double weight = driver_value(w->weight_type, job->weight, tap);
    if (t->r + t->s == 0 && w->backward)
        add_at(&results[GRAD_BIAS], t->c, dy);
    if (t->r + t->s == 0 && !w->backward && job->bias)
        add_at(&results[OUTPUT], output, driver_value(w->weight_type, job->bias, t->c));
    if (input < 0)
        return;
    if (!w->backward) {
        add_at(&results[OUTPUT], output, weight * driver_value(w->type, d->input, input));
        return;
    }
    add_at(&results[GRAD_INPUT], input, weight * dy);
    add_at(&results[GRAD_WEIGHT], tap, dy * driver_value(w->type, d->input, input));
}

static void begin_sums(sums *s)
{
    s->values = s->to ? calloc((size_t)s->count, sizeof(double)) : NULL;
    if (s->to && !s->values)
        abort();
}

static void end_sums(const sums *s)
{
    for (int64_t i = 0; s->to && i < s->count; i++)
        driver_set(s->type, s->to, i, s->values[i]);
    free(s->values);
}

static void run_plainly(const whole *w)
{
    const osw_depthwise_job *job = &w->job;
    const osw_depthwise *d = &job->d;
    term t;
    sums results[RESULTS] = {
        {d->output, w->type, d->batch * d->out_height * d->out_width * d->channels, NULL},
        {d->grad_input, w->type, d->batch * d->height * d->width * d->channels, NULL},
        {job->grad_weight, w->weight_type, d->tall * d->wide * d->channels, NULL},
        {job->grad_bias, w->weight_type, d->channels, NULL}};
    for (int i = 0; i < RESULTS; i++)
        begin_sums(&results[i]);
    for (t.n = 0; t.n < d->batch; t.n++)
        for (t.i = 0; t.i < d->out_height; t.i++)
            for (t.j = 0; t.j < d->out_width; t.j++)
                for (t.r = 0; t.r < d->tall; t.r++)
                    for (t.s = 0; t.s < d->wide; t.s++)
                        for (t.c = 0; t.c < d->channels; t.c++)
                            add_term(w, results, &t);
    for (int i = 0; i < RESULTS; i++)
        end_sums(&results[i]);
}

static void run_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    static uint64_t calls[OSW_DEPTHWISE_COUNT];
    const whole *w = context;
    osw_depthwise_job job = w->job;
    (void)begin, (void)end;
    if (table == driver_scalar_table) {
        run_plainly(w);
        return;
    }
    memcpy(osw_depthwise_table, table, sizeof osw_depthwise_table);
    char *room = malloc(osw_depthwise_plan(&job, w->backward, calls));
    if (!room)
        abort();
    (w->backward ? osw_depthwise_backward : osw_depthwise_forward)(&job, room);
    free(room);
}

static void *maybe(driver *d, driver_type type, int64_t count)
{
    return driver_below(4) ? driver_output(d, type, count, DRIVER_EQUAL) : NULL;
}

static void make_tensors(driver *d, whole *w)
{
    osw_depthwise *c = &w->job.d;
    const int64_t inputs = c->batch * c->height * c->width * c->channels;
    const int64_t outputs = c->batch * c->out_height * c->out_width * c->channels;
    const int64_t taps = c->tall * c->wide * c->channels;
    w->job.weight = driver_input(d, w->weight_type, taps);
    c->input = driver_input(d, w->type, inputs);
    if (!w->backward) {
        w->job.bias = driver_below(2) ? driver_input(d, w->weight_type, c->channels) : NULL;
        c->output = driver_output(d, w->type, outputs, DRIVER_EQUAL);
        return;
    }
    c->grad_output = driver_input(d, w->type, outputs);
    c->grad_input = maybe(d, w->type, inputs);
    w->job.grad_weight = maybe(d, w->weight_type, taps);
    w->job.grad_bias = driver_output(d, w->weight_type, c->channels, DRIVER_EQUAL);
}

void driver_depthwise_run(driver *d, osw_depthwise (*draw)(const driver *d, int64_t channels))
{
    d->values = DRIVER_WHOLE;
    static const char *const names[] = {"f32", "f64", "bf16", "f16"};
    for (int i = 0; i < 36; i++) {
        const osw_dtype dtype = (osw_dtype)(i % 4);
        const osw_dtype weight = i % 3 == 0 && dtype != OSW_F64 ? OSW_F32 : dtype;
        whole w = {.type = (driver_type)dtype, .backward = i / 4 % 2};
        w.weight_type = (driver_type)weight;
        w.job.dtype = dtype;
        w.job.weight_dtype = weight;
        w.job.d = draw(d, 1 + driver_below(40));
        const osw_depthwise *c = &w.job.d;
        driver_case(d, w.backward ? "backward" : "forward",
                    "%s, weight %s, batch %lld, channels %lld, %lld x %lld, window %lld x %lld, "
                    "stride %lld, "
                    "dilation %lld",
                    names[dtype], names[weight], (long long)c->batch, (long long)c->channels,
                    (long long)c->height, (long long)c->width, (long long)c->tall,
                    (long long)c->wide, (long long)c->stride, (long long)c->dilation);
        make_tensors(d, &w);
        driver_run(d, run_whole, &w, 1);
    }
}
