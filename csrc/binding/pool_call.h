/* SPDX-License-Identifier: MIT */
/* One call of a pooling function: its tensors and its window, parsed and checked, and the kernel
 * run on them. Functions that return int return -1 with an exception set. */
#ifndef OSW_BINDING_POOL_CALL_H
#define OSW_BINDING_POOL_CALL_H

#include "binding/binding.h"
#include "binding/tensor_arg.h"
#include "core/parallel.h"
#include "pool/pool.h"

typedef enum osw_form { FORM_planes, FORM_pixels, FORM_COUNT } osw_form;

typedef enum osw_operation {
    OP_max,
    OP_max_backward,
    OP_avg,
    OP_avg_backward,
    OP_adaptive_max,
    OP_adaptive_max_backward,
    OP_amax,
    OP_amax_backward,
    OP_COUNT
} osw_operation;

/* What the tensors of a call are to it. */
typedef enum osw_role { INPUT, OUTPUT, OFFSETS, GRAD_OUTPUT, GRAD_INPUT, ROLE_COUNT } osw_role;

typedef struct osw_pool_call {
    const char *name;
    osw_operation operation;
    osw_tensor tensors[ROLE_COUNT];
    bool given[ROLE_COUNT];
    osw_role large;  /* INPUT or GRAD_INPUT: its sizes are those of the input */
    osw_role small;  /* OUTPUT or GRAD_OUTPUT */
    int spatial;     /* dimensions */
    bool has_window; /* false for the adaptive operations */
    osw_pool pool;
} osw_pool_call;

/* A call without tensors yet; of a backward one, the gradients tell the sizes. */
osw_pool_call osw_pool_begin(const char *name, osw_operation operation, bool backward);

/* RuntimeError with the problem and the value that has it. Returns -1. */
int osw_pool_fail(const osw_pool_call *call, const char *problem, long long got);

/* To be called after every number is parsed. */
int osw_pool_tensor_arg(osw_pool_call *call, osw_role role, PyObject *object);

/* A tuple of call->spatial ints, each within [low, 2^31), into one field of the dims, given by its
 * place in the first one; dimensions that the tensor does not have keep their values. */
int osw_pool_sizes(const osw_pool_call *call, PyObject *tuple, const char *what, int64_t low,
                   int64_t *first_field);

/* The channel step, a positive int. */
int osw_pool_step_arg(osw_pool_call *call, PyObject *object);

/* A step beyond the last channel, which products of it need not overflow for. */
int64_t osw_pool_bounded_step(int64_t step, int64_t channels);

/* The window arguments; dilation may be NULL. */
int osw_pool_window_args(osw_pool_call *call, PyObject *kernel, PyObject *stride, PyObject *padding,
                         PyObject *dilation);

/* Whether the taps of the window can be counted in a byte. */
bool osw_pool_fits_byte(const osw_pool *pool);

/* Whether there are kernels for the dtype. */
bool osw_pool_supports(osw_operation operation, const osw_tensor *t);

bool osw_pool_same_sizes(const osw_tensor *a, const osw_tensor *b);

/* Sizes of the input and the output against each other and the window, offsets against both, and
 * that nothing that is written overlaps itself. */
int osw_pool_check(osw_pool_call *call);

/* The form that all tensors allow, described in call->pool; FORM_COUNT if there is none. */
osw_form osw_pool_choose_form(osw_pool_call *call);

int64_t osw_pool_units(const osw_pool_call *call, osw_form form);

/* Spread `units` over the threads, without the GIL where that is worth it; a unit is its share of
 * `bytes`. */
void osw_pool_run(const char *name, int64_t units, int64_t bytes, osw_body *body, void *context);

/* Check all and run the kernel. Returns None, or NotImplemented where the memory of a tensor fits
 * neither form. */
PyObject *osw_pool_execute(osw_pool_call *call);

/* {kernel: calls} */
PyObject *osw_pool_count_calls(void);

#endif
