/* SPDX-License-Identifier: MIT */
/* How max_backward over planes cuts lines into blocks of columns. */
#ifndef OSW_POOL_LINE_BLOCKS_H
#define OSW_POOL_LINE_BLOCKS_H

#include "core/simd.h"
#include "pool/kernels/lines.h"
#include "pool/window.h"

enum { MAX_EDGES = 4 };

/* A block of columns whose vectors reach over an end of the rows of the output, or of the line. */
typedef struct osw_edge {
    int64_t column; /* of the input */
    int64_t at;     /* of the output: lane 0 of the first window */
    vi32 inside[3]; /* of window o: the lanes that there are */
} osw_edge;

/* How a line of the input is cut into blocks of columns, the same for all lines. */
typedef struct osw_cut {
    int64_t width;       /* of the input */
    int64_t first, last; /* whole blocks: `at` of the first one, LANES further each, and its most */
    int64_t column;      /* of the first whole block; behind an edge if it is not 0 */
    int edges;
    osw_edge edge[MAX_EDGES];
} osw_cut;

static inline void add_edge(osw_cut *cut, int64_t column, int64_t at, int64_t outputs,
                            const osw_side columns)
{
    osw_edge *edge = &cut->edge[cut->edges++];
    edge->column = column;
    edge->at = at;
    for (int o = 0; o < windows_met(columns, columns.stride); o++)
        edge->inside[o] = columns_within(at + o, outputs);
}

/* The last block overlaps the one before, if there is one. */
static inline void set_cut(osw_cut *cut, const osw_pool_dim *dim, const osw_side columns)
{
    const int64_t block = LANES * columns.stride, width = dim->input, outputs = dim->output;
    const int64_t start = first_window(dim, columns);
    const int met = windows_met(columns, columns.stride);
    cut->width = width;
    cut->edges = 0;
    cut->first = start;
    cut->column = 0;
    cut->last = osw_min(outputs - met + 1, start + width / columns.stride) - LANES;
    if (start < 0) {
        add_edge(cut, 0, start, outputs, columns);
        cut->first += LANES;
        cut->column = block;
    }
    int64_t at = cut->first, column = cut->column;
    for (; at <= cut->last; at += LANES)
        column += block;
    for (; column < width; at += LANES, column += block) {
        if (column + block > width && width >= block && width % columns.stride == 0) {
            column = width - block;
            at = start + column / columns.stride;
        }
        add_edge(cut, column, at, outputs, columns);
    }
}

/* Elements from the base to the end of the last plane. */
static inline int64_t extent_of(const osw_pool *pool, const osw_pool_tensor *t)
{
    return osw_place(t, pool->images - 1, pool->channels - 1, osw_output_plane(pool));
}

#endif
