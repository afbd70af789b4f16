/* SPDX-License-Identifier: MIT */
/* The kernels of pool_avx2_backward.c; included once a dtype by avx2_dtypes.h. */
#include "pool/scatter.h"

#include "pool/avx2_pixels_backward.h"
#include "pool/avx2_planes_backward.h"

#include "pool/avx2_lines_backward.h"

#include "pool/avx2_avg.h"
