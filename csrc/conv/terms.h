/* SPDX-License-Identifier: MIT */
/* The terms of an output of a convolution, and the pieces of them whose sums stay in registers. */
#ifndef OSW_CONV_TERMS_H
#define OSW_CONV_TERMS_H

#include "core/ints.h"

#include <stdint.h>

enum {
    OSW_CONV_DEPTH = 256
}; /* terms at most that are summed before they are added to the output */

/* `groups` of `runs` of `run` terms that are neighbours in the image. */
typedef struct osw_conv_terms {
    int64_t groups, runs, run;
} osw_conv_terms;

/* Terms [begin, end) of the runs [run_begin, run_end) of a group: whole runs, or a part of one. */
typedef struct osw_conv_piece {
    int64_t group;
    int64_t run_begin, run_end;
    int64_t begin, end;
    int64_t first; /* its first term, counted from the first group on, */
    int64_t count; /* and all of its terms */
} osw_conv_piece;

static inline int64_t osw_conv_count_terms(const osw_conv_terms *t)
{
    return t->groups * t->runs * t->run;
}

/* Pieces of a run, at least 1, and of the runs of a group. */
static inline int64_t osw_conv_run_cuts(const osw_conv_terms *t)
{
    return osw_ceil(t->run, OSW_CONV_DEPTH);
}

static inline int64_t osw_conv_group_cuts(const osw_conv_terms *t)
{
    return osw_ceil(t->runs, osw_max_int(OSW_CONV_DEPTH / t->run, 1));
}

static inline int64_t osw_conv_pieces(const osw_conv_terms *t)
{
    return t->groups * osw_conv_group_cuts(t) * osw_conv_run_cuts(t);
}

/* Piece i, as long as the others up to rounding; whole runs have one cut only. */
static inline osw_conv_piece osw_conv_piece_at(const osw_conv_terms *t, int64_t i)
{
    const int64_t cuts = osw_conv_run_cuts(t), parts = osw_conv_group_cuts(t);
    const int64_t cut = i % cuts, part = i / cuts % parts;
    osw_conv_piece p = {.group = i / cuts / parts,
                        .run_begin = part * t->runs / parts,
                        .run_end = (part + 1) * t->runs / parts,
                        .begin = cut * t->run / cuts,
                        .end = (cut + 1) * t->run / cuts};
    p.first = (p.group * t->runs + p.run_begin) * t->run + p.begin;
    p.count = (p.run_end - p.run_begin) * (p.end - p.begin);
    return p;
}

#endif
