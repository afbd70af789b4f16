/* SPDX-License-Identifier: MIT */
/* A whole pool: its units of work, spread over the threads. */
#ifndef OSW_POOL_RUN_H
#define OSW_POOL_RUN_H

#include "pool/indices.h"
#include "pool/pool.h"

/* Windows along one dimension, 0 if none fits. With `ceil_mode` the last one may reach past the
 * right padding, but has to start inside the input or the left padding. */
int64_t osw_pool_output_size(const osw_pool_dim *dim, bool ceil_mode);

/* Units that a kernel is called for, as pool.h counts them; has_window: not adaptive. */
int64_t osw_pool_units(const osw_pool *pool, bool has_window, bool backward, bool pixels);

/* The channels of a block for so many images. */
int64_t osw_pool_block(int64_t images);

typedef struct osw_pool_job {
    const osw_pool *pool;
    osw_pool_fn *kernel;
    bool has_window, pixels; /* not adaptive; the form of all tensors */
    int64_t units, bytes;    /* that the kernel is called for, and that they move together */
} osw_pool_job;

/* Run the kernel for all units. */
void osw_pool_run(const osw_pool_job *job);

/* Write indices for all units, which move `bytes` together. */
void osw_pool_run_indices(const osw_pool_indices *work, int64_t units, int64_t bytes);

#endif
