/* SPDX-License-Identifier: MIT */
/* Images of different sizes into one batch: what every kernel of the family does.
 *
 * A kernel works on `pixels` pixels whose elements follow each other: the channels of a pixel, then
 * those of the next one.
 *
 *     planes   writes channel c of pixel i to element c * step + i of `to`; step may be negative
 *     pixels   writes the elements in the order in which it reads them
 *
 *     normalize   y = (x * scale - mean[c]) / std[c]      every operation rounded to float
 *     move        y = x, any bits (x8, x16, x32: elements of so many bits); pixels only of x8, for
 *                 any elements in their order
 *     stream      pixels only of x8: as move, around the caches; with no pixels it waits until
 *                 other threads see all that was written so
 *
 * y is rounded to nearest, ties to even, if the dtype of the batch is not float. Of bytes, a
 * kernel may compute it in another form, and round ties away from zero, if the factors allow it:
 * the results have the same bits (osw_batch_form_of).
 *
 *     corrected   d = x * scale - mean[c], q = d * inverse[c], y = fma(fma(-q, std[c], d),
 *                 inverse[c], q): a quotient without a division (Markstein 1990)
 *     fused       y = fma(x, slope[c], shift[c])
 */
#ifndef OSW_BATCH_BATCH_H
#define OSW_BATCH_BATCH_H

#include "core/isa.h"

#include <stdint.h>

/* Factors of a call. The arrays hold the values of the channels again and again, channels +
 * OSW_BATCH_REPEAT in all, so that two vectors of them can begin at every channel. */
enum { OSW_BATCH_REPEAT = 31 };

/* Bytes in their order that memcpy and memset write; the kernels are for fewer. */
enum { OSW_BATCH_LARGE = 8192 };

typedef enum osw_batch_form {
    OSW_BATCH_DIVIDED,
    OSW_BATCH_CORRECTED,
    OSW_BATCH_FUSED,
} osw_batch_form;

typedef struct osw_batch_factors {
    int64_t channels;
    float scale;
    osw_batch_form form;
    const float *mean, *std, *inverse;
    const float *slope, *shift;
} osw_batch_factors;

typedef void osw_batch_fn(const osw_batch_factors *factors, const void *from, void *to,
                          int64_t pixels, int64_t step);

/* The list of variants. X(operation, dtype) makes the numbers, the table and the list that is
 * filled. */
#define OSW_BATCH_NORMALIZE(X, dtype)                                                              \
    X(normalize_planes_u8, dtype)                                                                  \
    X(normalize_pixels_u8, dtype)                                                                  \
    X(normalize_planes_float, dtype)                                                               \
    X(normalize_pixels_float, dtype)

#define OSW_BATCH_VARIANTS(X)                                                                      \
    OSW_BATCH_NORMALIZE(X, f32)                                                                    \
    OSW_BATCH_NORMALIZE(X, bf16)                                                                   \
    OSW_BATCH_NORMALIZE(X, f16)                                                                    \
    X(move_planes, x8)                                                                             \
    X(move_planes, x16)                                                                            \
    X(move_planes, x32)                                                                            \
    X(move_pixels, x8)                                                                             \
    X(stream_pixels, x8)

#define OSW_BATCH_ID(operation, dtype) OSW_BATCH_##operation##_##dtype,
typedef enum osw_batch_id { OSW_BATCH_VARIANTS(OSW_BATCH_ID) OSW_BATCH_COUNT } osw_batch_id;

/* Kernels in use, by osw_batch_id. */
OSW_DECLARE_TABLE(osw_batch_fn, osw_batch_table, OSW_BATCH_COUNT, osw_batch_select, osw_batch_fill);

#endif
