/* SPDX-License-Identifier: MIT */
#include "core/parts.h"

#include <stddef.h>
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

static void add(const osw_parts *parts, int64_t count, const char *from, void *to)
{
    if (!to)
        return;
    if (parts->dtype == OSW_F64)
        add_doubles(parts->count, count, (const double *)from, to);
    else
        add_floats(parts->count, count, (const float *)from, to);
}

static char *biases_of(const osw_parts *parts)
{
    return parts->memory + parts->count * parts->weights * osw_dtype_bytes(parts->dtype);
}

void osw_parts_begin(osw_parts *parts, char *memory, void **grad_weight, void **grad_bias)
{
    if (parts->count == 1)
        return;
    parts->memory = memory;
    parts->grad_weight = *grad_weight;
    parts->grad_bias = *grad_bias;
    if (*grad_weight)
        *grad_weight = memory;
    if (*grad_bias)
        *grad_bias = biases_of(parts);
}

void osw_parts_end(const osw_parts *parts)
{
    if (parts->count == 1)
        return;
    add(parts, parts->weights, parts->memory, parts->grad_weight);
    add(parts, parts->biases, biases_of(parts), parts->grad_bias);
}
