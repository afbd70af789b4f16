/* SPDX-License-Identifier: MIT */
/* Results of a tier against those of the scalar kernels. */
#ifndef OSW_TESTS_DRIVER_COMPARE_H
#define OSW_TESTS_DRIVER_COMPARE_H

#include "driver.h"

/* Print family, variant, tier and size, and what is wrong; counts the failure. */
void driver_report(driver *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reports the first element of every output that is too far from the expected one. */
void driver_compare(driver *d);

/* An invalid access or instruction is reported in the same way and ends the process. */
void driver_watch(driver *d);

#endif
