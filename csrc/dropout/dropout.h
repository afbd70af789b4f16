/* SPDX-License-Identifier: MIT */
/* Dropout with the random numbers that torch draws on a CPU: what every kernel of the family does.
 *
 * A mask holds one bit per element, in the order of memory, eight to a byte, the first one lowest:
 * set if the element is kept. The bits that a last byte has left are zero.
 *
 *     draw     bit = v < threshold, v the next 53-bit number of a Mersenne Twister (MT19937):
 *              the lower 53 bits of two outputs, the first one above the second
 *     apply    output = input * (bit ? scale : 0), in float for 16-bit types, rounded once
 *
 * A dropped infinity or NaN is therefore NaN, and a dropped negative number -0, as in torch.
 *
 * Source: M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998). Draws are serial, as
 * the numbers are one sequence. */
#ifndef OSW_DROPOUT_DROPOUT_H
#define OSW_DROPOUT_DROPOUT_H

#include "core/dtype.h"
#include "core/isa.h"

#include <stdint.h>

enum { OSW_TWISTER_WORDS = 624 };

typedef struct osw_twister {
    uint32_t words[OSW_TWISTER_WORDS];
    int next; /* first word that has not been used; OSW_TWISTER_WORDS if all were */
} osw_twister;

/* The bits of `count` elements, and the generator after them; threshold <= 2^53. */
typedef void osw_draw_fn(osw_twister *twister, uint64_t threshold, uint8_t *mask, int64_t count);

/* Elements [begin, end); begin is a multiple of 8. output may be input. */
typedef void osw_mask_fn(const void *input, const uint8_t *mask, double scale, void *output,
                         int64_t begin, int64_t end);

typedef struct osw_dropout_table {
    osw_draw_fn *draw;
    osw_mask_fn *apply[OSW_DTYPE_COUNT];
} osw_dropout_table;

/* Kernels in use, filled by osw_dropout_select. */
extern osw_dropout_table osw_dropout;

void osw_dropout_select(osw_isa isa);

OSW_DECLARE_FILLS(osw_dropout_fill, osw_dropout_table *table);

#endif
