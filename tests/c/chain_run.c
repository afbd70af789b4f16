/* SPDX-License-Identifier: MIT */
/* Whole chains: the same bits on one thread and on several. */
#include "chain/folded.h"
#include "chain/run.h"
#include "core/ints.h"
#include "driver.h"
#include "driver_compare.h"
#include "driver_rooms.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };

typedef struct whole {
    driver *d;
    osw_chain chain;
    bool backward, folded;
    int *runs; /* so far: the first one is on one thread */
} whole;

/* So many bytes, and a guard behind them. */
static uint8_t *guarded(size_t bytes)
{
    uint8_t *memory = malloc(bytes + GUARD);
    if (!memory)
        abort();
    return memset(memory, GUARD, bytes + GUARD);
}

static void release(driver *d, uint8_t *memory, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (memory[bytes + (size_t)i] != GUARD)
            driver_report(d, "written %d bytes behind the working memory", i + 1);
    free(memory);
}

static void run_folded(const whole *w, osw_chain *chain)
{
    const size_t bytes = (size_t)osw_chain_folded_floats(chain) * sizeof(float);
    const size_t room = (size_t)osw_chain_fold_room(chain) * sizeof(float);
    uint8_t *const folded = guarded(bytes), *const scaled = guarded(room);
    float *const weights = (float *)(void *)folded;
    osw_chain_fold(chain, 1, weights, (float *)(void *)scaled);
    if (!osw_chain_is_folded(weights, 1) || osw_chain_is_folded(weights, 2))
        driver_report(w->d, "%s", "the weights are not those of their tier");
    osw_chain_folded_forward(chain, weights);
    release(w->d, scaled, room);
    release(w->d, folded, bytes);
}

/* The run has the kernels that were chosen, and reads no table. */
static void do_whole(const void *context, const void *table, int64_t begin, int64_t end)
{
    static uint64_t calls[OSW_CHAIN_COUNT];
    const whole *w = context;
    const int threads = driver_threads;
    osw_chain chain = w->chain;
    (void)begin, (void)end;
    const size_t bytes = w->folded ? 0 : osw_chain_prepare(&chain);
    uint8_t *const memory = guarded(bytes);
    memcpy(osw_chain_table, table, sizeof osw_chain_table);
    if (w->folded)
        osw_chain_choose_folded(&chain, true, calls);
    else
        osw_chain_choose(&chain, w->backward, calls);
    memset(osw_chain_table, 0, sizeof osw_chain_table);
    driver_threads = (*w->runs)++ == 0 ? 1 : 3;
    if (w->folded)
        run_folded(w, &chain);
    else
        (w->backward ? osw_chain_backward : osw_chain_forward)(&chain, memory);
    driver_threads = threads;
    release(w->d, memory, bytes);
}

/* The window of a stage; in evaluation a third of those that are 1 x 1 become dense. */
static void draw_window(osw_chain_stage *s, osw_chain_link *link, bool folded)
{
    osw_chain_window *w = &s->window;
    const int64_t half = s->side / 2;
    *w = (osw_chain_window){s->side, s->side, s->stride, s->stride, half, half};
    s->dense = folded && !s->depthwise && driver_below(3) == 0;
    if (!s->dense)
        return;
    w->height = osw_min_int(1 + driver_below(4), s->height);
    w->width = osw_min_int(1 + driver_below(4), s->width);
    w->top = driver_below(w->height);
    w->left = driver_below(w->width);
    w->stride_y = 1 + driver_below(2);
    w->stride_x = 1 + driver_below(2);
    s->out_height = (s->height + 2 * w->top - w->height) / w->stride_y + 1;
    s->out_width = (s->width + 2 * w->left - w->width) / w->stride_x + 1;
    const int64_t step[4] = {osw_chain_terms(s), 1, w->width * s->channels, s->channels};
    memcpy(link->weight_step, step, sizeof step);
}

/* Sizes of a chain of `count` stages, 1 x 1 and depthwise in turn, or dense in evaluation. */
static void draw_sizes(osw_chain *chain, bool folded)
{
    static const int64_t widths[] = {16, 17, 33, 58};
    int64_t height = 9 + driver_below(23), width = 9 + driver_below(23);
    int64_t channels = widths[driver_below(4)];
    const int64_t batch = 1 + driver_below(5), odd = driver_below(2);
    for (int i = 0; i < chain->count; i++) {
        osw_chain_stage *s = &chain->stages[i];
        s->depthwise = (i + odd) % 2;
        s->batch = batch;
        s->height = height;
        s->width = width;
        s->channels = channels;
        s->side = !s->depthwise ? 1 : driver_below(2) ? 3 : 5;
        s->stride = s->depthwise ? 1 + driver_below(2) : 1;
        s->outputs = channels = s->depthwise ? channels : widths[driver_below(4)];
        s->out_height = (height - 1) / s->stride + 1;
        s->out_width = (width - 1) / s->stride + 1;
        draw_window(s, &chain->links[i], folded);
        height = s->out_height;
        width = s->out_width;
        chain->links[i].eps = 1e-5;
        chain->links[i].norm.activation.kind = driver_below(2) ? OSW_RELU : OSW_HARDSWISH;
    }
    assert(osw_chain_holds(chain, folded));
}

/* Outputs of a forward, inputs of a backward. */
static void *kept(const whole *w, driver_type type, int64_t count)
{
    return w->backward || w->folded ? driver_input(w->d, type, count)
                                    : driver_output(w->d, type, count, DRIVER_EXACT);
}

static void draw_statistics(whole *w, int64_t outputs)
{
    double *statistics = kept(w, DRIVER_F64, 2 * outputs);
    for (int i = 0; i < w->chain.count; i++) {
        osw_chain_link *link = &w->chain.links[i];
        const int64_t channels = w->chain.stages[i].outputs;
        link->mean = statistics;
        link->var = statistics + channels;
        const bool given = w->backward || w->folded;
        for (int64_t c = 0; given && c < channels; c++)
            link->var[c] = 0.25 + (double)driver_below(8);
        if (given)
            driver_keep(w->d, w->d->rooms[w->d->room_count - 1].data);
        statistics += 2 * channels;
    }
}

static void draw_parameters(whole *w, int64_t outputs)
{
    const float *values = driver_input(w->d, DRIVER_F32, 2 * outputs);
    float *grads = NULL;
    if (w->backward)
        grads = driver_output(w->d, DRIVER_F32, 2 * outputs, DRIVER_EXACT);
    for (int i = 0; i < w->chain.count; i++) {
        osw_chain_link *link = &w->chain.links[i];
        const int64_t channels = w->chain.stages[i].outputs;
        link->weight = values;
        link->bias = values + channels;
        values += 2 * channels;
        if (!grads)
            continue;
        link->grad_weight = grads;
        link->grad_bias = grads + channels;
        grads += 2 * channels;
    }
}

static void draw_gradients(whole *w)
{
    osw_chain_stage *s = w->chain.stages, *last = &s[w->chain.count - 1];
    last->grad = driver_input(w->d, DRIVER_F32, osw_chain_pixels(last) * last->outputs);
    for (int i = 0; i < w->chain.count; i++) {
        const int64_t inputs = s[i].batch * s[i].height * s[i].width * s[i].channels;
        w->chain.grad_weights[i] =
            driver_output(w->d, DRIVER_F32, osw_chain_weights(&s[i]), DRIVER_EXACT);
        if (i || driver_below(2))
            s[i].grad_input = driver_output(w->d, DRIVER_F32, inputs, DRIVER_EXACT);
        if (i)
            s[i - 1].grad = s[i].grad_input;
    }
}

static void check_one(driver *d, int count, int kind)
{
    static const char *const names[] = {"forward", "backward", "folded"};
    int runs = 0;
    int64_t outputs = 0;
    whole w = {.d = d,
               .chain = {.count = count},
               .backward = kind == 1,
               .folded = kind == 2,
               .runs = &runs};
    osw_chain_stage *s = w.chain.stages, *last = &s[count - 1];
    draw_sizes(&w.chain, w.folded);
    driver_case(d, names[kind], "%d stages, %lld x %lld x %lld x %lld", count, (long long)s->batch,
                (long long)s->height, (long long)s->width, (long long)s->channels);
    s->input = driver_input(d, DRIVER_F32, s->batch * s->height * s->width * s->channels);
    for (int i = 0; i < count; i++) {
        s[i].weight = driver_input(d, DRIVER_F32, osw_chain_weights(&s[i]));
        if (!w.folded)
            s[i].output = kept(&w, DRIVER_F32, osw_chain_pixels(&s[i]) * s[i].outputs);
        if (i && !w.folded)
            s[i].input = s[i - 1].output;
        outputs += s[i].outputs;
    }
    draw_statistics(&w, outputs);
    draw_parameters(&w, outputs);
    if (w.backward)
        draw_gradients(&w);
    else
        last->normal =
            driver_output(d, DRIVER_F32, osw_chain_pixels(last) * last->outputs, DRIVER_EXACT);
    driver_run(d, do_whole, &w, 1);
}

/* Both runs have the kernels of the tier. */
void driver_chain_run(driver *d)
{
    void *scalar = driver_scalar_table;
    driver_scalar_table = memcpy(malloc(sizeof osw_chain_table), d->table, sizeof osw_chain_table);
    d->values = DRIVER_REAL;
    for (int i = 0; i < (d->quick ? 6 : 18); i++)
        check_one(d, 1 + i / 3 % 3, i % 3);
    free(driver_scalar_table);
    driver_scalar_table = scalar;
}
