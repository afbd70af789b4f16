/* SPDX-License-Identifier: MIT */
#include "conv/conv.h"

#include "core/ints.h"

#include <string.h>

enum {
    NEAR_BYTES = 32 << 10,    /* of a block's pixels, which stay in L1 while all taps pass, */
    FAR_BYTES = 96 << 10,     /* and in L2, if the weight is large: */
    LARGE_WEIGHT = 192 << 10, /* its bytes; they are read and written once per block */
    FEWEST_PIXELS = 64,       /* of a block: fewer take as long as reading and writing the sums; */
    FEW_CHANNELS = 64,        /* twice as many if one of the images has fewer channels */
    FEWEST_COLUMNS = 16,      /* of a block that is narrower than the image */
    MOST_BYTES = 256 << 10,   /* of a block, however few its pixels are */
    WIDEST = 64,              /* bytes of a vector */
    MOST_CROSSED = 64,        /* input channels of sums that are crossed */
    MOST_PARTS = 16,
    PART_PIXELS = 256,              /* at least, for which a part pays */
    PARTIAL = 1 << 18,              /* elements that all parts of a weight may hold */
    SLICE_BYTES = 1 << 19,          /* of the weight that stay in L2 */
    OUTPUTS = 12,                   /* multiples of which outputs are cut into: whole tiles */
    FORWARD_BYTES = 128 << 10,      /* of a block of a forward: pixels read and written */
    FORWARD_PIXELS = 96,            /* at least, for which the packed weight is read again, */
    MOST_FORWARD_BYTES = 512 << 10, /* but no more bytes */
};

osw_conv_fn *osw_conv_table[OSW_CONV_COUNT];

OSW_DEFINE_SELECT(osw_conv_select, osw_conv_fn **, osw_conv_table, OSW_FILLS(osw_conv_fill))

static bool is_one_run(const osw_conv_image *image, const osw_conv *conv)
{
    return image->row_step == conv->columns.size * image->pixel_step &&
           image->image_step == conv->rows.size * image->row_step;
}

static bool is_pointwise(const osw_conv_axis *axis)
{
    return axis->taps == 1 && axis->stride == 1 && axis->size == axis->out_size;
}

static void join_images(osw_conv *conv)
{
    if (!is_pointwise(&conv->rows) || !is_pointwise(&conv->columns) ||
        !is_one_run(&conv->input, conv) || !is_one_run(&conv->grad_output, conv))
        return;
    conv->rows.size *= conv->batch;
    conv->rows.out_size = conv->rows.size;
    conv->input.image_step *= conv->batch;
    conv->grad_output.image_step *= conv->batch;
    conv->batch = 1;
}

/* Vectors run along the channels that fill them better. */
static bool crosses(const osw_conv *conv, int64_t lanes)
{
    const int64_t channels = osw_round_up(conv->channels, lanes);
    const int64_t outputs = osw_round_up(conv->outputs, lanes);
    return conv->channels < MOST_CROSSED &&
           10 * conv->outputs * channels > 11 * conv->channels * outputs;
}

/* Bytes of the pixels of a block, of `pixel` bytes each. */
static int64_t block_bytes(const osw_conv *conv, int64_t pixel, int64_t element_bytes)
{
    const bool large = osw_conv_weights(conv) * element_bytes >= LARGE_WEIGHT;
    const bool few = osw_min_int(conv->channels, conv->outputs) < FEW_CHANNELS;
    const int64_t least = osw_min_int((few ? 2 : 1) * FEWEST_PIXELS * pixel, MOST_BYTES);
    return osw_max_int(large ? FAR_BYTES : NEAR_BYTES, least);
}

/* Blocks of about so many bytes; at least a row, or FEWEST_COLUMNS of one. */
static void cut(osw_conv *conv, int64_t pixel, int64_t wanted)
{
    const osw_conv_axis *rows = &conv->rows, *columns = &conv->columns;
    const int64_t row = pixel * columns->out_size;
    conv->column_blocks = 1;
    conv->row_blocks = rows->out_size;
    if (row > 2 * wanted)
        conv->column_blocks =
            osw_min_int(osw_ceil(row, wanted), osw_ceil(columns->out_size, FEWEST_COLUMNS));
    else
        conv->row_blocks = osw_ceil(rows->out_size, osw_max_int(wanted / row, 1));
    conv->block_rows = osw_ceil(rows->out_size, conv->row_blocks);
    conv->block_columns = osw_ceil(columns->out_size, conv->column_blocks);
    conv->row_blocks = osw_ceil(rows->out_size, conv->block_rows);
    conv->column_blocks = osw_ceil(columns->out_size, conv->block_columns);
}

/* Bytes of an output pixel and of the pixels of the input that no other one reads. */
static int64_t pixel_bytes(const osw_conv *conv, int64_t element_bytes)
{
    const osw_conv_axis *rows = &conv->rows, *columns = &conv->columns;
    const int64_t pixels =
        osw_min_int(rows->stride, rows->taps) * osw_min_int(columns->stride, columns->taps);
    return (conv->channels * pixels + conv->outputs) * element_bytes;
}

void osw_conv_prepare(osw_conv *conv, int64_t element_bytes)
{
    join_images(conv);
    conv->crossed = crosses(conv, WIDEST / element_bytes);
    const int64_t pixel = pixel_bytes(conv, element_bytes);
    cut(conv, pixel, block_bytes(conv, pixel, element_bytes));
    const int64_t pixels = conv->batch * conv->rows.out_size * conv->columns.out_size;
    int64_t parts = osw_min_int(MOST_PARTS, PARTIAL / osw_conv_weights(conv));
    parts = osw_min_int(parts, pixels / PART_PIXELS);
    conv->parts = osw_max_int(1, osw_min_int(parts, osw_conv_blocks(conv)));
}

/* The channels of a row of taps are one run if they are neighbours. */
static osw_conv_terms terms_of(const osw_conv *conv)
{
    const int64_t rows = conv->rows.taps, columns = conv->columns.taps;
    const bool joins = conv->columns.dilation == 1 && conv->input.pixel_step == conv->channels;
    if (columns == 1 || joins)
        return (osw_conv_terms){1, rows, columns * conv->channels};
    return (osw_conv_terms){rows, columns, conv->channels};
}

void osw_conv_prepare_forward(osw_conv *conv, int64_t element_bytes)
{
    const int64_t pixel = pixel_bytes(conv, element_bytes);
    const int64_t least = osw_min_int(FORWARD_PIXELS * pixel, MOST_FORWARD_BYTES);
    conv->terms = terms_of(conv);
    cut(conv, pixel, osw_max_int(FORWARD_BYTES, least));
}

int64_t osw_conv_packed(const osw_conv *conv)
{
    return conv->rows.taps * conv->columns.taps * conv->channels *
           osw_round_up(conv->outputs, WIDEST / (int64_t)sizeof(float));
}

/* Places phase, phase + stride, ... of the input, to which every step-th tap contributes, `last` as
 * the last one: place m of them lies under tap t of output place (phase + padding - t * dilation) /
 * stride + m. Returns the last tap, -1 if there is none. */
static int64_t phase_axis(const osw_conv_axis *axis, int64_t phase, osw_conv_axis *to,
                          int64_t *tap_step)
{
    const int64_t stride = axis->stride, common = osw_common_factor(axis->dilation, stride);
    *tap_step = stride / common;
    *to = (osw_conv_axis){.size = axis->out_size,
                          .out_size = osw_ceil(osw_max_int(axis->size - phase, 0), stride),
                          .stride = 1,
                          .dilation = axis->dilation / common};
    int64_t last = axis->taps - 1;
    const int64_t place = phase + axis->padding;
    while (last >= 0 && (place - last * axis->dilation) % stride != 0)
        last--;
    if (last < 0)
        return -1;
    to->taps = last / *tap_step + 1;
    to->padding = (last * axis->dilation - place) / stride;
    return last;
}

bool osw_conv_phase(const osw_conv *conv, const osw_conv_output *grad_input, int64_t element_bytes,
                    int64_t row, int64_t column, osw_conv *phase)
{
    int64_t row_step, column_step;
    *phase = (osw_conv){.batch = conv->batch,
                        .channels = conv->outputs,
                        .outputs = conv->channels,
                        .input = conv->grad_output,
                        .packed = conv->packed,
                        .output = *grad_input};
    const int64_t last_row = phase_axis(&conv->rows, row, &phase->rows, &row_step);
    const int64_t last_column = phase_axis(&conv->columns, column, &phase->columns, &column_step);
    if (phase->rows.out_size == 0 || phase->columns.out_size == 0)
        return false;
    osw_conv_output *to = &phase->output;
    to->data = (char *)to->data + (row * to->row_step + column * to->pixel_step) * element_bytes;
    to->row_step *= conv->rows.stride;
    to->pixel_step *= conv->columns.stride;
    const osw_conv_weight *w = &conv->weight;
    if (last_row < 0 || last_column < 0) { /* one tap, outside of the image */
        phase->rows.taps = phase->columns.taps = 1;
        phase->rows.padding = phase->rows.out_size;
        phase->weight = *w;
    } else {
        const int64_t first = last_row * w->row + last_column * w->column;
        phase->weight = (osw_conv_weight){.data = (const char *)w->data + first * element_bytes,
                                          .row = -row_step * w->row,
                                          .column = -column_step * w->column};
    }
    phase->weight.output = w->channel;
    phase->weight.channel = w->output;
    osw_conv_prepare_forward(phase, element_bytes);
    return true;
}

osw_conv_block osw_conv_block_at(const osw_conv *conv, int64_t i)
{
    const int64_t row = i / conv->column_blocks;
    const int64_t top = row % conv->row_blocks * conv->block_rows;
    const int64_t left = i % conv->column_blocks * conv->block_columns;
    return (osw_conv_block){
        row / conv->row_blocks,
        top,
        osw_min_int(top + conv->block_rows, conv->rows.out_size),
        left,
        osw_min_int(left + conv->block_columns, conv->columns.out_size),
    };
}

int64_t osw_conv_output_parts(const osw_conv *conv, int64_t element_bytes, int threads)
{
    if (conv->crossed)
        return 1;
    const int64_t most = osw_ceil(conv->outputs, OUTPUTS);
    const int64_t fitting = osw_ceil(osw_conv_weights(conv) * element_bytes, SLICE_BYTES);
    return osw_min_int(most, osw_max_int(fitting, osw_ceil(threads, conv->parts)));
}

osw_conv_part osw_conv_part_at(const osw_conv *conv, int64_t output_parts, int64_t i)
{
    const int64_t blocks = osw_conv_blocks(conv), p = i / output_parts, o = i % output_parts;
    const int64_t units = osw_ceil(conv->outputs, OUTPUTS);
    return (osw_conv_part){
        .block_begin = p * blocks / conv->parts,
        .block_end = (p + 1) * blocks / conv->parts,
        .out_begin = o * units / output_parts * OUTPUTS,
        .out_end = osw_min_int((o + 1) * units / output_parts * OUTPUTS, conv->outputs),
    };
}

#define FLOATS OSW_EACH_F32 + OSW_EACH_F64
#define EACH   "conv/finish.h"
#include "core/each_float.h"
