/* SPDX-License-Identifier: MIT */
/* What the driver's families share: inputs and outputs between guards, the kernels of the scalar
 * tier and of another one on the same input, comparison, and reports.
 *
 * A family's `check` walks its variants. For every case it names the variant and the size
 * (driver_case), asks for the tensors (driver_input, driver_output, driver_inout) and runs
 * (driver_run). A run calls the scalar kernel and that of the tier, in parts that osw_parallel_for
 * cuts, and compares what both write, the bytes around it, and that no input has changed. */
#ifndef OSW_TESTS_DRIVER_H
#define OSW_TESTS_DRIVER_H

#include "core/dtype.h"
#include "core/isa.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Besides the dtypes of floats: elements that are compared byte by byte. */
typedef enum driver_type {
    DRIVER_F32 = OSW_F32,
    DRIVER_F64 = OSW_F64,
    DRIVER_BF16 = OSW_BF16,
    DRIVER_F16 = OSW_F16,
    DRIVER_U8,
    DRIVER_U16,
    DRIVER_U32,
    DRIVER_U64,
    DRIVER_U128
} driver_type;

/* The same by the names that dtypes have in the lists of variants. */
enum {
    type_f32 = DRIVER_F32,
    type_f64 = DRIVER_F64,
    type_bf16 = DRIVER_BF16,
    type_f16 = DRIVER_F16,
    type_u8 = DRIVER_U8,
    type_i8 = DRIVER_U8,
    type_i16 = DRIVER_U16,
    type_i32 = DRIVER_U32,
    type_i64 = DRIVER_U64
};

/* WHOLE: whole numbers from -7 to 7, whose sums and products are exact in every order. REAL:
 * numbers from -2 to 2. WORST: among those NaN, infinities, zeros, subnormal ones and equal ones.
 * BITS: any bits. WHOLE_WORST: as WORST among whole numbers. Types of DRIVER_U8 and on are always
 * any bits. */
typedef enum driver_values {
    DRIVER_WHOLE,
    DRIVER_REAL,
    DRIVER_WORST,
    DRIVER_BITS,
    DRIVER_WHOLE_WORST
} driver_values;

enum { DRIVER_MOST_ROOMS = 24, DRIVER_MOST_LENGTHS = 24, DRIVER_NAME = 160 };

/* How far a tier may be from the scalar one: not at all, every bit (NaN is NaN); not at all, but
 * for the sign of zero; or, for sums in the order that the tier likes, by `terms` roundings of the
 * sum of the magnitudes, which the scalar kernel computes from the magnitudes of the inputs;
 * by `relative` of the value and `absolute`; all in the arithmetic of the dtype, and one rounding
 * of 16-bit outputs beside. Or, of integers, that it writes -1 in place of the expected one. */
typedef struct driver_error {
    enum { DRIVER_SAME_BITS, DRIVER_SAME_VALUES, DRIVER_SUMS, DRIVER_NEAR, DRIVER_OR_MINUS_1 } kind;
    double terms;
    double relative, absolute;
} driver_error;

typedef struct driver_room {
    void *data;
    size_t bytes;
    driver_type type;
    bool written, read;
    uint8_t *before; /* contents of an input, those of an output by the scalar kernel */
    uint8_t *first;  /* contents, before a kernel runs, of what it reads and writes */
    double *magnitudes;
    driver_error error;
} driver_room;

typedef struct driver driver;

typedef struct driver_family {
    const char *name;
    void (*select)(osw_isa isa); /* fills `table`, `bytes` long */
    void *table;
    size_t bytes;
    void (*check)(driver *d);
    const struct driver_contract *contract; /* NULL: none */
} driver_family;

struct driver {
    /* Set by the command line. */
    uint64_t seed;
    bool quick, heap, timed;
    /* Set per family and tier. */
    const driver_family *family;
    osw_isa tier;
    int64_t vector_bytes;
    const void *table; /* the tier's: a copy of the family's */
    /* Set per case. */
    driver_values values;
    char variant[DRIVER_NAME], size[DRIVER_NAME];
    driver_room rooms[DRIVER_MOST_ROOMS];
    int room_count;
    bool scalar_runs;
    int64_t cases, failures;
};

/* Numbers of one sequence, from d->seed on; below `end` > 0. */
uint32_t driver_draw(void);
int64_t driver_below(int64_t end);
void driver_seed(uint64_t seed);

/* Name the case that follows and give back the tensors of the last one. */
void driver_case(driver *d, const char *variant, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* `count` elements for kernels to read (of d->values), to write, or both. */
void *driver_input(driver *d, driver_type type, int64_t count);
void *driver_output(driver *d, driver_type type, int64_t count, driver_error error);
void *driver_inout(driver *d, driver_type type, int64_t count, driver_error error);

/* Doubles to read, from 0.25 to 7.25. */
double *driver_positive(driver *d, int64_t count);

/* Contents of an input that the caller has changed since. */
void driver_keep(driver *d, void *input);

/* Work on units [begin, end) with the kernels of `table`, laid out as the family's. */
typedef void driver_work(const void *context, const void *table, int64_t begin, int64_t end);

void driver_run(driver *d, driver_work *work, const void *context, int64_t units);

/* Inputs that the scalar kernel makes: for backwards. The caller keeps what it has written. */
void driver_scalar(driver_work *work, const void *context, int64_t units);

/* Lengths around the lanes of the tier for elements of so many bytes, and primes; those that are
 * timed are long. Returns how many. */
int driver_lengths(const driver *d, int64_t element_bytes, int64_t lengths[DRIVER_MOST_LENGTHS]);

/* Bytes of an element. */
int64_t driver_bytes(driver_type type);

/* Element i of floats as a double; any type of floats. */
double driver_value(driver_type type, const void *data, int64_t i);
void driver_set(driver_type type, void *data, int64_t i, double value);

/* Of threads.c: how many threads osw_parallel_for uses; 1 runs parts one after another. */
extern int driver_threads;

#define DRIVER_EXACT  ((driver_error){.kind = DRIVER_SAME_BITS})
#define DRIVER_EQUAL  ((driver_error){.kind = DRIVER_SAME_VALUES})
#define DRIVER_SUM(n) ((driver_error){.kind = DRIVER_SUMS, .terms = (double)(n)})
#define DRIVER_BY(relative_, absolute_)                                                            \
    ((driver_error){.kind = DRIVER_NEAR, .relative = (relative_), .absolute = (absolute_)})

#endif
