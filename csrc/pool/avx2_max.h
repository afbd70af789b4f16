/* SPDX-License-Identifier: MIT */
/* The kernels of pool_avx2_max.c; included once a dtype by avx2_dtypes.h. */
#include "pool/kernels/adaptive_max_pixels.h"
#include "pool/kernels/interleave.h"

#include "pool/kernels/adaptive_max_planes.h"

#include "pool/kernels/amax.h"
#include "pool/kernels/amax_backward.h"

#include "pool/kernels/max_pixels_strided.h"

#include "pool/kernels/max_pixels.h"
#include "pool/kernels/max_planes_strips.h"

#include "pool/kernels/max_planes.h"
