/* SPDX-License-Identifier: MIT */
/* All kernels of one dtype. Blank lines keep clang-format from sorting files that others use behind
 * them. */
#include "core/simd.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* One element to float and back, by an instruction if the tier has one. */
#undef LOAD
#undef STORE
#define LOAD  LOCAL(widen_one)
#define STORE LOCAL(narrow_one)

#include "pool/scatter.h"

#include "pool/kernels/interleave.h"
#include "pool/kernels/tie_shares.h"

#include "pool/kernels/max_planes_strips.h"

#include "pool/kernels/max_planes.h"

#include "pool/kernels/max_pixels_strided.h"

#include "pool/kernels/max_pixels_shared.h"

#include "pool/kernels/max_pixels.h"

#include "pool/kernels/amax_pixels.h"
#include "pool/kernels/amax_planes.h"

#include "pool/kernels/adaptive_max_pixels.h"
#include "pool/kernels/adaptive_max_planes.h"

#include "pool/kernels/amax_backward_pixels.h"
#include "pool/kernels/amax_backward_planes.h"

#include "pool/kernels/max_backward_planes_strips.h"

#include "pool/kernels/max_backward_pixels.h"
#include "pool/kernels/max_backward_planes.h"

#include "pool/kernels/avg_backward_planes_strips.h"

#include "pool/kernels/avg_backward_pixels.h"
#include "pool/kernels/avg_backward_planes.h"
#include "pool/kernels/avg_pixels.h"
#include "pool/kernels/avg_planes.h"
