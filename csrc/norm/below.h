/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share for all dtypes. */
#ifndef OSW_NORM_BELOW_H
#define OSW_NORM_BELOW_H

#include "core/names.h"
#include "norm/norm.h"

#include <stdbool.h>

enum {
    SHORT_PATTERN = 256,
    MANY_VALUES = 64 * SHORT_PATTERN, /* of a part */
    STRIP = 1024,                     /* values: five factors and two sums take 28 KiB */
    STRIP_ROW = STRIP + 16, /* so that arrays of a strip do not meet in the same sets of L1 */
    FLUSH_PATTERNS = 64,    /* additions to one float before it goes on in double */
    AHEAD_BYTES = 4096,
    STREAM_VALUES = 512, /* of a plane, so that its edges are few */
};

/* The kernels of the tier below, for what is too small for vectors. */
static osw_norm_fn *below[OSW_NORM_COUNT];

#define ID_OF(name) OSW_JOIN(OSW_NORM_##name##_, SUFFIX)

#define IDENTITY ((osw_activation){.kind = OSW_IDENTITY})

/* One body per kind of activation, so that no loop tests which it is; and one for all kinds that
 * are too long or too rare for bodies of their own, and are called. */
#define CASE_OF(body, mode, constant)                                                              \
case constant:                                                                                     \
    body(norm, part, mode,                                                                         \
         (osw_activation){.kind = constant, .a = norm->activation.a, .b = norm->activation.b});    \
    break;

#define EACH_ACTIVATION(body, mode)                                                                \
    switch (norm->activation.kind) {                                                               \
        CASE_OF(body, mode, OSW_IDENTITY)                                                          \
        CASE_OF(body, mode, OSW_RELU)                                                              \
        CASE_OF(body, mode, OSW_HARDTANH)                                                          \
        CASE_OF(body, mode, OSW_HARDSWISH)                                                         \
        CASE_OF(body, mode, OSW_LEAKY_RELU)                                                        \
        CASE_OF(body, mode, OSW_SILU)                                                              \
    default:                                                                                       \
        body(norm, part, mode, (osw_activation){.kind = OSW_CALLED, .called = &norm->activation}); \
        break;                                                                                     \
    }

/* Activations whose arithmetic takes longer than the memory: bodies with fewer copies of it, which
 * do not write around the caches. */
static inline bool is_lean(osw_activation activation)
{
    return activation.kind == OSW_SILU || activation.kind == OSW_CALLED;
}

#endif
