/* SPDX-License-Identifier: MIT */
#include "batch/batch.h"

osw_batch_fn *osw_batch_table[OSW_BATCH_COUNT];

OSW_DEFINE_SELECT(osw_batch_select, osw_batch_fn **, osw_batch_table, OSW_FILLS(osw_batch_fill))
