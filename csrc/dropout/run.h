/* SPDX-License-Identifier: MIT */
/* A whole mask, and a whole dropout: cut into parts for the threads. */
#ifndef OSW_DROPOUT_RUN_H
#define OSW_DROPOUT_RUN_H

#include "dropout/dropout.h"

/* Draw the bits of `count` elements, on this thread. */
void osw_dropout_draw(osw_draw_fn *draw, osw_twister *twister, uint64_t threshold, uint8_t *mask,
                      int64_t count);

typedef struct osw_dropout_job {
    const char *input;
    const uint8_t *mask;
    char *output;
    double scale;
    int64_t count, element_bytes;
    osw_mask_fn *apply;
} osw_dropout_job;

/* Write the output. */
void osw_dropout_apply(const osw_dropout_job *job);

#endif
