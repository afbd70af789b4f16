/* SPDX-License-Identifier: MIT */
/* Pixels of any strides, and of dtypes that the kernels do not read, as the kernels want them. */
#ifndef OSW_BATCH_STAGE_H
#define OSW_BATCH_STAGE_H

#include "batch/run.h"

/* Pixels [first, first + pixels) of row `y` of an image, one after another at `to`: the elements as
 * they are, or as floats if `convert`. float64 is rounded to nearest. */
void osw_batch_stage(const osw_batch_job *job, const osw_batch_image *image, int64_t y,
                     int64_t first, int64_t pixels, bool convert, void *to);

#endif
