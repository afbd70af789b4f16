/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

osw_pool_fn *osw_pool_table[OSW_POOL_COUNT];

OSW_DEFINE_SELECT(osw_pool_select, osw_pool_fn **, osw_pool_table, OSW_FILLS(osw_pool_fill))
