/* SPDX-License-Identifier: MIT */
#include "core/parts.h"

#include <string.h>

#define ADD_PARTS(name, type)                                                                      \
    static void name(int64_t parts, int64_t count, const type *restrict from, type *restrict to)   \
    {                                                                                              \
        memcpy(to, from, (size_t)count * sizeof *to);                                              \
        for (int64_t p = 1; p < parts; p++)                                                        \
            for (int64_t i = 0; i < count; i++)                                                    \
                to[i] += from[p * count + i];                                                      \
    }
ADD_PARTS(add_floats, float)
ADD_PARTS(add_doubles, double)

void osw_add_parts(bool is_double, int64_t parts, int64_t count, const void *from, void *to)
{
    if (is_double)
        add_doubles(parts, count, from, to);
    else
        add_floats(parts, count, from, to);
}
