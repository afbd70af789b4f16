/* SPDX-License-Identifier: MIT */
/* A whole chain in evaluation: its normalisations do not move, so that they are folded into the
 * weights, and an image goes through all stages a few rows at a time. Between two stages only these
 * rows are held, in the caches; those that two bands of rows need are computed for both.
 *
 * Results are the same for any number of threads, although the bands are not: what is computed for
 * a pixel does not depend on the band that it is in. */
#ifndef OSW_CHAIN_FOLDED_H
#define OSW_CHAIN_FOLDED_H

#include "chain/run.h"

#include <stdbool.h>
#include <stdint.h>

/* Floats that hold the folded weights of a chain. */
int64_t osw_chain_folded_floats(const osw_chain *chain);

/* Floats of working memory that osw_chain_fold needs. */
int64_t osw_chain_fold_room(const osw_chain *chain);

/* Whether a band of one row fits the scratch memory; of a chain that osw_chain_holds. */
bool osw_chain_folds(const osw_chain *chain);

/* Whether the run is worth it. Large weights that are not kept for other runs do not pay for few
 * pixels, and torch's own square windows over many channels are as fast for many. */
bool osw_chain_repays(const osw_chain *chain, bool kept);

/* Take the kernels from the table, and count them; see osw_chain_choose. */
void osw_chain_choose_folded(osw_chain *chain, bool packs, uint64_t *calls);

/* Write the folded weights, from what the links have of the convolutions and normalisations, and
 * from the weights of the stages. tier: whose kernels were taken. */
void osw_chain_fold(osw_chain *chain, int tier, float *folded, float *room);

/* Whether the kernels of a tier can read these weights: whether they wrote them. */
bool osw_chain_is_folded(const float *folded, int tier);

/* `normal` of the last stage, from the input of the first one and the folded weights. */
void osw_chain_folded_forward(osw_chain *chain, const float *folded);

#endif
