/* SPDX-License-Identifier: MIT */
/* One call of batch normalisation: its tensors, parsed and checked, and what the run takes of them.
 * Functions that return int return -1 with an exception set. */
#ifndef OSW_BINDING_NORM_CALL_H
#define OSW_BINDING_NORM_CALL_H

#include "binding/binding.h"
#include "binding/tensor_arg.h"
#include "norm/run.h"

/* What the tensors of a call are to it: activations first, then statistics, then vectors. */
typedef enum osw_norm_role {
    INPUT,
    OUTPUT,
    GRAD_OUTPUT,
    GRAD_INPUT,
    STATISTICS,
    RUNNING_MEAN,
    RUNNING_VAR,
    WEIGHT,
    BIAS,
    GRAD_WEIGHT,
    GRAD_BIAS,
    ROLE_COUNT
} osw_norm_role;

typedef struct osw_norm_call {
    const char *name;
    osw_tensor tensors[ROLE_COUNT];
    bool given[ROLE_COUNT];
    bool moves; /* the running statistics, by momentum, which may be any number */
    double momentum;
    osw_norm_job job;
} osw_norm_call;

/* RuntimeError with the problem and the value that has it. Returns -1. */
int osw_norm_fail(const osw_norm_call *call, osw_norm_role role, const char *problem,
                  long long got);

/* training, a bool; eps; activation, a name or None. */
int osw_norm_options(osw_norm_call *call, PyObject *training, PyObject *eps, PyObject *activation);

/* Sizes and dtypes of what is given against each other, and that nothing that is written overlaps
 * itself or, of running statistics, what is read. */
int osw_norm_check(osw_norm_call *call);

/* That the statistics to normalise with are there: of the batch in training, else running ones. */
int osw_norm_check_statistics(const osw_norm_call *call);

/* Put the large tensors into the job, in a form of csrc/norm; false if their memory fits none. */
bool osw_norm_choose_form(osw_norm_call *call);

/* The vector of this role in double, NULL where it is not given. */
double *osw_norm_read(const osw_norm_call *call, osw_norm_role role, double *to);

/* Nothing happens where it is not given. */
void osw_norm_write(const osw_norm_call *call, osw_norm_role role, const double *from);

#endif
