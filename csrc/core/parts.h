/* SPDX-License-Identifier: MIT */
/* Gradients of a weight and a bias that are summed in parts, so that threads can share them. */
#ifndef OSW_CORE_PARTS_H
#define OSW_CORE_PARTS_H

#include "core/dtype.h"

#include <stdint.h>

/* weights, biases: elements of the two gradients, of which either may be NULL. dtype: OSW_F32 or
 * OSW_F64. */
typedef struct {
    int64_t count, weights, biases;
    osw_dtype dtype;
    void *grad_weight, *grad_bias; /* set by osw_parts_begin: where the sums go, */
    char *memory;                  /* and where the parts are */
} osw_parts;

/* Let both pointers, and kernels that write to part p at p times the number of elements, use this
 * memory: count * (weights + biases) elements. A single part is the gradient itself, and needs
 * none. */
void osw_parts_begin(osw_parts *parts, char *memory, void **grad_weight, void **grad_bias);

/* Sum the parts, in their order, into the gradients. */
void osw_parts_end(const osw_parts *parts);

#endif
