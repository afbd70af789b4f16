/* SPDX-License-Identifier: MIT */
/* Plain loops for one width of elements; included once per width. */
#include "channels/channels.h"
#include "core/target.h"

#include <stdint.h>

#ifndef SUFFIX
#    include "channels/each_width.h"
#endif

#ifndef MAX_FIXED_ROWS
#    define MAX_FIXED_ROWS 8
#endif

/* `rows` is a constant at every call, so that the inner loop unrolls and the outer one vectorises.
 */
OSW_INLINE void LOCAL(interleave)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                           const int rows)
{
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *restrict wide = (ELEMENT *)osw_at(&run->wide, image, p);
        const ELEMENT *narrow[MAX_FIXED_ROWS];
        for (int i = 0; i < rows; i++)
            narrow[i] = (const ELEMENT *)osw_at(&run->narrow[i], image, p);
        for (int64_t j = 0; j < run->columns; j++)
            for (int i = 0; i < rows; i++)
                wide[j * rows + i] = narrow[i][j];
    }
}

OSW_INLINE void LOCAL(deinterleave)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                             const int rows)
{
    for (int64_t p = begin; p < end; p++) {
        const ELEMENT *wide = (const ELEMENT *)osw_at(&run->wide, image, p);
        for (int i = 0; i < rows; i++) {
            ELEMENT *restrict narrow = (ELEMENT *)osw_at(&run->narrow[i], image, p);
            for (int64_t j = 0; j < run->columns; j++)
                narrow[j] = wide[j * rows + i];
        }
    }
}

#define FIXED_ROWS(name, direction, rows)                                                          \
    static void KERNEL(name)(const osw_run *run, int64_t image, int64_t begin, int64_t end)        \
    {                                                                                              \
        LOCAL(direction)(run, image, begin, end, rows);                                            \
    }
FIXED_ROWS(interleave_1, interleave, 1)
FIXED_ROWS(interleave_2, interleave, 2)
FIXED_ROWS(interleave_3, interleave, 3)
FIXED_ROWS(interleave_4, interleave, 4)
FIXED_ROWS(interleave_8, interleave, 8)
FIXED_ROWS(deinterleave_1, deinterleave, 1)
FIXED_ROWS(deinterleave_2, deinterleave, 2)
FIXED_ROWS(deinterleave_3, deinterleave, 3)
FIXED_ROWS(deinterleave_4, deinterleave, 4)
FIXED_ROWS(deinterleave_8, deinterleave, 8)
#undef FIXED_ROWS

static void KERNEL(interleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *restrict wide = (ELEMENT *)osw_at(&run->wide, image, p);
        for (int64_t i = 0; i < run->rows; i++) {
            const ELEMENT *narrow = (const ELEMENT *)osw_at(&run->narrow[i], image, p);
            for (int64_t j = 0; j < run->columns; j++)
                wide[j * run->rows + i] = narrow[j];
        }
    }
}

static void KERNEL(deinterleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    LOCAL(deinterleave)(run, image, begin, end, (int)run->rows);
}

static void
KERNEL(move_1)(const osw_move *moves, int64_t count, int64_t image, int64_t begin, int64_t end)
{
    for (int64_t p = begin; p < end; p++)
        for (int64_t i = 0; i < count; i++)
            *(ELEMENT *)osw_at(&moves[i].to, image, p) =
                *(const ELEMENT *)osw_at(&moves[i].from, image, p);
}
