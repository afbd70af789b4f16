/* SPDX-License-Identifier: MIT */
/* The tensors of a batch normalisation: their checks, and what the run reads of them. Functions
 * that return int return -1 with an exception set. */
#ifndef OSW_BINDING_NORM_CALL_H
#define OSW_BINDING_NORM_CALL_H

#include "binding/call.h"
#include "norm/run.h"

/* Results of a forward and of a backward are neighbours; vectors come last. */
typedef enum osw_norm_role {
    INPUT,
    GRAD_OUTPUT,
    OUTPUT,
    STATISTICS,
    GRAD_INPUT,
    GRAD_WEIGHT,
    GRAD_BIAS,
    RUNNING_MEAN,
    RUNNING_VAR,
    WEIGHT,
    BIAS,
    ROLE_COUNT,
} osw_norm_role;

extern const char *const osw_norm_roles[];

/* Those of the size of the input. */
enum { OSW_NORM_LARGE = 4 };
extern const osw_norm_role osw_norm_large[OSW_NORM_LARGE];

/* Calls of the kernels, by osw_norm_id: see osw_norm_choose. */
extern uint64_t osw_norm_calls[OSW_NORM_COUNT];

/* RuntimeError with the problem and the value that has it. Returns -1. */
int osw_norm_fail(const osw_call *call, int role, const char *problem, long long got);

/* False for None. */
bool osw_norm_requires_grad(PyObject *tensor);

/* training, a bool; eps; activation, a name or None. */
int osw_norm_read_options(const osw_call *call, osw_norm_job *job, PyObject *training,
                          PyObject *eps, PyObject *activation);

/* That `needed` is a tuple of 3; its elements say which gradients are. */
int osw_norm_expect_needed(const osw_call *call, PyObject *needed);

/* Sizes and dtypes of the large tensors against each other, and that nothing that is written
 * overlaps itself; the dtype of all. NotImplementedError if no kernel has it. */
int osw_norm_check_large(const osw_call *call, osw_dtype *dtype);

/* Vectors hold one value for each of so many channels, all in the dtype of the input, or all in
 * float32 if that is a 16-bit type. moves: the running statistics are written. */
int osw_norm_check_vectors(const osw_call *call, int64_t channels, bool moves);

/* That the statistics, if given, are dense float64 of this size, which `shape` shows. */
int osw_norm_check_statistics(const osw_call *call, int ndim, const int64_t *size,
                              const char *shape);

/* That the statistics to normalise with are there: of the batch in training, else running ones. */
int osw_norm_check_given(const osw_call *call, const osw_norm_job *job);

/* All of osw_norm_check_large and osw_norm_check_vectors, of (N, C, *), and that running statistics
 * that are written lie apart from what is read. Sets the dtype of the job. */
int osw_norm_check(const osw_call *call, osw_norm_job *job);

/* Put the large tensors into the job, in a form of csrc/norm; false if their memory fits none. */
bool osw_norm_choose_form(const osw_call *call, osw_norm_job *job);

/* The vector of this role in double, NULL if it is not given. */
double *osw_norm_read(const osw_call *call, int role, double *to);

/* Nothing happens if it is not given. */
void osw_norm_write(const osw_call *call, int role, const double *from);

/* Vectors of a call in double: the parameters, NULL if not given, and room for their gradients,
 * NULL unless one was made. */
enum { OSW_NORM_VECTORS = 4 };
typedef struct osw_norm_vectors {
    const double *weight, *bias;
    double *grad_weight, *grad_bias;
} osw_norm_vectors;

/* The parameters, read into `memory`, which has room for OSW_NORM_VECTORS of so many channels. */
osw_norm_vectors osw_norm_read_vectors(const osw_call *call, int64_t channels, double *memory);

/* The same, into the job. */
void osw_norm_place(const osw_call *call, osw_norm_job *job, double *memory);

/* Prepare a run: the same, and mean and var, which are the statistics of the call if it has some.
 * Returns the scratch of the run, NULL with MemoryError. */
double *osw_norm_begin(osw_call *call, osw_norm_job *job);

/* Behind the run: write the gradients that were made, and the running statistics by what a forward
 * in training has found. scratch: of osw_norm_begin. */
void osw_norm_end(const osw_call *call, const osw_norm_job *job, double *scratch);

/* Write the gradients that were made. */
void osw_norm_write_gradients(const osw_call *call, const double *weight, const double *bias);

/* A new dense tensor like the one at `role`. */
int osw_norm_make_like(osw_call *call, int role, int made, bool channels_last);

/* The gradients of input, weight and bias that are needed: a tuple of bools. */
int osw_norm_make_gradients(osw_call *call, PyObject *needed, bool channels_last);

/* Whether the kernels have enough to do to let go of the lock of Python. */
bool osw_norm_is_large(const osw_call *call);

#endif
