/* SPDX-License-Identifier: MIT */
/* Rows of planes reduced along the width, in strips that stay in a cache. */
#ifndef OSW_POOL_STRIP_H
#define OSW_POOL_STRIP_H

#include "core/simd.h"
#include "pool/kernels/best.h"
#include "pool/kernels/rows.h"
#include "pool/window.h"

#include <math.h>

enum { BUFFER = 2048, MAX_SLOTS = 64 };

/* Outputs [first, first + count) of every row, and the columns of the input that they read. */
typedef struct osw_strip {
    int64_t first, count;
    int64_t from, to;              /* columns of the input */
    int64_t at;                    /* where column `from` lies in the padded row */
    int64_t stride;                /* phases */
    int64_t pitch;                 /* floats of a phase */
    int64_t room;                  /* floats of a reduced row */
    int64_t kernel;                /* taps along the width */
    int64_t tap_at[MAX_KERNEL];    /* of each tap: where in `phases` the first window has it */
    int32_t first_tap[MAX_KERNEL]; /* of the windows that start before the input */
    int64_t clipped;               /* how many these are */
    int64_t tag[MAX_SLOTS];        /* row of the input in each slot, -1: none */
    float phases[BUFFER];
    float values[BUFFER]; /* [slot][room] */
    int32_t taps[BUFFER];
} osw_strip;

typedef struct osw_reduced {
    const float *values;
    const int32_t *taps;
    int32_t base; /* tap of the first column */
} osw_reduced;

static inline int64_t slots_of(const osw_pool *pool)
{
    return pool->dims[DEPTH].kernel * pool->dims[HEIGHT].kernel;
}

/* Outputs that fit a strip: a whole number of vectors in the reduced rows and in the phases, which
 * reach (kernel - 1) * dilation columns further. */
static inline int64_t strip_room(const osw_pool *pool)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const int64_t reach = (dim->kernel - 1) * dim->dilation / dim->stride + 1;
    const int64_t room = osw_min(BUFFER / slots_of(pool), BUFFER / dim->stride - reach);
    return room / LANES * LANES;
}

static inline bool fits_strip(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[WIDTH].kernel <= MAX_KERNEL && dims[DEPTH].kernel <= MAX_KERNEL &&
           dims[HEIGHT].kernel <= MAX_KERNEL && slots_of(pool) <= MAX_SLOTS &&
           dims[DEPTH].dilation == 1 && dims[HEIGHT].dilation == 1 &&
           dims[WIDTH].dilation < BUFFER && dims[WIDTH].stride < BUFFER && !pool->wide &&
           strip_room(pool) >= 4 * LANES;
}

/* Set all of the strip that begins at output `first`. */
static void set_strip(osw_strip *strip, const osw_pool *pool, int64_t first)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const int64_t room = strip_room(pool), begin = first * dim->stride - dim->padding;
    strip->first = first;
    strip->room = room;
    strip->count = osw_min(room, dim->output - first);
    strip->from = osw_max(begin, 0);
    strip->to = osw_min(dim->input, (first + strip->count - 1) * dim->stride - dim->padding +
                                        (dim->kernel - 1) * dim->dilation + 1);
    strip->at = strip->from - begin;
    strip->stride = dim->stride;
    strip->pitch = BUFFER / dim->stride;
    strip->kernel = dim->kernel;
    for (int64_t k = 0; k < dim->kernel; k++) {
        const int64_t column = k * dim->dilation;
        strip->tap_at[k] = column % dim->stride * strip->pitch + column / dim->stride;
    }
    strip->clipped = osw_min(strip->count, begin < 0 ? osw_ceil_div(-begin, dim->stride) : 0);
    for (int64_t j = 0; j < strip->clipped; j++)
        strip->first_tap[j] = (int32_t)osw_taps(dim, first + j).first;
    for (int64_t i = 0; i < BUFFER; i += LANES)
        store_f32(strip->phases + i, set1_f32(-INFINITY));
}

/* Begin with a plane: nothing of it is there yet. The padding stays from plane to plane. */
static inline void begin_strip(osw_strip *strip, const osw_pool *pool, int64_t first)
{
    if (strip->first != first)
        set_strip(strip, pool, first);
    for (int64_t i = 0; i < slots_of(pool); i++)
        strip->tag[i] = -1;
}

OSW_INLINE void reduce_taps(osw_strip *strip, int64_t slot, const int kernel, const bool with_taps)
{
    float *values = strip->values + slot * strip->room;
    int32_t *taps = strip->taps + slot * strip->room;
    const float *phases = strip->phases;
    for (int64_t j = 0; j < strip->count; j += LANES) {
        osw_best best = {load_f32(phases + j), (vi32){0}};
        for (int k = 1; k < kernel; k++)
            take(&best, load_f32(phases + strip->tap_at[k] + j), set1_i32(k), with_taps);
        store_f32(values + j, best.value);
        if (with_taps)
            store_i32(taps + j, best.tap);
    }
}

/* The row in `phases` into a slot. Padding is -infinity: it never wins, but it is what a window
 * starts with, and remains if all else is -infinity, too; there the first valid tap is meant. */
OSW_INLINE void reduce_width(osw_strip *strip, int64_t slot, const bool with_taps)
{
    if (strip->kernel == 2)
        reduce_taps(strip, slot, 2, with_taps);
    else if (strip->kernel == 3)
        reduce_taps(strip, slot, 3, with_taps);
    else
        reduce_taps(strip, slot, (int)strip->kernel, with_taps);
    int32_t *taps = strip->taps + slot * strip->room;
    for (int64_t j = 0; with_taps && j < strip->clipped; j++)
        if (taps[j] < strip->first_tap[j])
            taps[j] = strip->first_tap[j];
}

#endif
