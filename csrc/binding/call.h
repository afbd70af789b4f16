/* SPDX-License-Identifier: MIT */
/* One call of a function: its tensors by role, parsed, made and returned, and the kernels run on
 * them. Functions that return int return -1 if the call fails: with an exception or, if it is to be
 * declined, without one. */
#ifndef OSW_BINDING_CALL_H
#define OSW_BINDING_CALL_H

#include "binding/number_arg.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "core/parallel.h"

/* Defines a function that returns a dict of how often each kernel of a family was called. calls:
 * the numbers; then the names, which OSW_VARIANT_2 and OSW_VARIANT_3 make of a list of variants. */
#define OSW_ENTRY_COUNTS(name, calls, ...)                                                         \
    OSW_ENTRY_NO_ARGS(name)                                                                        \
    {                                                                                              \
        static const char *const names[] = {__VA_ARGS__};                                          \
        return osw_counts(sizeof names / sizeof *names, names, calls);                             \
    }
#define OSW_ENTRY_COUNTS_LINE(name) OSW_ENTRY_NO_ARGS_LINE(name, "Calls of every kernel, by name.")
#define OSW_VARIANT_2(a, b)         #a "_" #b,
#define OSW_VARIANT_3(a, b, c)      #a "_" #b "_" #c,

PyObject *osw_counts(size_t count, const char *const *names, const uint64_t *calls);

enum { OSW_MAX_ROLES = 11 };

typedef struct osw_call {
    const char *name;                  /* begins every message */
    const char *const *roles;          /* what messages call the tensors */
    bool plain;                        /* decline tensors that osw_tensor_plain does not read */
    PyObject *objects[OSW_MAX_ROLES];  /* borrowed; NULL: not given */
    PyObject *made[OSW_MAX_ROLES];     /* new references, which osw_call_end drops */
    osw_tensor tensors[OSW_MAX_ROLES]; /* all zero if not given */
} osw_call;

/* RuntimeError "<name>: <format>". */
int osw_fail(const char *name, const char *format, ...);

/* RuntimeError "<name>: <role> <problem>, got <got>, expected <wanted>". */
int osw_call_fail(const osw_call *call, int role, const char *problem, long long got,
                  long long wanted);

/* Tensors, to be parsed after every number: the arguments of `count` roles from `first` on. */
int osw_call_tensor(osw_call *call, int role, PyObject *object);
int osw_call_tensors(osw_call *call, int first, int count, PyObject *const *args);

/* A new dense tensor of the kind of the one at `like`, which was parsed; see osw_tensor_new. */
int osw_call_make(osw_call *call, int role, int like, osw_new_dtype dtype, int ndim,
                  const int64_t *size, bool channels_last);

/* That no tensor was resized since it was parsed. */
int osw_call_unchanged(const osw_call *call);

/* What was made at `role`: a new reference. */
PyObject *osw_call_made(const osw_call *call, int role);

/* A new tuple of what was made at `count` roles from `first` on, None for what was not. */
PyObject *osw_call_tuple(const osw_call *call, int first, int count);

/* Drop what was made. Returns `result`, but NotImplemented for NULL without an exception. */
PyObject *osw_call_end(osw_call *call, PyObject *result);

/* Memory until PyMem_Free, at least one byte; NULL with MemoryError. */
void *osw_room(size_t bytes);

/* Kernels at work: shown in torch.profiler as "opswap.<name>", without the lock of Python if they
 * have `much` to do. */
typedef struct osw_running {
    PyObject *range;
    PyThreadState *thread;
} osw_running;

osw_running osw_run_begin(const char *name, bool much);
void osw_run_end(osw_running running);

#endif
