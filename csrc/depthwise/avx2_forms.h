/* SPDX-License-Identifier: MIT */
/* The strips for every side and stride of a window and every length, and their tables. */

/* Pixels of a strip, the longest first; the maps of common networks are multiples of 7. */
enum { LOCAL(LENGTHS) = 4 };
static const int LOCAL(lengths)[LOCAL(LENGTHS)] = {7, 4, 2, 1};

/* guarded: a part of the window may be outside. */
typedef void LOCAL(strip_fn)(const LOCAL(strip) * s, bool guarded);

#define NAME(kind, side, stride, pixels) JOIN(LOCAL(kind##_##side##_##stride), _, pixels)

/* Two copies of a strip, so that only those at the margins pay for their checks. */
#define STRIP(name, inlined, ...)                                                                  \
    static void name(const LOCAL(strip) * s, bool guarded)                                         \
    {                                                                                              \
        if (guarded)                                                                               \
            LOCAL(inlined)(__VA_ARGS__, true, s);                                                  \
        else                                                                                       \
            LOCAL(inlined)(__VA_ARGS__, false, s);                                                 \
    }
#define PIXELS(side, stride, n)                                                                    \
    STRIP(NAME(gather, side, stride, n), gather, side, stride, n, false)                           \
    STRIP(NAME(correlate, side, stride, n), correlate, side, stride, n)
#define WINDOW(side, stride)                                                                       \
    PIXELS(side, stride, 7) PIXELS(side, stride, 4) PIXELS(side, stride, 2) PIXELS(side, stride, 1)
#define FLIPPED(side, n) STRIP(NAME(flipped, side, 1, n), gather, side, 1, n, true)
#define SIDE(side)                                                                                 \
    WINDOW(side, 1)                                                                                \
    WINDOW(side, 2)                                                                                \
    FLIPPED(side, 7)                                                                               \
    FLIPPED(side, 4) FLIPPED(side, 2) FLIPPED(side, 1) STRIP(LOCAL(spread_##side), spread, side)
SIDE(3)
SIDE(5)

/* By stride and length. */
typedef LOCAL(strip_fn) *const LOCAL(strips)[2][LOCAL(LENGTHS)];

#define NAMES(kind, side, stride)                                                                  \
    {NAME(kind, side, stride, 7), NAME(kind, side, stride, 4), NAME(kind, side, stride, 2),        \
     NAME(kind, side, stride, 1)}
#define STRIDES(kind, side) {NAMES(kind, side, 1), NAMES(kind, side, 2)}

static LOCAL(strips) LOCAL(gathers_3) = STRIDES(gather, 3), LOCAL(gathers_5) = STRIDES(gather, 5);
static LOCAL(strips) LOCAL(correlates_3) = STRIDES(correlate, 3),
                     LOCAL(correlates_5) = STRIDES(correlate, 5);
static LOCAL(strip_fn) *const LOCAL(flippeds_3)[LOCAL(LENGTHS)] = NAMES(flipped, 3, 1);
static LOCAL(strip_fn) *const LOCAL(flippeds_5)[LOCAL(LENGTHS)] = NAMES(flipped, 5, 1);

#undef NAME
#undef STRIP
#undef PIXELS
#undef WINDOW
#undef FLIPPED
#undef SIDE
#undef NAMES
#undef STRIDES
