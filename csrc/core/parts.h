/* SPDX-License-Identifier: MIT */
/* Sums that are made in parts, so that threads can share them. */
#ifndef OSW_CORE_PARTS_H
#define OSW_CORE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

/* to[i] = sum of from[p][i] over p < parts, in this order; of double or float. */
void osw_add_parts(bool is_double, int64_t parts, int64_t count, const void *from, void *to);

#endif
