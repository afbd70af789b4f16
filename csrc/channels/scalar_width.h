/* SPDX-License-Identifier: MIT */
/* The scalar kernels for one width; included once a width by channels_scalar.c with WIDTH and
 * ELEMENT defined. */

#define JOIN4_(a, b, c, d) a##b##c##d
#define JOIN4(a, b, c, d)  JOIN4_(a, b, c, d)
#define KERNEL(name)       JOIN4(osw_##name##_x, WIDTH, __, scalar)
#define FIXED(operation)   JOIN4(osw_, operation, _rows_x, WIDTH)
#define MAX_FIXED_ROWS     8

/* `rows` is a constant at every call, so that the inner loop unrolls and the outer one vectorises.
 */
OSW_INLINE void FIXED(interleave)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
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

OSW_INLINE void FIXED(deinterleave)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
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

static void KERNEL(interleave_1)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(interleave)(run, image, begin, end, 1);
}

static void KERNEL(interleave_2)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(interleave)(run, image, begin, end, 2);
}

static void KERNEL(interleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(interleave)(run, image, begin, end, 3);
}

static void KERNEL(interleave_4)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(interleave)(run, image, begin, end, 4);
}

static void KERNEL(interleave_8)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(interleave)(run, image, begin, end, 8);
}

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

static void KERNEL(deinterleave_1)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(deinterleave)(run, image, begin, end, 1);
}

static void KERNEL(deinterleave_2)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(deinterleave)(run, image, begin, end, 2);
}

static void KERNEL(deinterleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(deinterleave)(run, image, begin, end, 3);
}

static void KERNEL(deinterleave_4)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(deinterleave)(run, image, begin, end, 4);
}

static void KERNEL(deinterleave_8)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(deinterleave)(run, image, begin, end, 8);
}

static void KERNEL(deinterleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    FIXED(deinterleave)(run, image, begin, end, (int)run->rows);
}

static void KERNEL(move_1)(const osw_move *moves, int64_t count, int64_t image, int64_t begin,
                           int64_t end)
{
    for (int64_t p = begin; p < end; p++)
        for (int64_t i = 0; i < count; i++)
            *(ELEMENT *)osw_at(&moves[i].to, image, p) =
                *(const ELEMENT *)osw_at(&moves[i].from, image, p);
}

#undef JOIN4_
#undef JOIN4
#undef KERNEL
#undef FIXED
#undef MAX_FIXED_ROWS
#undef WIDTH
#undef ELEMENT
