/* SPDX-License-Identifier: MIT */
#include "binding/layer.h"

const char *const osw_layer_roles[] = {"grad_output", "input",      "weight",      "bias",
                                       "output",      "grad_input", "grad_weight", "grad_bias"};

int osw_layer_check_dtypes(const osw_call *call, int model)
{
    const osw_tensor *wanted = &call->tensors[model];
    for (int i = 0; i < ROLE_COUNT; i++)
        if (call->objects[i] && !osw_same_dtype(&call->tensors[i], wanted))
            return osw_fail(call->name, "%s has another dtype than %s, got %d, expected %d",
                            call->roles[i], call->roles[model], (int)call->tensors[i].dtype.bits,
                            (int)wanted->dtype.bits);
    return 0;
}

int osw_layer_gradients(osw_call *call, PyObject *const *wanted, bool input_last, bool weight_last,
                        int bias_ndim)
{
    const osw_tensor *x = &call->tensors[INPUT], *w = &call->tensors[WEIGHT];
    if (wanted[0] == Py_True &&
        osw_call_make(call, GRAD_INPUT, INPUT, OSW_SAME_DTYPE, x->ndim, x->size, input_last) != 0)
        return -1;
    if (wanted[1] == Py_True && osw_call_make(call, GRAD_WEIGHT, WEIGHT, OSW_SAME_DTYPE, w->ndim,
                                              w->size, weight_last) != 0)
        return -1;
    return wanted[2] == Py_True
               ? osw_call_make(call, GRAD_BIAS, WEIGHT, OSW_SAME_DTYPE, bias_ndim, w->size, false)
               : 0;
}

bool osw_layer_gives_channels_last(const osw_tensor *input, const osw_tensor *weight)
{
    return osw_suggests_channels_last(input) || osw_suggests_channels_last(weight);
}

bool osw_layer_is_bias(const osw_tensor *bias, const osw_tensor *weight)
{
    return osw_same_dtype(bias, weight) && bias->ndim == 1 && bias->size[0] == weight->size[0] &&
           (bias->stride[0] == 1 || bias->size[0] <= 1);
}
