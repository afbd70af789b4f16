/* SPDX-License-Identifier: MIT */
/* Numbers of a call.
 *
 * Every entry parses its numbers before its tensors: a number may be any object with an __index__
 * or a __float__, which can run any code, also code that resizes a tensor whose pointer has been
 * copied already. */
#ifndef OSW_BINDING_NUMBER_ARG_H
#define OSW_BINDING_NUMBER_ARG_H

#include "binding/binding.h"

#include <stdbool.h>

/* Sets an exception, as PyErr_Format does. Returns -1. */
int osw_raise(PyObject *kind, const char *format, ...);

/* That a function of this name got as many arguments as it needs; false with a TypeError. */
bool osw_expect(const char *name, Py_ssize_t nargs, Py_ssize_t wanted);

/* An int within [low, high]. -1 with TypeError (no int) or RuntimeError (out of range), which name
 * the function and the argument. */
int osw_int_arg(const char *name, const char *what, PyObject *object, int64_t low, int64_t high,
                int64_t *value);

/* A tuple of `count` ints within [low, high]; -1 as osw_int_arg, TypeError also for another
 * length. */
int osw_ints_arg(const char *name, const char *what, PyObject *tuple, int count, int64_t low,
                 int64_t high, int64_t *values);

/* A number as a double; -1 with an exception. */
int osw_float_arg(PyObject *object, double *value);

/* An int within [low, high] and of no derived type: a bool is not accepted. False, without an
 * exception and without running any code of the caller's, for all else. */
bool osw_exact_int(PyObject *object, int64_t low, int64_t high, int64_t *value);

/* An exact int for all of `count` sides, or a tuple or list of one each or, with `of_one`, of one
 * for all; each within [low, 2^31). False as osw_exact_int. */
bool osw_exact_sides(PyObject *object, int count, bool of_one, int64_t low, int64_t *sides);

/* The same, not of one, of an int, a tuple or a list of no derived type. */
bool osw_plain_sides(PyObject *object, int count, int64_t low, int64_t *sides);

#endif
