/* SPDX-License-Identifier: MIT */
/* Batch normalisation and an activation: what every kernel of the family does.
 *
 * A tensor is seen as images of channels of positions. Per channel, with n = images * positions,
 *
 *     z = (x - center) * scale + shift          y = f(z)
 *     d = dy * f'(z)                            dx = d * scale + (x - center) * tilt + offset
 *
 * where f is the identity or, with parameters a and b and s(z) = 1 / (1 + e^-z),
 *
 *     relu         f = max(z, 0)                         f' = z <= 0 ? 0 : 1
 *     hardtanh     f = min(max(z, a), b)                 f' = z <= a or z >= b ? 0 : 1
 *     hardswish    f = z * min(max(z + 3, 0), 6) / 6     f' = z <= -3 ? 0 : z < 3 ? z / 3 + 1/2 : 1
 *     leaky_relu   f = z > 0 ? z : a * z                 f' = z > 0 ? 1 : a
 *     hardsigmoid  f = min(max(z + 3, 0), 6) / 6         f' = -3 < z < 3 ? 1/6 : 0
 *     sigmoid      f = s(z)                              f' = s(z) * s(-z)
 *     silu         f = z * s(z)                          f' = s(z) * (1 + z * s(-z))
 *     elu          f = z > 0 ? z : a * (e^z - 1)         f' = z > 0 ? 1 : a * e^z
 *     gelu         f = z * P(z), P the normal            f' = P(z) + z * P'(z)
 *                  distribution
 *     gelu_tanh    f = z * s(g(z)), with                 f' = s(g) * (1 + z * s(-g) * g'(z))
 *                  g = sqrt(8 / pi) * (z + 0.044715 z^3)
 *     mish         f = z * t, with                       f' = t + z * s(z) * (1 - t^2)
 *                  t = tanh(ln(1 + e^z))
 *     softplus     f = a * z > b ? z                     f' = a * z > b ? 1 : s(a * z)
 *                  : ln(1 + e^(a * z)) / a
 *
 * relu6 is hardtanh from 0 to 6. A NaN passes through f; f' of it is 1 for relu, hardtanh and
 * hardswish, a for leaky_relu, 0 for hardsigmoid, else NaN. Rewriting z from x, the backward needs
 * neither y nor a mask. `center` is the mean as the dtype can hold it, what the mean has beyond
 * that is in `shift`: x - center is exact if x is close to a mean that is large.
 *
 *     sample     center = mean of a few values of the channel that lie far from each other; of
 *                pixels at most `samples`, if that is not 0
 *     moments    first += sum of x - center, second += sum of (x - center)^2
 *     apply      y
 *     reduce     first += sum of d, second += sum of d * (x - center)
 *     gradient   dx; if tilt is NULL, dx = d * scale
 *
 * Two forms. planes: the positions of a channel are neighbours and channels follow each other
 * (channel c of an image starts at c * positions). pixels: the channels of a position are
 * neighbours, and positions and images follow each other without a gap, as rows of one matrix.
 *
 * Sums are exact to about double precision: fp32 kernels add at most OSW_NORM_FLUSH values in
 * float before they go on in double. Arithmetic of f32, bf16 and f16 is float, of f64 double.
 */
#ifndef OSW_NORM_NORM_H
#define OSW_NORM_NORM_H

#include "core/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* OSW_NORM_ROWS: parts of pixels begin at a multiple of it. */
enum { OSW_NORM_FLUSH = 2048, OSW_NORM_MAX_BLOCK = 64, OSW_NORM_ROWS = 64 };

typedef enum osw_activation_kind {
    OSW_IDENTITY,
    OSW_RELU,
    OSW_HARDTANH,
    OSW_HARDSWISH,
    OSW_LEAKY_RELU,
    OSW_HARDSIGMOID,
    OSW_SIGMOID,
    OSW_SILU,
    OSW_ELU,
    OSW_GELU,
    OSW_GELU_TANH,
    OSW_MISH,
    OSW_SOFTPLUS,
    OSW_ACTIVATION_COUNT,
    OSW_CALLED =
        OSW_ACTIVATION_COUNT /* inside kernels: another one, which is called, not inlined */
} osw_activation_kind;

/* a and b: the parameters that the kind has. */
typedef struct osw_activation {
    osw_activation_kind kind;
    double a, b;
    const struct osw_activation *called; /* if the kind is OSW_CALLED */
} osw_activation;

/* image_step in elements. y may be x; nothing else overlaps. */
typedef struct osw_norm_tensor {
    void *base;
    int64_t image_step;
} osw_norm_tensor;

/* The arrays hold one value per channel. */
typedef struct osw_norm {
    int64_t images;
    int64_t channels;
    int64_t positions;
    osw_norm_tensor x, y, dy, dx;
    osw_activation activation;
    double *center, *scale, *shift;
    double *tilt, *offset; /* gradient only */
    bool stream;           /* y or dx does not fit the caches: write around them */
    int64_t samples;
} osw_norm;

/* What one call works on. planes: channels [channel_begin, channel_end) of images [begin, end), at
 * most OSW_NORM_MAX_BLOCK channels for moments and reduce. pixels: all channels of rows
 * [begin, end). sample looks at all images. */
typedef struct osw_norm_part {
    int64_t channel_begin;
    int64_t channel_end;
    int64_t begin;
    int64_t end;
    double *first, *second; /* moments and reduce: one value for each channel of the tensor */
} osw_norm_part;

typedef void osw_norm_fn(const osw_norm *norm, const osw_norm_part *part);

/* The list of variants. X(operation, form, dtype) makes the numbers, the table and the list that
 * tests and benchmarks walk. */
#define OSW_NORM_DTYPES(X, operation, form)                                                        \
    X(operation, form, f32)                                                                        \
    X(operation, form, f64)                                                                        \
    X(operation, form, bf16)                                                                       \
    X(operation, form, f16)

#define OSW_NORM_OPERATION(X, operation)                                                           \
    OSW_NORM_DTYPES(X, operation, planes)                                                          \
    OSW_NORM_DTYPES(X, operation, pixels)

#define OSW_NORM_VARIANTS(X)                                                                       \
    OSW_NORM_OPERATION(X, sample)                                                                  \
    OSW_NORM_OPERATION(X, moments)                                                                 \
    OSW_NORM_OPERATION(X, apply)                                                                   \
    OSW_NORM_OPERATION(X, reduce)                                                                  \
    OSW_NORM_OPERATION(X, gradient)

#define OSW_NORM_ID(operation, form, dtype) OSW_NORM_##operation##_##form##_##dtype,
typedef enum osw_norm_id { OSW_NORM_VARIANTS(OSW_NORM_ID) OSW_NORM_COUNT } osw_norm_id;

/* Kernels in use, by osw_norm_id. */
OSW_DECLARE_TABLE(osw_norm_fn, osw_norm_table, OSW_NORM_COUNT, osw_norm_select, osw_norm_fill);

#endif
