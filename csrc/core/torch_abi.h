/* SPDX-License-Identifier: MIT */
/* The functions of libtorch_cpu that are looked up at run time, as torch declares them in
 * torch/csrc/stable/c/shim.h. A test compiles this header together with torch's own, so that a
 * prototype that differs is a compile error. Each function may be missing. */
#ifndef OSW_CORE_TORCH_ABI_H
#define OSW_CORE_TORCH_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t grain_size,
                           void (*func)(int64_t begin, int64_t end, void *context), void *context);

int32_t torch_get_num_threads(uint32_t *num_threads);

#ifdef __cplusplus
}
#endif

#endif
