/* SPDX-License-Identifier: MIT */
/* Channel permutations: what every kernel of the family does.
 *
 * A shuffle is the transpose of a matrix of channels. It has a narrow side, `rows` rows of
 * `columns` channels each, and a wide side, one row in which the channels of one column are
 * neighbours:
 *
 *     wide[j * rows + i] = narrow[i][j]        0 <= i < rows, 0 <= j < columns
 *
 * A shuffle with few groups reads the narrow side and writes the wide one (interleave); its
 * inverse, and a shuffle with few channels a group, reads the wide side and writes the narrow one
 * (deinterleave).
 *
 * Channels are moved by width, whatever the dtype. */
#ifndef OSW_CHANNELS_CHANNELS_H
#define OSW_CHANNELS_CHANNELS_H

#include "core/isa.h"

#include <stdint.h>

/* Places in memory, one per pixel: image n, pixel p lies at base + n * image_step + p * pixel_step
 * (bytes). What is read through a stream is never written: sources and targets of one call do not
 * overlap. */
typedef struct osw_stream {
    char *base;
    int64_t image_step;
    int64_t pixel_step;
} osw_stream;

static inline char *osw_at(const osw_stream *s, int64_t image, int64_t pixel)
{
    return s->base + image * s->image_step + pixel * s->pixel_step;
}

/* Columns that lie side by side in memory on the wide side and in every row of the narrow side. */
typedef struct osw_run {
    int64_t rows;             /* >= 1 */
    int64_t columns;          /* >= 1 */
    osw_stream wide;          /* first of rows * columns channels */
    const osw_stream *narrow; /* [rows]: first of `columns` channels each */
} osw_run;

/* One channel on its own: an element of every pixel, or a whole plane of every image (pixel_step
 * unused). */
typedef struct osw_move {
    osw_stream from;
    osw_stream to;
} osw_move;

/* Transpose one run for pixels [begin, end) of one image, in the direction that the function's name
 * shows. */
typedef void osw_run_fn(const osw_run *run, int64_t image, int64_t begin, int64_t end);

/* to = from, `count` moves of one channel each, for pixels [begin, end) of one image. */
typedef void osw_move_fn(const osw_move *moves, int64_t count, int64_t image, int64_t begin,
                         int64_t end);

/* to = from for planes [begin, end); plane i is channel i % channels of image i / channels, `bytes`
 * bytes long. */
typedef void osw_planes_fn(const osw_move *moves, int64_t channels, int64_t bytes, int64_t begin,
                           int64_t end);

typedef enum osw_direction { OSW_interleave, OSW_deinterleave, OSW_DIRECTION_COUNT } osw_direction;

/* A kernel for any number of rows, or one that is made for so many. */
typedef enum osw_rows {
    OSW_ROWS_1,
    OSW_ROWS_2,
    OSW_ROWS_3,
    OSW_ROWS_4,
    OSW_ROWS_8,
    OSW_ROWS_ANY,
    OSW_ROWS_COUNT
} osw_rows;

/* Widths of an element in bits: 8 << width. */
typedef enum osw_width { OSW_x8, OSW_x16, OSW_x32, OSW_x64, OSW_x128, OSW_WIDTH_COUNT } osw_width;

typedef struct osw_channels_table {
    osw_run_fn *transpose[OSW_DIRECTION_COUNT][OSW_ROWS_COUNT][OSW_WIDTH_COUNT];
    osw_move_fn *move[OSW_WIDTH_COUNT];
    osw_planes_fn *copy;
} osw_channels_table;

/* Indices of the kernels for counters. */
#define OSW_TRANSPOSE_ID(direction, rows, width)                                                   \
    (((direction) * OSW_ROWS_COUNT + (rows)) * OSW_WIDTH_COUNT + (width))
enum {
    OSW_MOVE_ID = OSW_DIRECTION_COUNT * OSW_ROWS_COUNT * OSW_WIDTH_COUNT, /* + width */
    OSW_COPY_ID = OSW_MOVE_ID + OSW_WIDTH_COUNT,
    OSW_CHANNELS_COUNT
};

/* The list of variants that tests and benchmarks walk: X(index, name). */
#define OSW_CHANNELS_WIDTHS(X, index, name)                                                        \
    X(index + OSW_x8, name "_x8")                                                                  \
    X(index + OSW_x16, name "_x16")                                                                \
    X(index + OSW_x32, name "_x32")                                                                \
    X(index + OSW_x64, name "_x64")                                                                \
    X(index + OSW_x128, name "_x128")

#define OSW_CHANNELS_ROWS(X, operation, rows)                                                      \
    OSW_CHANNELS_WIDTHS(X, OSW_TRANSPOSE_ID(OSW_##operation, OSW_ROWS_##rows, 0),                  \
                        #operation "_" #rows)

#define OSW_CHANNELS_TRANSPOSES(X, operation)                                                      \
    OSW_CHANNELS_ROWS(X, operation, 1)                                                             \
    OSW_CHANNELS_ROWS(X, operation, 2)                                                             \
    OSW_CHANNELS_ROWS(X, operation, 3)                                                             \
    OSW_CHANNELS_ROWS(X, operation, 4)                                                             \
    OSW_CHANNELS_ROWS(X, operation, 8)                                                             \
    OSW_CHANNELS_ROWS(X, operation, ANY)

#define OSW_CHANNELS_VARIANTS(X)                                                                   \
    OSW_CHANNELS_TRANSPOSES(X, interleave)                                                         \
    OSW_CHANNELS_TRANSPOSES(X, deinterleave)                                                       \
    OSW_CHANNELS_WIDTHS(X, OSW_MOVE_ID, "move_1")                                                  \
    X(OSW_COPY_ID, "copy_PLANES_x8")

/* Kernels in use, filled by osw_channels_select. */
extern osw_channels_table osw_channels;

/* Fill the table: every entry by the scalar file, then each tier up to `isa` overwrites what it
 * improves. */
void osw_channels_select(osw_isa isa);

OSW_DECLARE_FILLS(osw_channels_fill, osw_channels_table *table);

#endif
