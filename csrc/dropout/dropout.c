/* SPDX-License-Identifier: MIT */
#include "dropout/dropout.h"

osw_dropout_table osw_dropout;

OSW_DEFINE_SELECT(osw_dropout_select, osw_dropout_table *, &osw_dropout,
                  OSW_FILLS(osw_dropout_fill))
