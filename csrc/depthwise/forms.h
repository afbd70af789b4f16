/* SPDX-License-Identifier: MIT */
/* The strips for every side and stride of a window and every length, and their tables;
 * included once per dtype, after strips.h. */
#include "depthwise/below.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "depthwise/strips.h"
#endif

/* Pixels of a strip, the longest first; the maps of common networks are multiples of 7. */
enum { LOCAL(LENGTHS) = 4 };
static const int LOCAL(lengths)[LOCAL(LENGTHS)] = {7, 4, 2, 1};

/* The kinds of columns of a window that may be outside, and of strips that prefetch. */
enum { LOCAL(NONE), LOCAL(OUTER), LOCAL(ANY), LOCAL(ASKING) };

/* margin: one of them; OUTER: at most side / 2 columns at each end. Strips of several pixels do not
 * use ANY, except for spread. ASKING: of the longest alone, OUTER and with prefetching. */
typedef void LOCAL(strip_fn)(const LOCAL(strip) *s, int margin);

#define NAME(kind, side, stride, pixels) OSW_JOIN(LOCAL(kind##_##side##_##stride), _##pixels)

/* Copies of a strip, so that only those at the margins pay for checks. Those that prefetch are
 * functions of their own: as part of the others they cost small images 5 to 12 % on Zen 5. */
#define WITHOUT_ASKING(inlined, outer, ...)                                                        \
    if (margin)                                                                                    \
        LOCAL(inlined)(__VA_ARGS__, false, outer, s);                                              \
    else                                                                                           \
        LOCAL(inlined)(__VA_ARGS__, false, 0, s);
#define STRIP(name, ...)                                                                           \
    static void name(const LOCAL(strip) * s, int margin)                                           \
    {                                                                                              \
        WITHOUT_ASKING(__VA_ARGS__)                                                                \
    }
#define LONGEST(name, inlined, outer, ...)                                                         \
    OSW_OUTLINE void OSW_JOIN(name, _asking)(const LOCAL(strip) * s)                               \
    {                                                                                              \
        LOCAL(inlined)(__VA_ARGS__, true, outer, s);                                               \
    }                                                                                              \
    static void name(const LOCAL(strip) * s, int margin)                                           \
    {                                                                                              \
        if (margin == LOCAL(ASKING))                                                               \
            OSW_JOIN(name, _asking)(s);                                                            \
        else                                                                                       \
            WITHOUT_ASKING(inlined, outer, __VA_ARGS__)                                            \
    }
#define OUTER(side, pixels) ((pixels) > 1 ? (side) / 2 : (side))
#define PIXELS(form, side, stride, n)                                                              \
    form(NAME(gather, side, stride, n), gather, OUTER(side, n), side, stride, n, false)            \
        form(NAME(correlate, side, stride, n), correlate, OUTER(side, n), side, stride, n)
#define WINDOW(side, stride)                                                                       \
    PIXELS(LONGEST, side, stride, 7)                                                               \
    PIXELS(STRIP, side, stride, 4) PIXELS(STRIP, side, stride, 2) PIXELS(STRIP, side, stride, 1)
#define FLIPPED(form, side, n)                                                                     \
    form(NAME(flipped, side, 1, n), gather, OUTER(side, n), side, 1, n, true)
#define SPREAD(side)                                                                               \
    static void LOCAL(spread_##side)(const LOCAL(strip) * s, int margin)                           \
    {                                                                                              \
        if (margin == LOCAL(ANY))                                                                  \
            LOCAL(spread)(side, LOCAL(MOST_PIXELS), s);                                            \
        else if (margin)                                                                           \
            LOCAL(spread)(side, (side) > 1 ? (side) / 2 : 1, s);                                   \
        else                                                                                       \
            LOCAL(spread)(side, 0, s);                                                             \
    }
#define SIDE(side)                                                                                 \
    WINDOW(side, 1)                                                                                \
    WINDOW(side, 2)                                                                                \
    FLIPPED(LONGEST, side, 7)                                                                      \
    FLIPPED(STRIP, side, 4) FLIPPED(STRIP, side, 2) FLIPPED(STRIP, side, 1) SPREAD(side)
SIDE(1)
SIDE(3)
SIDE(5)
SIDE(7)
SIDE(9)

/* By side / 2, then by stride and length. */
enum { LOCAL(SIDES) = 5 };
typedef LOCAL(strip_fn) *const LOCAL(strips)[LOCAL(SIDES)][2][LOCAL(LENGTHS)];

#define NAMES(kind, side, stride)                                                                  \
    {NAME(kind, side, stride, 7), NAME(kind, side, stride, 4), NAME(kind, side, stride, 2),        \
     NAME(kind, side, stride, 1)}
#define STRIDES(kind, side) {NAMES(kind, side, 1), NAMES(kind, side, 2)}
#define SIDES(kind)                                                                                \
    {STRIDES(kind, 1), STRIDES(kind, 3), STRIDES(kind, 5), STRIDES(kind, 7), STRIDES(kind, 9)}

static LOCAL(strips) LOCAL(gathers) = SIDES(gather);
static LOCAL(strips) LOCAL(correlates) = SIDES(correlate);
static LOCAL(strip_fn) *const LOCAL(flippeds)[LOCAL(SIDES)][LOCAL(LENGTHS)] = {NAMES(flipped, 1, 1), NAMES(flipped, 3, 1),
                                                   NAMES(flipped, 5, 1), NAMES(flipped, 7, 1),
                                                   NAMES(flipped, 9, 1)};
static LOCAL(strip_fn) *const LOCAL(spreads)[LOCAL(SIDES)] = {LOCAL(spread_1), LOCAL(spread_3), LOCAL(spread_5), LOCAL(spread_7),
                                                LOCAL(spread_9)};

/* Two rows at a time: of windows for whose taps of two rows, beside 14 sums, there are registers.
 * Those of 3 x 3 with stride 2 share one line of five: 0.85 to 1.06 times as fast on Zen 5. */
#if (REGISTERS) == 32
#    define BOTH(form, side, stride, n)                                                            \
        form(NAME(gather_both, side, stride, n), gather_both, OUTER(side, n), side, stride, n,     \
             false)
#    define FLIPPED_BOTH(form, side, n)                                                            \
        form(NAME(flipped_both, side, 1, n), gather_both, OUTER(side, n), side, 1, n, true)
#    define LENGTHS_OF_BOTH(side, stride)                                                          \
        BOTH(LONGEST, side, stride, 7)                                                             \
        BOTH(STRIP, side, stride, 4) BOTH(STRIP, side, stride, 2) BOTH(STRIP, side, stride, 1)
#    define SIDE_OF_BOTH(side)                                                                     \
        LENGTHS_OF_BOTH(side, 1)                                                                   \
        FLIPPED_BOTH(LONGEST, side, 7)                                                             \
        FLIPPED_BOTH(STRIP, side, 4) FLIPPED_BOTH(STRIP, side, 2) FLIPPED_BOTH(STRIP, side, 1)
SIDE_OF_BOTH(3)
SIDE_OF_BOTH(5)
SIDE_OF_BOTH(7)
LENGTHS_OF_BOTH(5, 2)
LENGTHS_OF_BOTH(7, 2)

static LOCAL( strips) LOCAL( gathers_of_both) = {{{NULL}},
                                 {NAMES(gather_both, 3, 1), {NULL}},
                                 STRIDES(gather_both, 5),
                                 STRIDES(gather_both, 7),
                                 {{NULL}}};
static LOCAL( strip_fn) *const
    LOCAL( flippeds_of_both)[LOCAL(SIDES)][LOCAL(LENGTHS)] = {{NULL},
                                                           NAMES(flipped_both, 3, 1),
                                                           NAMES(flipped_both, 5, 1),
                                                           NAMES(flipped_both, 7, 1),
                                                           {NULL}};
#    undef BOTH
#    undef FLIPPED_BOTH
#    undef LENGTHS_OF_BOTH
#    undef SIDE_OF_BOTH
#else
static LOCAL(strips) LOCAL(gathers_of_both) = {{{NULL}}};
static LOCAL(strip_fn) *const LOCAL(flippeds_of_both)[LOCAL(SIDES)][LOCAL(LENGTHS)] = {{NULL}};
#endif

#undef NAME
#undef WITHOUT_ASKING
#undef STRIP
#undef LONGEST
#undef OUTER
#undef SPREAD
#undef PIXELS
#undef WINDOW
#undef FLIPPED
#undef SIDE
#undef NAMES
#undef STRIDES
#undef SIDES
