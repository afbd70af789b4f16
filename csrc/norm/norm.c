/* SPDX-License-Identifier: MIT */
#include "norm/norm.h"

osw_norm_fn *osw_norm_table[OSW_NORM_COUNT];

OSW_DEFINE_SELECT(osw_norm_select, osw_norm_fn **, osw_norm_table, OSW_FILLS(osw_norm_fill))
