/* SPDX-License-Identifier: MIT */
#include "chain/folded.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "depthwise/depthwise.h"

#include <assert.h>
#include <string.h>

enum {
    LINE = 16,    /* floats: arrays begin at multiples */
    TIER_AT = 0,  /* where the head says whose weights these are */
    HEAD = LINE,  /* floats in front of the weights */
    BUFFERS = 2,  /* of rows between stages: what one writes, the next one reads */
    FEW_ROWS = 4, /* of a band that is made for the sake of a thread, at least */
    FEW_PIXELS = 512,
    MANY_PIXELS = 4096,
    MANY_TERMS = 512,
};

static int64_t weight_floats(const osw_chain_stage *s)
{
    return osw_round_up(s->depthwise ? osw_chain_weights(s) : osw_chain_packed(s), LINE);
}

static osw_chain_id kernel_of(const osw_chain_stage *s)
{
    return s->depthwise ? OSW_CHAIN_depthwise_folded
           : s->dense   ? OSW_CHAIN_dense_folded
                        : OSW_CHAIN_pointwise_folded;
}

int64_t osw_chain_folded_floats(const osw_chain *chain)
{
    int64_t floats = HEAD;
    for (int i = 0; i < chain->count; i++)
        floats += weight_floats(&chain->stages[i]) + osw_round_up(chain->stages[i].outputs, LINE);
    return floats;
}

int64_t osw_chain_fold_room(const osw_chain *chain)
{
    int64_t floats = 0;
    for (int i = 0; i < chain->count; i++)
        floats = osw_max_int(floats, osw_chain_weights(&chain->stages[i]));
    return floats;
}

bool osw_chain_is_folded(const float *folded, int tier)
{
    return folded[TIER_AT] == (float)tier;
}

void osw_chain_choose_folded(osw_chain *chain, bool packs, uint64_t *calls)
{
    memcpy(chain->kernels, osw_chain_table, sizeof chain->kernels);
    for (int i = 0; i < chain->count; i++) {
        calls[kernel_of(&chain->stages[i])]++;
        if (packs && !chain->stages[i].depthwise)
            calls[OSW_CHAIN_pack]++;
    }
}

/* Point the stages and links to their part of the folded weights. */
static void place(osw_chain *chain, float *folded)
{
    float *at = folded + HEAD;
    for (int i = 0; i < chain->count; i++) {
        osw_chain_stage *s = &chain->stages[i];
        s->packed = at;
        at += weight_floats(s);
        chain->links[i].norm.shift = at;
        at += osw_round_up(s->outputs, LINE);
        s->after = &chain->links[i].norm;
        if (s->depthwise)
            s->weight = s->packed;
    }
}

/* The weights of output o times `scale`: row by row of the window, and channel by channel, of a
 * dense convolution, else as they lie. */
static void scale_output(const osw_chain_stage *s, const osw_chain_link *link, const float *weight,
                         int64_t o, double scale, float *to)
{
    const int64_t *const step = link->weight_step;
    const int64_t count = osw_chain_weights(s) / s->outputs;
    if (!s->dense) {
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)((double)weight[o * count + i] * scale);
        return;
    }
    for (int64_t y = 0; y < s->window.height; y++)
        for (int64_t x = 0; x < s->window.width; x++)
            for (int64_t c = 0; c < s->channels; c++)
                *to++ =
                    (float)((double)weight[o * step[0] + c * step[1] + y * step[2] + x * step[3]] *
                            scale);
}

static void fold_stage(const osw_chain *chain, osw_chain_stage *s, const osw_chain_link *link,
                       const float *weight, float *room)
{
    const int64_t count = osw_chain_weights(s) / s->outputs;
    for (int64_t o = 0; o < s->outputs; o++) {
        const double scale = link->mean ? osw_chain_scale(link, o) : 1;
        const double mean = link->mean ? link->mean[o] : 0;
        const double bias = link->bias ? (double)link->bias[o] : 0;
        const double before = link->convolution_bias ? (double)link->convolution_bias[o] : 0;
        scale_output(s, link, weight, o, scale, room + o * count);
        link->norm.shift[o] = (float)(bias + (before - mean) * scale);
    }
    if (s->depthwise) {
        const osw_depthwise d = {.channels = s->channels, .tall = s->side, .wide = s->side};
        osw_depthwise_pack(&d, OSW_F32, room, NULL, s->packed);
    } else {
        osw_chain_stage packed = *s;
        packed.weight = room;
        packed.packs_backward = false;
        chain->kernels[OSW_CHAIN_pack](&packed, NULL);
    }
}

void osw_chain_fold(osw_chain *chain, int tier, float *folded, float *room)
{
    assert(osw_chain_holds(chain, true));
    const float *weights[OSW_CHAIN_MOST_STAGES];
    for (int i = 0; i < chain->count; i++)
        weights[i] = chain->stages[i].weight;
    memset(folded, 0, HEAD * sizeof *folded);
    folded[TIER_AT] = (float)tier;
    place(chain, folded);
    for (int i = 0; i < chain->count; i++)
        fold_stage(chain, &chain->stages[i], &chain->links[i], weights[i], room);
}

/* Rows [first[i], behind[i]) of the input of stage i that a band of the chain's output needs;
 * [count] is the band itself. */
typedef struct osw_chain_rows {
    int64_t first[OSW_CHAIN_MOST_STAGES + 1], behind[OSW_CHAIN_MOST_STAGES + 1];
} osw_chain_rows;

static osw_chain_rows rows_of(const osw_chain *chain, int64_t band, int64_t bands)
{
    osw_chain_rows rows;
    const int64_t height = chain->stages[chain->count - 1].out_height;
    rows.first[chain->count] = height * band / bands;
    rows.behind[chain->count] = height * (band + 1) / bands;
    for (int i = chain->count - 1; i >= 0; i--) {
        const osw_chain_stage *s = &chain->stages[i];
        const osw_chain_window *w = &s->window;
        const int64_t last = (rows.behind[i + 1] - 1) * w->stride_y - w->top;
        rows.first[i] = osw_max_int(rows.first[i + 1] * w->stride_y - w->top, 0);
        rows.behind[i] = osw_min_int(last + w->height, s->height);
    }
    return rows;
}

/* Floats of both buffers, such that each band has room; *second: where the second one begins. */
static int64_t buffer_floats(const osw_chain *chain, int64_t bands, int64_t *second)
{
    int64_t most[BUFFERS] = {0};
    for (int64_t band = 0; band < bands; band++) {
        const osw_chain_rows rows = rows_of(chain, band, bands);
        for (int i = 1; i < chain->count; i++) {
            const osw_chain_stage *s = &chain->stages[i];
            const int64_t floats = (rows.behind[i] - rows.first[i]) * s->width * s->channels;
            most[i % BUFFERS] = osw_max_int(most[i % BUFFERS], osw_round_up(floats, LINE));
        }
    }
    *second = most[0];
    return most[0] + most[1];
}

static bool has_room(const osw_chain *chain, int64_t bands)
{
    int64_t second;
    return buffer_floats(chain, bands, &second) * (int64_t)sizeof(float) <= OSW_CHAIN_ROOM;
}

bool osw_chain_folds(const osw_chain *chain)
{
    assert(osw_chain_holds(chain, true));
    return has_room(chain, chain->stages[chain->count - 1].out_height);
}

/* 3 x 3 with 61 to 100 channels, 16 and 32 images of 28 x 28, with AVX2: 0.93 to 0.98 of the speed
 * of torch's convolution with the normalisation behind it; one image 1.07 to 1.3. */
static bool suits_torch(const osw_chain_stage *s)
{
    const osw_chain_window *w = &s->window;
    return s->dense && w->height > 1 && w->width > 1 && osw_chain_terms(s) >= MANY_TERMS &&
           osw_chain_pixels(s) >= MANY_PIXELS;
}

bool osw_chain_repays(const osw_chain *chain, bool kept)
{
    bool repays = true;
    for (int i = 0; i < chain->count; i++) {
        const osw_chain_stage *s = &chain->stages[i];
        const bool small = kept || osw_chain_weights(s) <= OSW_CHAIN_MOST_WEIGHTS;
        repays = repays && (small || osw_chain_pixels(s) >= FEW_PIXELS) && !suits_torch(s);
    }
    return repays;
}

/* As few bands of an image as fit the caches and give each thread one. */
static int64_t bands_of(const osw_chain *chain)
{
    const osw_chain_stage *last = &chain->stages[chain->count - 1];
    const int64_t wanted = osw_ceil(osw_parallel_threads(), last->batch);
    int64_t bands = osw_max_int(osw_min_int(wanted, last->out_height / FEW_ROWS), 1);
    while (!has_room(chain, bands))
        bands++;
    return bands;
}

typedef struct osw_chain_pass {
    const osw_chain *chain;
    int64_t bands, floats, second; /* of both buffers; where the second begins */
} osw_chain_pass;

/* One band of an image through all stages. */
static void run_band(const osw_chain_pass *pass, int64_t image, int64_t band)
{
    const osw_chain *chain = pass->chain;
    const osw_chain_rows rows = rows_of(chain, band, pass->bands);
    float *const buffers = osw_scratch_outer((size_t)pass->floats * sizeof(float));
    const osw_chain_stage *s = chain->stages;
    const float *input = s->input + image * s->height * s->width * s->channels;
    for (int i = 0; i < chain->count; i++, s++) {
        osw_chain_stage stage = *s;
        const int64_t row = s->out_width * s->outputs, next = i + 1;
        float *const buffer = buffers + (next % BUFFERS ? pass->second : 0);
        stage.input = input;
        stage.output = next == chain->count ? s->normal + image * s->out_height * row
                                            : osw_chain_row_zero(buffer, rows.first[next], row);
        const int64_t unit = s->depthwise || s->dense ? 1 : s->out_width;
        const osw_chain_part part = {.begin = rows.first[next] * unit,
                                     .end = rows.behind[next] * unit};
        assert(0 <= part.begin && part.begin < part.end && part.end <= s->out_height * unit);
        chain->kernels[kernel_of(s)](&stage, &part);
        input = stage.output;
    }
}

static void run_bands(int64_t begin, int64_t end, void *context)
{
    const osw_chain_pass *pass = context;
    for (int64_t i = begin; i < end; i++)
        run_band(pass, i / pass->bands, i % pass->bands);
}

void osw_chain_folded_forward(osw_chain *chain, const float *folded)
{
    assert(osw_chain_folds(chain));
    const osw_chain_stage *last = &chain->stages[chain->count - 1];
    int64_t bytes = 0;
    for (int i = 0; i < chain->count; i++)
        osw_chain_cut(&chain->stages[i]);
    place(chain, (float *)(uintptr_t)folded);
    osw_chain_pass pass = {.chain = chain, .bands = bands_of(chain)};
    pass.floats = buffer_floats(chain, pass.bands, &pass.second);
    for (int i = 0; i < chain->count; i++) {
        const osw_chain_stage *s = &chain->stages[i];
        bytes += s->out_height * s->out_width * s->outputs * (int64_t)sizeof(float);
    }
    osw_parallel_for(last->batch * pass.bands, osw_grain(bytes / pass.bands), run_bands, &pass);
}
