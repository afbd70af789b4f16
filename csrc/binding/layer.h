/* SPDX-License-Identifier: MIT */
/* Calls of layers with a weight. */
#ifndef OSW_BINDING_LAYER_H
#define OSW_BINDING_LAYER_H

#include "binding/call.h"
#include "linear/run.h"

/* Each direction reads three tensors, one after another. */
typedef enum osw_layer_role {
    GRAD_OUTPUT,
    INPUT,
    WEIGHT,
    BIAS,
    OUTPUT,
    GRAD_INPUT,
    GRAD_WEIGHT,
    GRAD_BIAS,
    ROLE_COUNT
} osw_layer_role;

extern const char *const osw_layer_roles[];

/* What an entry says of a direction: its tensors, before all other arguments, and its results. */
#define OSW_LAYER_FORWARD                                                                          \
    .roles = osw_layer_roles, .tensors = 3, .needed = 2, .read = {INPUT, WEIGHT, BIAS},            \
    .result = OUTPUT, .results = 1
#define OSW_LAYER_BACKWARD                                                                         \
    .roles = osw_layer_roles, .tensors = 3, .needed = 3, .read = {GRAD_OUTPUT, INPUT, WEIGHT},     \
    .result = GRAD_INPUT, .results = 3, .backward = true

/* That all tensors have the dtype of the one at `model`. */
int osw_layer_check_dtypes(const osw_call *call, int model);

/* Make those of the three gradients whose `wanted` is True: that of the input and that of the
 * weight with their sizes and dtypes, in channels_last if required, and that of the bias with the
 * first `bias_ndim` sizes of the weight and its dtype. */
int osw_layer_gradients(osw_call *call, PyObject *const *wanted, bool input_last, bool weight_last,
                        int bias_ndim);

/* True if torch's convolution of both gives channels_last: one of them is. The strides of a single
 * pixel may belong to either format, as those of an average over the image do. */
bool osw_layer_gives_channels_last(const osw_tensor *input, const osw_tensor *weight);

/* One dense number per output of the weight. */
bool osw_layer_is_bias(const osw_tensor *bias, const osw_tensor *weight);

/* Run a linear map, whose kernels are counted in linear_variants(). */
int osw_layer_run_linear(osw_call *call, osw_linear_job *job);

#endif
