/* SPDX-License-Identifier: MIT */
/* Memory of the cases: where tensors lie, what is in them and around them. */
#ifndef OSW_TESTS_DRIVER_ROOMS_H
#define OSW_TESTS_DRIVER_ROOMS_H

#include "driver.h"

/* A copy of the family's table, filled for the scalar tier. */
extern void *driver_scalar_table;

/* End the last case. */
void driver_give_back(driver *d);

/* Outputs hold `byte` everywhere, those that are read their contents. */
void driver_reset_outputs(driver *d, int byte);

/* 1, after a report, if a byte beside a tensor or of an input has changed. */
int driver_check_surroundings(driver *d);

/* What the scalar kernel has written is what is expected. */
void driver_keep_outputs(driver *d);

/* Whether an output is compared by the magnitudes of the terms of its sums; inputs as magnitudes,
 * and again as they were, while the outputs are kept. */
bool driver_needs_magnitudes(const driver *d);
void driver_take_magnitudes(driver *d);
void driver_keep_magnitudes(driver *d);

#endif
