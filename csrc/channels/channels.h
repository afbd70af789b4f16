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
 * Channels are moved by width, whatever the dtype. There is no avx512 file: at these shapes the
 * 512-bit forms were measured within 1 % of the 256-bit ones, both wait for memory.
 */
#ifndef OSW_CHANNELS_CHANNELS_H
#define OSW_CHANNELS_CHANNELS_H

#include "core/isa.h"

#include <stdint.h>

/* Places in memory, one a pixel: image n, pixel p lies at base + n * image_step + p * pixel_step
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
 * tells. */
typedef void osw_run_fn(const osw_run *run, int64_t image, int64_t begin, int64_t end);

/* to = from, `count` moves of one channel each, for pixels [begin, end) of one image. */
typedef void osw_move_fn(const osw_move *moves, int64_t count, int64_t image, int64_t begin,
                         int64_t end);

/* to = from for planes [begin, end); plane i is channel i % channels of image i / channels, `bytes`
 * bytes long. */
typedef void osw_planes_fn(const osw_move *moves, int64_t channels, int64_t bytes, int64_t begin,
                           int64_t end);

/* The list of variants. X(operation, type of function, rows, width in bits); rows ANY takes any
 * number of rows. It makes the prototypes, the table and the list that tests and benchmarks walk.
 */
#define OSW_CHANNELS_WIDTHS(X, operation, type, rows)                                              \
    X(operation, type, rows, 8)                                                                    \
    X(operation, type, rows, 16)                                                                   \
    X(operation, type, rows, 32)                                                                   \
    X(operation, type, rows, 64)                                                                   \
    X(operation, type, rows, 128)

#define OSW_CHANNELS_TRANSPOSES(X, operation)                                                      \
    OSW_CHANNELS_WIDTHS(X, operation, osw_run_fn, 1)                                               \
    OSW_CHANNELS_WIDTHS(X, operation, osw_run_fn, 2)                                               \
    OSW_CHANNELS_WIDTHS(X, operation, osw_run_fn, 3)                                               \
    OSW_CHANNELS_WIDTHS(X, operation, osw_run_fn, 4)                                               \
    OSW_CHANNELS_WIDTHS(X, operation, osw_run_fn, 8)                                               \
    OSW_CHANNELS_WIDTHS(X, operation, osw_run_fn, ANY)

#define OSW_CHANNELS_VARIANTS(X)                                                                   \
    OSW_CHANNELS_TRANSPOSES(X, interleave)                                                         \
    OSW_CHANNELS_TRANSPOSES(X, deinterleave)                                                       \
    OSW_CHANNELS_WIDTHS(X, move, osw_move_fn, 1)                                                   \
    X(copy, osw_planes_fn, PLANES, 8)

#define OSW_CHANNELS_ENTRY(operation, type, rows, width) type *operation##_##rows##_x##width;
typedef struct osw_channels_table {
    OSW_CHANNELS_VARIANTS(OSW_CHANNELS_ENTRY)
} osw_channels_table;

/* A number for every entry, in the order of the list. */
#define OSW_CHANNELS_ID(operation, type, rows, width) OSW_##operation##_##rows##_x##width,
typedef enum osw_channels_id {
    OSW_CHANNELS_VARIANTS(OSW_CHANNELS_ID) OSW_CHANNELS_COUNT
} osw_channels_id;

/* Kernels in use, filled by osw_channels_select. */
extern osw_channels_table osw_channels;

/* Fill the table: every entry by the scalar file, then each tier up to `isa` overwrites what it
 * improves. */
void osw_channels_select(osw_isa isa);

void osw_channels_fill__scalar(osw_channels_table *table);
void osw_channels_fill__avx2(osw_channels_table *table);

#endif
