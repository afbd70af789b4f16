/* SPDX-License-Identifier: MIT */
/* Everything of torch that the extension uses by name, looked up in one place, once. Each name may
 * be missing: private ones come and go with torch's releases. What its users do without it is
 * written beside it. */
#ifndef OSW_BINDING_TORCH_NAMES_H
#define OSW_BINDING_TORCH_NAMES_H

#include "binding/binding.h"

#include <stdbool.h>

typedef enum osw_torch_name {
    /* Public. */
    OSW_TORCH_TENSOR,
    OSW_TORCH_PARAMETER,
    OSW_TORCH_NEW_EMPTY_STRIDED, /* unbound: an attribute set on a tensor does not hide it */
    OSW_TORCH_UINT8,
    OSW_TORCH_INT32,
    OSW_TORCH_FLOAT64,
    OSW_TORCH_IS_NEG,  /* unbound */
    OSW_TORCH_IS_CONJ, /* unbound */
    OSW_TORCH_CONTIGUOUS,
    OSW_TORCH_CHANNELS_LAST,
    OSW_TORCH_CHANNELS_LAST_3D,
    /* Private. Without one of these no call counts as an ordinary one: every call goes the way
     * through torch's dispatcher. */
    OSW_TORCH_TRANSFORMS,
    OSW_TORCH_DISPATCH_STACK,
    OSW_TORCH_FUNCTION_STACK,
    OSW_TORCH_TRACING_STATE,
    OSW_TORCH_FORWARD_AD, /* the module; its _current_level changes */
    /* Private. Without one of these a default device is taken for a mode of the user's own. */
    OSW_TORCH_FUNCTION_MODE_AT,
    OSW_TORCH_DEVICE_CONTEXT,
    /* Private. Without it the public query for the CPU's autocast is used. */
    OSW_TORCH_ANY_AUTOCAST,
    OSW_TORCH_AUTOCAST, /* public; without it and the one above, autocast is taken to be on */
    /* Private: the module with _is_profiler_enabled, and a range that costs little. Without one of
     * them the kernels are not shown in torch.profiler. */
    OSW_TORCH_PROFILER,
    OSW_TORCH_RECORD_FUNCTION,
    OSW_TORCH_NAME_COUNT
} osw_torch_name;

/* Borrowed, kept for good; NULL, without an exception, if torch lacks it. Needs the GIL. */
PyObject *osw_torch(osw_torch_name name);

#endif
