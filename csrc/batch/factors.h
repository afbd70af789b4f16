/* SPDX-License-Identifier: MIT */
/* The factors of a job as kernels want them. */
#ifndef OSW_BATCH_FACTORS_H
#define OSW_BATCH_FACTORS_H

#include "batch/run.h"

#include <stddef.h>

/* Bytes of room for the arrays of the factors of so many channels. */
size_t osw_batch_factors_room(int64_t channels);

/* The job's factors, not fused; of the channels in reverse order if `reversed`. */
osw_batch_factors osw_batch_factors_of(const osw_batch_job *job, bool reversed, float *room);

/* Whether the fused form gives the bits of the other one, in the dtype of the batch, for each byte
 * and channel. */
bool osw_batch_fusable(const osw_batch_factors *factors, osw_batch_dtype to);

#endif
