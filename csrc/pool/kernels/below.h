/* SPDX-License-Identifier: MIT */
/* The kernels of the tier below, for calls that a kernel of this tier does not cover. */
#ifndef OSW_POOL_BELOW_H
#define OSW_POOL_BELOW_H

#include "core/names.h"
#include "pool/pool.h"

static osw_pool_fn *below[OSW_POOL_COUNT];

#define ID_OF(name) OSW_JOIN(OSW_POOL_##name##_, SUFFIX)

#endif
