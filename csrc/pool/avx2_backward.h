/* SPDX-License-Identifier: MIT */
/* The kernels of pool_avx2_backward.c; included once a dtype by avx2_dtypes.h. */
#include "pool/scatter.h"

#include "pool/kernels/max_backward_pixels.h"
#include "pool/kernels/max_backward_planes_strips.h"

#include "pool/kernels/max_backward_planes.h"

#include "pool/kernels/avg_backward.h"
