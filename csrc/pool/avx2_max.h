/* SPDX-License-Identifier: MIT */
/* The kernels of pool_avx2_max.c; included once a dtype by avx2_dtypes.h. */
#include "pool/avx2_adaptive.h"
#include "pool/avx2_moves.h"

#include "pool/avx2_adaptive_planes.h"

#include "pool/avx2_global.h"
#include "pool/avx2_ties.h"

#include "pool/avx2_compact.h"

#include "pool/avx2_pixels.h"
#include "pool/avx2_planes.h"

#include "pool/avx2_lines_max.h"
