/* SPDX-License-Identifier: MIT */
/* The functions of core/simd_math.h against the C library's of doubles, over floats of all sizes;
 * compiled with SIMD the name of a tier's header. Arguments: the step from one float's bits to the
 * next, and the first. Prints the largest error of each function; returns 1 if one is too large. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define OSW_KERNELS "accuracy_tier.h"
#include SIMD

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    return TIERED(accuracy)(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10)) ? 0 : 1;
}
