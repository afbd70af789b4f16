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

enum { OSW_MAX_ROLES = 11, OSW_MAX_READ = 6, OSW_MAX_ROOMS = 2, OSW_MAX_STEPS = 4 };

typedef struct osw_call {
    const char *name;         /* begins every message */
    const char *const *roles; /* what messages call the tensors */
    bool plain;               /* decline tensors that osw_tensor_plain does not read */
    bool declines;            /* decline in place of every error but that of missing memory */
    bool backward;
    PyObject *const *args; /* of the function */
    void *job;             /* what the steps of the call share */
    PyObject *result;      /* of a call that a step ends early, by failing behind this */
    int count;             /* of roles */
    PyObject **objects;    /* borrowed; NULL: not given */
    PyObject **made;       /* new references, which osw_call_end drops */
    PyObject *newest;      /* what was made last */
    osw_tensor *tensors;   /* all zero if not given */
    void *rooms[OSW_MAX_ROOMS];
} osw_call;

/* Something that a call does. */
typedef int osw_step(osw_call *call);

/* A function of the module: what it reads, does and returns, in this order. */
typedef struct osw_entry {
    const char *called; /* its name in the module, for record_calls; NULL: it is not recorded */
    const char *name;
    const char *const *roles;
    int role_count; /* if there are more than OSW_MAX_ROLES */
    int arguments;
    bool backward;              /* for call->backward */
    osw_step *numbers;          /* reads all that is not a tensor; NULL: nothing */
    int first, tensors, needed; /* tensors from this argument on; those behind the needed ones */
    int read[OSW_MAX_READ];     /* may be None. Their roles */
    osw_step *steps[OSW_MAX_STEPS]; /* the last one writes: no tensor was resized before it */
    int result, results; /* roles that are returned: one, or several in a tuple, None if not made */
    PyObject *(*give)(const osw_call *call); /* the result, if it is another */
} osw_entry;

/* A call of an entry. job: for call->job. */
PyObject *osw_enter(const osw_entry *entry, bool plain, void *job, PyObject *const *args,
                    Py_ssize_t nargs);

/* The same, with at least `count` roles; what is not given has no object, and an undefined tensor.
 */
PyObject *osw_enter_wide(const osw_entry *entry, bool plain, void *job, Py_ssize_t count,
                         PyObject *const *args, Py_ssize_t nargs);

/* Defines a function by what its entry says. job: as it begins. plain: it reads plain tensors, and
 * declines in place of errors. */
#define OSW_ENTRY_OF(function, plain, job, ...)                                                    \
    OSW_ENTRY(function)                                                                            \
    {                                                                                              \
        static const osw_entry entry = {.called = #function, __VA_ARGS__};                         \
        return osw_enter_wide(&entry, plain, &job, entry.role_count, args, nargs);                 \
    }

/* The same function, and plain_`function`. */
#define OSW_ENTRIES_OF(function, job, ...)                                                         \
    OSW_ENTRY_OF(function, false, job, __VA_ARGS__)                                                \
    OSW_ENTRY_OF(plain_##function, true, job, __VA_ARGS__)

/* Members of an entry. The tensors from an argument on, by their roles: so many are needed. */
#define OSW_READS(from, count, ...)                                                                \
    .first = (from), .needed = (count), .tensors = sizeof((int[]){__VA_ARGS__}) / sizeof(int),     \
    .read = {__VA_ARGS__}
#define OSW_STEPS(...) .steps = {__VA_ARGS__}

/* Whether this thread records calls of entries; see record_calls. */
bool osw_recording(void);

/* RuntimeError "<name>: <format>". */
int osw_fail(const char *name, const char *format, ...);

/* RuntimeError "<name>: <role> <problem>, got <got>, expected <wanted>". */
int osw_call_fail(const osw_call *call, int role, const char *problem, long long got,
                  long long wanted);

/* Parse a tensor, after every number. */
int osw_call_tensor(osw_call *call, Py_ssize_t role, PyObject *object);

/* A new dense tensor of the kind of the one at `like`, which was parsed; see osw_tensor_new. */
int osw_call_make(osw_call *call, Py_ssize_t role, Py_ssize_t like, osw_new_dtype dtype, int ndim,
                  const int64_t *size, bool channels_last);

/* True: what a call gives that only had to fit. */
PyObject *osw_call_true(const osw_call *call);

/* What was made at `role`: a new reference. */
PyObject *osw_call_made(const osw_call *call, Py_ssize_t role);

/* A new tuple of what was made at `count` roles from `first` on, None for what was not. */
PyObject *osw_call_tuple(const osw_call *call, Py_ssize_t first, Py_ssize_t count);

/* Memory until the call ends, also for no bytes; NULL with MemoryError. */
void *osw_call_room(osw_call *call, size_t bytes);

/* Kernels at work: shown in torch.profiler as "opswap.<name>", without the lock of Python if they
 * have `much` to do. */
typedef struct osw_running {
    PyObject *range;
    PyThreadState *thread;
} osw_running;

osw_running osw_run_begin(const char *name, bool much);
void osw_run_end(osw_running running);

/* Both around a statement, which calls the kernels. */
#define OSW_RUN(name, much, ...)                                                                   \
    do {                                                                                           \
        const osw_running running = osw_run_begin(name, much);                                     \
        __VA_ARGS__;                                                                               \
        osw_run_end(running);                                                                      \
    } while (0)

#endif
