/* SPDX-License-Identifier: MIT */
/* One call of a chain of convolutions: its options and tensors, and the chain that they are.
 * Functions that return int are as those of call.h. */
#ifndef OSW_BINDING_CHAIN_CALL_H
#define OSW_BINDING_CHAIN_CALL_H

#include "binding/call.h"
#include "chain/folded.h"

typedef enum osw_chain_role {
    WEIGHT,
    SCALE,
    SHIFT,
    RUNNING_MEAN,
    RUNNING_VAR,
    PER_STAGE, /* in training */
    BIAS = PER_STAGE,
    PER_FOLDED_STAGE
} osw_chain_role;

/* Roles: what a forward returns, which its backward reads but for the output, whose place the
 * gradient of it has; the gradients of the inputs of all stages but the first; then the tensors of
 * the call in their order, and behind them their gradients. */
enum {
    OUTPUT,
    GRAD_OUTPUT = OUTPUT,
    STATISTICS,
    FOLDED = STATISTICS,
    ZS,
    BETWEEN = ZS + OSW_CHAIN_MOST_STAGES,
    TENSORS = BETWEEN + OSW_CHAIN_MOST_STAGES - 1
};

extern uint64_t osw_chain_calls[OSW_CHAIN_COUNT];

typedef struct osw_chain_call {
    osw_chain chain;
    bool folded;
    bool any_format; /* of the input, which is not read */
    double momentum[OSW_CHAIN_MOST_STAGES];
    int64_t groups[OSW_CHAIN_MOST_STAGES]; /* in evaluation */
    Py_ssize_t per_stage, count;           /* of tensors */
    int64_t outputs;                       /* of all stages */
    float *weights;                        /* folded */
} osw_chain_call;

/* The role of a tensor of a stage. */
Py_ssize_t osw_chain_place(const osw_call *call, int stage, int role);

/* NULL if it is not given. */
void *osw_chain_data(const osw_call *call, Py_ssize_t i);
float *osw_chain_values(const osw_call *call, int stage, int role);

/* Pixels, of which torch makes more in channels_last: not every image of one pixel. */
bool osw_chain_is_image(const osw_tensor *t);

/* The first argument; see bind_chain.c and bind_chain_folded.c. */
osw_step osw_chain_read_options;

/* The second argument, its tensors, and the chain that they are. */
osw_step osw_chain_describe;

/* The same of an input in any memory format, which nothing can be computed of. */
osw_step osw_chain_describe_any;

/* Make an image of the size of a stage's output, or of its input. NULL with an exception. */
float *osw_chain_make_image(osw_call *call, Py_ssize_t role, const osw_chain_stage *s,
                            bool of_input);

/* Of each stage means, then variances. */
void osw_chain_place_statistics(osw_chain_call *c, double *statistics);

/* A call of a chain, declined in place of errors. */
PyObject *osw_chain_enter(const osw_entry *entry, bool folded, PyObject *const *args,
                          Py_ssize_t nargs);

/* Defines a function of chains by what its entry says behind the options. */
#define OSW_CHAIN_ENTRY(function, folded, ...)                                                     \
    OSW_ENTRY(function)                                                                            \
    {                                                                                              \
        static const osw_entry entry = {.numbers = osw_chain_read_options, __VA_ARGS__};           \
        return osw_chain_enter(&entry, folded, args, nargs);                                       \
    }

#endif
