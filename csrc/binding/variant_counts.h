/* SPDX-License-Identifier: MIT */
#ifndef OSW_BINDING_VARIANT_COUNTS_H
#define OSW_BINDING_VARIANT_COUNTS_H

#include "binding/binding.h"

/* A new dict of how often each of a family's kernels was called, by name. */
PyObject *osw_variant_counts(int count, const char *const *names, const uint64_t *calls);

#endif
