/* SPDX-License-Identifier: MIT */
#include "layer_norm/layer_norm.h"

osw_layer_norm_fn *osw_layer_norm_table[OSW_LAYER_NORM_COUNT];

OSW_DEFINE_SELECT(osw_layer_norm_select, osw_layer_norm_fn **, osw_layer_norm_table,
                  OSW_FILLS(osw_layer_norm_fill))
