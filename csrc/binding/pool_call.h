/* SPDX-License-Identifier: MIT */
/* One call of a pooling function: the checks of its tensors against each other and its window, and
 * the kernel run on them. Functions that return int are as those of call.h. */
#ifndef OSW_BINDING_POOL_CALL_H
#define OSW_BINDING_POOL_CALL_H

#include "binding/call.h"
#include "binding/pool_counts.h"
#include "pool/run.h"

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

extern const char *const osw_pool_roles[];

/* The arguments of a window, in this order. */
enum { W_KERNEL, W_STRIDE, W_PADDING, W_DILATION, W_COUNT };

/* The job of a call. */
typedef struct osw_pool_call {
    osw_operation operation;
    osw_role large;  /* INPUT or GRAD_INPUT: its sizes are those of the input */
    osw_role small;  /* OUTPUT or GRAD_OUTPUT */
    int spatial;     /* dimensions */
    bool has_window; /* false for the adaptive operations */
    osw_pool pool;
    /* As the arguments give them. */
    int64_t sides[W_COUNT][OSW_POOL_DIMS];
    bool ceil_mode;
    bool trains; /* offsets are wanted, and what a backward needs */
    int ndim;    /* of the size: */
    int64_t size[OSW_MAX_DIMS];
    bool channels_last; /* the gradient of the input */
} osw_pool_call;

/* A job without sizes yet; of a backward one, the gradients determine the sizes. Forward and
 * backward operations alternate. */
#define OSW_POOL_JOB(op)                                                                           \
    (osw_pool_call){.operation = (op),                                                             \
                    .large = (op) % 2 ? GRAD_INPUT : INPUT,                                        \
                    .small = (op) % 2 ? GRAD_OUTPUT : OUTPUT,                                      \
                    .pool.channel_step = 1}

/* Defines a function of a pool by its entry. */
#define OSW_POOL_ENTRY(function, plain, op, ...)                                                   \
    OSW_ENTRY_OF(function, plain, OSW_POOL_JOB(op), .roles = osw_pool_roles, __VA_ARGS__)

/* What the entries of forwards and of backwards say, of these tensors. */
#define OSW_POOL_FORWARD(from) OSW_READS(from, 1, INPUT), .result = OUTPUT
#define OSW_POOL_BACKWARD(from, count, ...)                                                        \
    OSW_READS(from, count, __VA_ARGS__), .result = GRAD_INPUT,                                     \
        OSW_STEPS(osw_pool_make_gradient, osw_pool_execute)

/* RuntimeError with the problem and the value that has it. Returns -1. */
int osw_pool_fail(const osw_call *call, const char *problem, long long got);

/* A step beyond the last channel, which products of it need not overflow for. */
int64_t osw_pool_bounded_step(int64_t step, int64_t channels);

/* Whether the taps of the window can be counted in a byte. */
bool osw_pool_fits_byte(const osw_pool *pool);

/* Whether there are kernels for the dtype. */
bool osw_pool_supports(osw_operation operation, const osw_tensor *t);

/* Sizes of the input and the output against each other and the window, and offsets against both.
 */
int osw_pool_check(osw_call *call);

/* The form that all tensors allow, described in the pool; FORM_COUNT if there is none. */
osw_form osw_pool_choose_form(osw_call *call);

/* Units of work of a call in this form. */
int64_t osw_pool_units_of(const osw_pool_call *pool_call, osw_form form);

/* Check all and run the kernel; declined if the memory of a tensor fits neither form. */
osw_step osw_pool_execute;

#endif
