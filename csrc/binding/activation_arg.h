/* SPDX-License-Identifier: MIT */
#ifndef OSW_BINDING_ACTIVATION_ARG_H
#define OSW_BINDING_ACTIVATION_ARG_H

#include "binding/binding.h"
#include "norm/norm.h"

/* None, a name, or a name with its parameters: "hardtanh(-1.0, 1.0)". 0, or -1 with a ValueError
 * that begins with `function`. */
int osw_activation_arg(PyObject *argument, const char *function, osw_activation *activation);

#endif
