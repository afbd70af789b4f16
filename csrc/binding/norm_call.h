/* SPDX-License-Identifier: MIT */
/* The tensors of a batch normalisation: their checks, and what the run reads of them. Functions
 * that return int return -1 with an exception set. */
#ifndef OSW_BINDING_NORM_CALL_H
#define OSW_BINDING_NORM_CALL_H

#include "binding/call.h"
#include "norm/run.h"

/* Activations first, then statistics, then vectors. */
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

extern const char *const osw_norm_roles[];

/* Calls of the kernels, by osw_norm_id: see osw_norm_choose. */
extern uint64_t osw_norm_calls[OSW_NORM_COUNT];

/* RuntimeError with the problem and the value that has it. Returns -1. */
int osw_norm_fail(const osw_call *call, int role, const char *problem, long long got);

/* The dtype of the input; NotImplementedError if no kernel has it. */
int osw_norm_dtype(const osw_call *call, osw_dtype *dtype);

/* Parse a tensor that may be None. */
int osw_norm_optional(osw_call *call, int role, PyObject *object);

/* That `needed` is a tuple of 3; its elements say which gradients are. */
bool osw_norm_expect_needed(const osw_call *call, PyObject *needed);

/* Sizes and dtypes of what is given against each other, and that nothing that is written overlaps
 * itself or, of running statistics, what is read. Sets the dtype of the job. */
int osw_norm_check(const osw_call *call, osw_norm_job *job);

/* That the statistics to normalise with are there: of the batch in training, else running ones. */
int osw_norm_check_statistics(const osw_call *call, const osw_norm_job *job);

/* Put the large tensors into the job, in a form of csrc/norm; false if their memory fits none. */
bool osw_norm_choose_form(const osw_call *call, osw_norm_job *job);

/* The vector of this role in double, NULL if it is not given. */
double *osw_norm_read(const osw_call *call, int role, double *to);

/* Nothing happens if it is not given. */
void osw_norm_write(const osw_call *call, int role, const double *from);

/* A new dense tensor like the one at `role`. */
int osw_norm_make_like(osw_call *call, int role, int made);

/* The gradients of input, weight and bias that are needed: a tuple of bools. */
int osw_norm_make_gradients(osw_call *call, PyObject *needed);

/* A tuple of them, None if one was not made. */
PyObject *osw_norm_gradients(const osw_call *call);

#endif
