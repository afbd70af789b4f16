/* SPDX-License-Identifier: MIT */
/* Running the kernels of csrc/linear over a described call. */
#ifndef OSW_BINDING_LINEAR_RUN_H
#define OSW_BINDING_LINEAR_RUN_H

#include "binding/binding.h"
#include "linear/linear.h"

/* How often each kernel was called, by osw_linear_id. */
extern uint64_t osw_linear_calls[OSW_LINEAR_COUNT];

/* Write the output if it has a base, and every gradient that has one, without the GIL where there
 * is much to do. row_parts and part_rows are set here. `name` is shown in torch.profiler. Returns
 * -1 with MemoryError. */
int osw_linear_run(const char *name, osw_linear *linear, osw_linear_dtype dtype);

#endif
