/* SPDX-License-Identifier: MIT */
#include "binding/torch_names.h"

/* An attribute of a module, or of a type in it; or, without one, the module. */
typedef struct osw_torch_place {
    const char *module, *type, *attribute;
} osw_torch_place;

static const osw_torch_place places[OSW_TORCH_NAME_COUNT] = {
    [OSW_TORCH_TENSOR] = {"torch", NULL, "Tensor"},
    [OSW_TORCH_PARAMETER] = {"torch.nn", NULL, "Parameter"},
    [OSW_TORCH_NEW_EMPTY_STRIDED] = {"torch", "Tensor", "new_empty_strided"},
    [OSW_TORCH_UINT8] = {"torch", NULL, "uint8"},
    [OSW_TORCH_INT32] = {"torch", NULL, "int32"},
    [OSW_TORCH_FLOAT64] = {"torch", NULL, "float64"},
    [OSW_TORCH_IS_NEG] = {"torch", "Tensor", "is_neg"},
    [OSW_TORCH_IS_CONJ] = {"torch", "Tensor", "is_conj"},
    [OSW_TORCH_CONTIGUOUS] = {"torch", NULL, "contiguous_format"},
    [OSW_TORCH_CHANNELS_LAST] = {"torch", NULL, "channels_last"},
    [OSW_TORCH_CHANNELS_LAST_3D] = {"torch", NULL, "channels_last_3d"},
    [OSW_TORCH_TRANSFORMS] = {"torch._C", NULL, "_are_functorch_transforms_active"},
    [OSW_TORCH_DISPATCH_STACK] = {"torch._C", NULL, "_len_torch_dispatch_stack"},
    [OSW_TORCH_FUNCTION_STACK] = {"torch._C", NULL, "_len_torch_function_stack"},
    [OSW_TORCH_TRACING_STATE] = {"torch._C", NULL, "_get_tracing_state"},
    [OSW_TORCH_FORWARD_AD] = {"torch.autograd.forward_ad", NULL, NULL},
    [OSW_TORCH_FUNCTION_MODE_AT] = {"torch._C", NULL, "_get_function_stack_at"},
    [OSW_TORCH_DEVICE_CONTEXT] = {"torch.utils._device", NULL, "DeviceContext"},
    [OSW_TORCH_ANY_AUTOCAST] = {"torch._C", NULL, "_is_any_autocast_enabled"},
    [OSW_TORCH_AUTOCAST] = {"torch", NULL, "is_autocast_enabled"},
    [OSW_TORCH_PROFILER] = {"torch.autograd.profiler", NULL, NULL},
    [OSW_TORCH_RECORD_FUNCTION] = {"torch._C._profiler", NULL, "_RecordFunctionFast"},
};

/* Guarded by the GIL. */
static PyObject *found[OSW_TORCH_NAME_COUNT];
static bool searched[OSW_TORCH_NAME_COUNT];

/* A new reference, or NULL with an exception. Steals the reference to `object`. */
static PyObject *attribute_of(PyObject *object, const char *name)
{
    if (!object || !name)
        return object;
    PyObject *value = PyObject_GetAttrString(object, name);
    Py_DECREF(object);
    return value;
}

PyObject *osw_torch(osw_torch_name name)
{
    if (searched[name])
        return found[name];
    const osw_torch_place *place = &places[name];
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace); /* an import must not run with the caller's exception set */
    PyObject *object = attribute_of(PyImport_ImportModule(place->module), place->type);
    object = attribute_of(object, place->attribute);
    PyErr_Restore(kind, value, trace); /* and drops the look-up's own */
    if (searched[name]) {              /* by another thread, while the import let it run */
        Py_XDECREF(object);
        return found[name];
    }
    found[name] = object;
    searched[name] = true;
    return object;
}
