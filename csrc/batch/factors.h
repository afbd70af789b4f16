/* SPDX-License-Identifier: MIT */
/* The factors of a job as kernels want them. */
#ifndef OSW_BATCH_FACTORS_H
#define OSW_BATCH_FACTORS_H

#include "batch/run.h"

#include <stddef.h>

/* Bytes of room for the arrays of the factors of so many channels. */
size_t osw_batch_factors_room(int64_t channels);

/* The job's factors, to be divided by std; of the channels in reverse order if `reversed`. */
osw_batch_factors osw_batch_factors_of(const osw_batch_job *job, bool reversed, float *room);

/* The fastest form that gives the bits of the division, in the dtype of the batch, for each byte
 * and channel. */
osw_batch_form osw_batch_form_of(const osw_batch_factors *factors, osw_batch_dtype to);

#endif
