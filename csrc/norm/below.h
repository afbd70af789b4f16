/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the dtype. */
#ifndef OSW_NORM_BELOW_H
#define OSW_NORM_BELOW_H

#include "core/names.h"
#include "norm/norm.h"

enum {
    SHORT_PATTERN = 256,
    STRIP = 1024,           /* values: five factors and two sums take 28 KiB */
    STRIP_ROW = STRIP + 16, /* so that arrays of a strip do not meet in the same sets of L1 */
    FLUSH_PATTERNS = 64,    /* additions to one float before it goes on in double */
    AHEAD_BYTES = 4096,
    STREAM_VALUES = 512, /* of a plane, so that its edges are few */
};

/* The kernels of the tier below, for what is too small for vectors. */
static osw_norm_fn *below[OSW_NORM_COUNT];

#define ID_OF(name) OSW_JOIN(OSW_NORM_##name##_, SUFFIX)

/* One body per activation, so that no loop asks which it is. */
#define EACH_ACTIVATION(body, mode)                                                                \
    switch (norm->activation) {                                                                    \
    case OSW_RELU:                                                                                 \
        body(norm, part, mode, OSW_RELU);                                                          \
        break;                                                                                     \
    case OSW_RELU6:                                                                                \
        body(norm, part, mode, OSW_RELU6);                                                         \
        break;                                                                                     \
    case OSW_HARDSWISH:                                                                            \
        body(norm, part, mode, OSW_HARDSWISH);                                                     \
        break;                                                                                     \
    default:                                                                                       \
        body(norm, part, mode, OSW_IDENTITY);                                                      \
        break;                                                                                     \
    }

#endif
