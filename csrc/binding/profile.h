/* SPDX-License-Identifier: MIT */
/* Shows a kernel in torch.profiler. */
#ifndef OSW_BINDING_PROFILE_H
#define OSW_BINDING_PROFILE_H

#include "binding/binding.h"

/* Begin the range "opswap.<name>", without a leading "plain_" of the name. Returns NULL, without an
 * exception, if no profiler runs: then the cost is one look into a dictionary. Needs the GIL, and
 * no exception may be set. No code of users runs in it: tensors that were checked stay as they are.
 */
PyObject *osw_profile_begin(const char *name);

/* End what osw_profile_begin returned, NULL included. An exception that is set stays. */
void osw_profile_end(PyObject *range);

#endif
