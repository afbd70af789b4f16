/* SPDX-License-Identifier: MIT */
#ifndef OSW_BINDING_POOL_COUNTS_H
#define OSW_BINDING_POOL_COUNTS_H

#include "pool/pool.h"

/* Calls of the kernels, by osw_pool_id. */
extern uint64_t osw_pool_calls[OSW_POOL_COUNT];

#endif
