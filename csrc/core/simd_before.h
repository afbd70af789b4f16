/* SPDX-License-Identifier: MIT */
/* What kernels use beside vectors; the header of a tier includes it before its region of a target.
 */
#ifndef OSW_CORE_SIMD_BEFORE_H
#define OSW_CORE_SIMD_BEFORE_H

#include "core/half.h"
#include "core/ints.h"
#include "core/names.h"
#include "core/prefetch.h"
#include "core/simd_types.h"
#include "core/target.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#endif
