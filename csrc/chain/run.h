/* SPDX-License-Identifier: MIT */
/* A whole chain, forward or backward: which kernel runs on which part, in which order, on how many
 * threads. Results are the same for any number of threads: sums belong to parts that depend on the
 * sizes only, and are added in the order of the parts. */
#ifndef OSW_CHAIN_RUN_H
#define OSW_CHAIN_RUN_H

#include "chain/chain.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

/* The normalisation behind a stage. All arrays hold one value per output channel. */
typedef struct osw_chain_link {
    const float *weight, *bias; /* NULL: 1, 0 */
    double eps;
    const float *convolution_bias;  /* in evaluation; NULL: 0 */
    int64_t weight_step[4];         /* of a dense convolution's weight, as torch has it */
    double *mean, *var;             /* biased; written by a forward, read by a backward. In
                                     * evaluation NULL: nothing is normalised */
    float *grad_weight, *grad_bias; /* written by a backward, unless NULL */
    osw_chain_norm norm;            /* set by the run, but for the activation */
} osw_chain_link;

/* Of channel c, from the variance that the link has. */
static inline double osw_chain_invstd(const osw_chain_link *link, int64_t c)
{
    return 1 / sqrt(link->var[c] + link->eps);
}

/* What the normalisation multiplies channel c by. */
static inline double osw_chain_scale(const osw_chain_link *link, int64_t c)
{
    return (link->weight ? (double)link->weight[c] : 1) * osw_chain_invstd(link, c);
}

/* One call. Of a stage are given: the sizes, the weight as torch has it, and the tensors. */
typedef struct osw_chain {
    int count;
    osw_chain_stage stages[OSW_CHAIN_MOST_STAGES];
    osw_chain_link links[OSW_CHAIN_MOST_STAGES];
    float *grad_weights[OSW_CHAIN_MOST_STAGES]; /* as torch has the weights; backward */
    osw_chain_fn *kernels[OSW_CHAIN_COUNT];     /* set by osw_chain_choose */
} osw_chain;

/* Whether stages follow each other, and the kernels can, in evaluation or else in training. */
bool osw_chain_holds(const osw_chain *chain, bool folded);

/* Cut all stages. Returns the bytes of working memory that the run needs. */
size_t osw_chain_prepare(osw_chain *chain);

/* Take the kernels of a run from the table, and count them in `calls`, by osw_chain_id. The caller
 * holds the lock that guards both; the run that follows reads neither. */
void osw_chain_choose(osw_chain *chain, bool backward, uint64_t *calls);

/* z of all stages, mean and var of all links, and the normal of the last stage. */
void osw_chain_forward(osw_chain *chain, void *memory);

/* grad_input of the first stage unless it is NULL, all grad_weights, and those of the links. The
 * stages between have room for their grad_input, which is `grad` of the one before. */
void osw_chain_backward(osw_chain *chain, void *memory);

#endif
