/* SPDX-License-Identifier: MIT */
/* What a file of AVX2 kernels begins with, all of its headers before the target region. */
#ifndef OSW_POOL_AVX2_FILE_H
#define OSW_POOL_AVX2_FILE_H

#include "core/half.h"
#include "core/scratch.h"
#include "core/target.h"
#include "pool/avx2_fill.h"
#include "pool/indices.h"
#include "pool/pool.h"
#include "pool/window.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

/* The scalar kernels, for the calls that a kernel of the file does not cover. */
static osw_pool_fn *fallback[OSW_POOL_COUNT];

#endif
