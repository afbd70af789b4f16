/* SPDX-License-Identifier: MIT */
#include "chain/chain.h"

#include "core/ints.h"
#include "core/scratch.h"

enum {
    BLOCK_BYTES = 64 << 10, /* of the pixels of a block, of input and output, */
    FEWEST_PIXELS = 24,     /* of a block: whole tiles, */
    SUMMED_PIXELS = 120,    /* more of them if they have no more bytes than */
    MOST_BYTES = 192 << 10, /* these: each block reads and writes all sums of a weight, */
    MOST_PIXELS = 480,
    BAND_BYTES = 300 << 10,  /* of the pixels of a band, of input and output */
    DENSE_BYTES = 192 << 10, /* of rows of input and output of a dense convolution */
    WIDEST = 16,             /* lanes of a vector */
    MOST_PARTS = 32,
    FEW_PARTS = 8,          /* that are wanted of few pixels, for as many threads, */
    PART_PIXELS = 192,      /* each of them of so many at least, */
    MANY_PART_PIXELS = 960, /* and of many pixels of so many */
    PARTIAL = 1 << 20,      /* elements that all parts of a weight may hold */
    MOST_CROSSED = 64,      /* input channels of sums that are crossed */
};

osw_chain_fn *osw_chain_table[OSW_CHAIN_COUNT];

OSW_DEFINE_SELECT(osw_chain_select, osw_chain_fn **, osw_chain_table, OSW_FILLS(osw_chain_fill))

bool osw_chain_leads(osw_isa isa)
{
    return isa >= OSW_ISA_AVX2;
}

int64_t osw_chain_packed(const osw_chain_stage *stage)
{
    const int64_t forward = osw_chain_terms(stage) * osw_round_up(stage->outputs, WIDEST);
    const int64_t backward = stage->outputs * osw_round_up(stage->channels, WIDEST);
    return stage->depthwise ? 0 : stage->dense ? forward : osw_max_int(forward, backward);
}

static int64_t max_rows(const osw_chain_stage *stage, int64_t bytes)
{
    const int64_t row = stage->channels * (int64_t)sizeof(float);
    const int64_t fixed = stage->side * (stage->width + stage->out_width) * row;
    return (bytes - fixed) / ((stage->stride * stage->width + stage->out_width) * row);
}

static int64_t dense_row_bytes(const osw_chain_stage *stage)
{
    return osw_chain_padded_row(stage) * (int64_t)sizeof(float);
}

/* Sides first, whose product may be too large for an integer. */
static bool dense_fits(const osw_chain_stage *stage)
{
    const osw_chain_window *w = &stage->window;
    return osw_max_int(w->height, w->width) <= OSW_CHAIN_MOST_CHANNELS &&
           (!osw_chain_padded(stage) || w->height * dense_row_bytes(stage) <= OSW_SCRATCH_INNER);
}

bool osw_chain_fits(const osw_chain_stage *stage, bool folded)
{
    const bool narrow = osw_max_int(stage->channels, stage->outputs) <= OSW_CHAIN_MOST_CHANNELS &&
                        stage->outputs >= OSW_CHAIN_FEWEST_CHANNELS &&
                        (stage->dense || stage->channels >= OSW_CHAIN_FEWEST_CHANNELS);
    if (!narrow)
        return false;
    if (stage->depthwise)
        return max_rows(stage, OSW_CHAIN_ROOM) >= 1;
    if (stage->dense && !(folded && dense_fits(stage)))
        return false;
    return osw_chain_weights(stage) <= (folded ? OSW_CHAIN_MOST_FOLDED : OSW_CHAIN_MOST_WEIGHTS);
}

/* Vectors run along the channels that fill them better. */
static bool crosses(const osw_chain_stage *stage)
{
    const int64_t channels = osw_round_up(stage->channels, WIDEST);
    const int64_t outputs = osw_round_up(stage->outputs, WIDEST);
    return stage->channels < MOST_CROSSED &&
           10 * stage->outputs * channels > 11 * stage->channels * outputs;
}

int64_t osw_chain_part_pixels(const osw_chain_stage *stage)
{
    const int64_t share = osw_chain_pixels(stage) / FEW_PARTS;
    return osw_min_int(osw_max_int(share, PART_PIXELS), MANY_PART_PIXELS);
}

void osw_chain_cut(osw_chain_stage *stage)
{
    int64_t total = osw_chain_pixels(stage), least = osw_chain_part_pixels(stage);
    stage->crossed = !stage->depthwise && crosses(stage);
    if (stage->depthwise) {
        const int64_t wanted = osw_max_int(max_rows(stage, BAND_BYTES), 1);
        stage->bands = osw_ceil(stage->out_height, wanted);
        least = osw_ceil(least * stage->bands, stage->out_height * stage->out_width);
        total = stage->batch * stage->bands;
    } else if (stage->dense) {
        const osw_chain_window *w = &stage->window;
        const int64_t row = dense_row_bytes(stage),
                      fixed = osw_chain_padded(stage) ? w->height * row : 0;
        const int64_t output = stage->out_width * stage->outputs * (int64_t)sizeof(float);
        stage->bands = stage->out_height;
        stage->block = osw_max_int((DENSE_BYTES - fixed) / (w->stride_y * row + output), 1);
        total = stage->batch * stage->bands;
    } else {
        const int64_t pixel = (stage->channels + stage->outputs) * (int64_t)sizeof(float);
        const int64_t summed = osw_min_int(MOST_BYTES / pixel, SUMMED_PIXELS);
        const int64_t wanted = osw_max_int(BLOCK_BYTES / pixel, summed);
        const int64_t whole = wanted / FEWEST_PIXELS * FEWEST_PIXELS;
        stage->block = osw_min_int(osw_max_int(whole, FEWEST_PIXELS), MOST_PIXELS);
    }
    const int64_t most = osw_min_int(MOST_PARTS, PARTIAL / osw_chain_weights(stage));
    const int64_t parts = osw_max_int(osw_min_int(most, total / osw_max_int(least, 1)), 1);
    stage->length = osw_ceil(total, parts);
    stage->parts = osw_ceil(total, stage->length);
}

osw_chain_part osw_chain_part_at(const osw_chain_stage *stage, int64_t i)
{
    const int64_t total =
        stage->depthwise || stage->dense ? stage->batch * stage->bands : osw_chain_pixels(stage);
    return (osw_chain_part){.begin = i * stage->length,
                            .end = osw_min_int((i + 1) * stage->length, total)};
}

osw_chain_band osw_chain_band_at(const osw_chain_stage *stage, int64_t i)
{
    const int64_t band = i % stage->bands, stride = stage->stride, half = stage->side / 2;
    const int64_t top = stage->out_height * band / stage->bands;
    const int64_t bottom = stage->out_height * (band + 1) / stage->bands;
    const bool last = band + 1 == stage->bands;
    const int64_t in_top = top * stride, in_bottom = last ? stage->height : bottom * stride;
    const int64_t first = osw_max_int(in_top - half, 0);
    return (osw_chain_band){
        .image = i / stage->bands,
        .top = top,
        .bottom = bottom,
        .in_top = in_top,
        .in_bottom = in_bottom,
        .under = first,
        .under_end = osw_min_int((bottom - 1) * stride + half + 1, stage->height),
        .over = osw_min_int(osw_ceil(first, stride), top),
        .over_end = osw_max_int(osw_min_int((in_bottom - 1 + half) / stride + 1, stage->out_height),
                                bottom),
    };
}
