/* SPDX-License-Identifier: MIT */
/* Convolutions with a 1 x 1 kernel of tensors in channels_last, which are one linear map of rows of
 * channels, with a stride of every second, third, ... pixel:
 * plain_pointwise(input, weight, bias, stride) -> output and plain_pointwise_backward(grad_output,
 * input, weight, stride, want_input, want_weight, want_bias) -> the three gradients, None for those
 * that are not wanted. stride: an int or a pair of ints, as torch takes them. Both return
 * NotImplemented for everything that is not theirs: other memory formats, sizes or dtypes, what
 * would be an error, calls that torch's dispatcher has to see, tiers on which the convolution
 * library has wider vectors. */
#include "binding/layer.h"
#include "core/isa.h"

typedef struct osw_pointwise_call {
    osw_linear_job job;
    int64_t stride[2];
    int64_t first[2]; /* of the outputs, and of those behind them */
} osw_pointwise_call;

/* The pixels of a tensor (N, C, H, W) as rows of a matrix; false if they are not. */
static bool pixels(const osw_tensor *t, osw_linear_rows *rows, int64_t *count)
{
    if (t->ndim != 4 || t->numel == 0 || (t->stride[1] != 1 && t->size[1] > 1))
        return false;
    osw_tensor outer = {.ndim = 3};
    for (int i = 0; i < 3; i++) {
        outer.size[i] = t->size[i == 0 ? 0 : i + 1];
        outer.stride[i] = t->stride[i == 0 ? 0 : i + 1];
    }
    int64_t step;
    if (!osw_flatten(&outer, 0, count, &step))
        return false;
    *rows = (osw_linear_rows){t->data, *count > 1 ? step : t->size[1], 0};
    return true;
}

/* The pixels of the input that the windows lie on; `job` also gets where their gradients lie. */
static bool windows(const osw_tensor *t, const int64_t stride[2], osw_linear *l)
{
    if (stride[0] == 1 && stride[1] == 1 && pixels(t, &l->input, &l->rows))
        return true;
    if (t->ndim != 4 || t->numel == 0 || (t->stride[1] != 1 && t->size[1] > 1))
        return false;
    const int64_t channels = t->size[1], height = t->size[2], width = t->size[3];
    l->lines.count = (height - 1) / stride[0] + 1;
    l->lines.rows = (width - 1) / stride[1] + 1;
    l->rows = t->size[0] * l->lines.count * l->lines.rows;
    l->input = (osw_linear_rows){t->data, t->stride[3] * stride[1], 0};
    l->input_steps = (osw_linear_steps){t->stride[2] * stride[0], t->stride[0]};
    l->grad_input = (osw_linear_rows){NULL, channels * stride[1], 0};
    l->grad_input_steps =
        (osw_linear_steps){width * channels * stride[0], height * width * channels};
    return true;
}

/* (out, in, 1, 1), in this order in memory. */
static bool is_weight(const osw_tensor *t)
{
    return t->ndim == 4 && t->numel > 0 && t->size[2] == 1 && t->size[3] == 1 &&
           (osw_dtype_of(t) == OSW_F32 || osw_dtype_of(t) == OSW_F64) && osw_is_dense(t, 0);
}

static int read_stride(osw_call *call)
{
    osw_pointwise_call *pointwise = call->job;
    return osw_linear_leads(osw_isa_current()) && osw_plain_eager(true) &&
                   osw_exact_sides(call->args[3], 2, true, 1, pointwise->stride)
               ? 0
               : -1;
}

/* Input and weight, described in the job. */
static int describe(osw_call *call)
{
    osw_pointwise_call *pointwise = call->job;
    const osw_tensor *input = &call->tensors[INPUT], *weight = &call->tensors[WEIGHT];
    osw_linear *linear = &pointwise->job.linear;
    if (!is_weight(weight) || !osw_same_dtype(input, weight) ||
        !osw_layer_gives_channels_last(input, weight) ||
        !windows(input, pointwise->stride, linear) || input->size[1] != weight->size[1])
        return -1;
    pointwise->first[1] = weight->size[0];
    pointwise->job.dtype = osw_dtype_of(weight);
    linear->first = pointwise->first;
    linear->groups = 1;
    linear->in_features = weight->size[1];
    linear->weight = weight->data;
    return 0;
}

static int make_output(osw_call *call)
{
    osw_linear *linear = &((osw_pointwise_call *)call->job)->job.linear;
    const osw_tensor *t = call->tensors;
    const bool strides = linear->lines.rows != 0;
    const int64_t size[] = {t[INPUT].size[0], t[WEIGHT].size[0],
                            strides ? linear->lines.count : t[INPUT].size[2],
                            strides ? linear->lines.rows : t[INPUT].size[3]};
    if (call->objects[BIAS] && !osw_layer_is_bias(&t[BIAS], &t[WEIGHT]))
        return -1;
    if (osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, 4, size, true) != 0)
        return -1;
    linear->bias = t[BIAS].data;
    linear->output = (osw_linear_rows){t[OUTPUT].data, size[1], 0};
    return 0;
}

static int make_gradients(osw_call *call)
{
    osw_linear *linear = &((osw_pointwise_call *)call->job)->job.linear;
    const osw_tensor *t = call->tensors, *grad = &t[GRAD_OUTPUT], *input = &t[INPUT];
    int64_t rows;
    if (!osw_same_dtype(grad, input) || !pixels(grad, &linear->grad_output, &rows) ||
        rows != linear->rows || grad->size[0] != input->size[0] ||
        grad->size[2] != (linear->lines.rows ? linear->lines.count : input->size[2]) ||
        grad->size[1] != linear->first[1] ||
        osw_layer_gradients(call, call->args + 4, true, osw_suggests_channels_last(&t[WEIGHT]),
                            1) != 0)
        return -1;
    linear->grad_input.base = t[GRAD_INPUT].data;
    if (!linear->lines.rows)
        linear->grad_input.row_step = input->size[1];
    linear->grad_weight = t[GRAD_WEIGHT].data;
    linear->grad_bias = t[GRAD_BIAS].data;
    return 0;
}

static int run(osw_call *call)
{
    return osw_layer_run_linear(call, &((osw_pointwise_call *)call->job)->job);
}

OSW_ENTRY_OF(plain_pointwise, true, (osw_pointwise_call){0}, .name = "pointwise_conv2d",
             OSW_LAYER_FORWARD, .arguments = 4, .numbers = read_stride,
             OSW_STEPS(describe, make_output, run))

OSW_ENTRY_OF(plain_pointwise_backward, true, (osw_pointwise_call){0},
             .name = "pointwise_conv2d_backward", OSW_LAYER_BACKWARD, .arguments = 7,
             .numbers = read_stride, OSW_STEPS(describe, make_gradients, run))

PyMethodDef osw_pointwise_methods[] = {
    OSW_ENTRY_LINE(plain_pointwise,
                   "plain_pointwise(input, weight, bias, stride) -> output, or NotImplemented"),
    OSW_ENTRY_LINE(plain_pointwise_backward,
                   "plain_pointwise_backward(grad_output, input, weight, stride, want_input, "
                   "want_weight, want_bias) -> gradients, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
