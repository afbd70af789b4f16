/* SPDX-License-Identifier: MIT */
/* Convolutions with a 1 x 1 kernel of tensors in channels_last, which are one linear map of rows of
 * channels: plain_pointwise(input, weight, bias) -> output and
 * plain_pointwise_backward(grad_output, input, weight, want_input, want_weight, want_bias) -> the
 * three gradients, None for those that are not wanted. Both return NotImplemented for everything
 * that is not theirs: other memory formats, sizes or dtypes, what would be an error, calls that
 * torch's dispatcher has to see, tiers on which the convolution library has wider vectors. */
#include "binding/binding.h"
#include "binding/linear_run.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "core/isa.h"

enum { DL_FLOAT = 2 };

/* The pixels of a tensor (N, C, H, W) as rows of a matrix; false where they are none. */
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

/* (out, in, 1, 1), in this order in memory. */
static bool is_weight(const osw_tensor *t)
{
    return t->ndim == 4 && t->numel > 0 && t->size[2] == 1 && t->size[3] == 1 &&
           t->dtype.code == DL_FLOAT && t->dtype.lanes == 1 &&
           (t->dtype.bits == 32 || t->dtype.bits == 64) && osw_is_dense(t, 0);
}

static osw_linear_dtype dtype_of(const osw_tensor *weight)
{
    return weight->dtype.bits == 64 ? OSW_LINEAR_f64 : OSW_LINEAR_f32;
}

/* True if torch's output is in channels_last. The strides of a single pixel may belong to either
 * format, as those of an average over the image do; then the weight decides. */
static bool gives_channels_last(const osw_tensor *input, const osw_tensor *weight)
{
    const bool pixel = input->ndim == 4 && input->size[2] == 1 && input->size[3] == 1;
    return osw_suggests_channels_last(input) || (pixel && osw_suggests_channels_last(weight));
}

/* A call with this input; first: room for two numbers. */
static bool describe(osw_linear *linear, int64_t *first, const osw_tensor *input,
                     const osw_tensor *weight)
{
    if (!is_weight(weight) || !osw_same_dtype(input, weight) ||
        !gives_channels_last(input, weight) || !pixels(input, &linear->input, &linear->rows) ||
        input->size[1] != weight->size[1])
        return false;
    first[0] = 0;
    first[1] = weight->size[0];
    linear->first = first;
    linear->groups = 1;
    linear->in_features = weight->size[1];
    linear->weight = weight->data;
    return true;
}

/* A new tensor in channels_last with the sizes of `like`, but for its channels. */
static PyObject *new_image(PyObject *object, const osw_tensor *like, int64_t channels,
                           osw_linear_rows *rows)
{
    const int64_t size[4] = {like->size[0], channels, like->size[2], like->size[3]};
    osw_tensor made;
    PyObject *tensor =
        osw_tensor_new(object, OSW_SAME_DTYPE, "pointwise_conv2d", 4, size, true, &made);
    if (tensor)
        *rows = (osw_linear_rows){made.data, channels, 0};
    return tensor;
}

static bool is_ours(Py_ssize_t nargs, Py_ssize_t expected)
{
    return nargs == expected && osw_linear_leads(osw_isa_current()) && osw_plain_eager(true);
}

static PyObject *plain_pointwise(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_tensor input, weight, bias = {.data = NULL};
    osw_linear linear = {0};
    int64_t first[2];
    if (!is_ours(nargs, 3) || !osw_tensor_plain(args[0], &input) ||
        !osw_tensor_plain(args[1], &weight) || !describe(&linear, first, &input, &weight))
        Py_RETURN_NOTIMPLEMENTED;
    if (args[2] != Py_None) {
        if (!osw_tensor_plain(args[2], &bias) || !osw_same_dtype(&bias, &weight) ||
            bias.ndim != 1 || bias.size[0] != first[1] || (bias.stride[0] != 1 && first[1] > 1))
            Py_RETURN_NOTIMPLEMENTED;
        linear.bias = bias.data;
    }
    PyObject *output = new_image(args[0], &input, first[1], &linear.output);
    if (output && osw_linear_run("pointwise_conv2d", &linear, dtype_of(&weight)) != 0)
        Py_CLEAR(output);
    return osw_or_declined(output);
}

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

/* New gradients where they are wanted, None elsewhere; false with an exception. */
static bool make_gradients(osw_linear *linear, PyObject *const *args, const osw_tensor *input,
                           const osw_tensor *weight, PyObject **made)
{
    static const char name[] = "pointwise_conv2d";
    osw_tensor t;
    made[0] = args[3] == Py_True ? new_image(args[1], input, input->size[1], &linear->grad_input)
                                 : none();
    if (!made[0])
        return false;
    made[1] = args[4] == Py_True ? osw_tensor_new(args[2], OSW_SAME_DTYPE, name, 4, weight->size,
                                                  osw_suggests_channels_last(weight), &t)
                                 : none();
    if (!made[1])
        return false;
    linear->grad_weight = args[4] == Py_True ? t.data : NULL;
    made[2] = args[5] == Py_True
                  ? osw_tensor_new(args[2], OSW_SAME_DTYPE, name, 1, weight->size, false, &t)
                  : none();
    linear->grad_bias = args[5] == Py_True && made[2] ? t.data : NULL;
    return made[2] != NULL;
}

static PyObject *plain_pointwise_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_tensor grad, input, weight;
    osw_linear linear = {0};
    int64_t first[2], rows;
    if (!is_ours(nargs, 6) || !osw_tensor_plain(args[0], &grad) ||
        !osw_tensor_plain(args[1], &input) || !osw_tensor_plain(args[2], &weight) ||
        !describe(&linear, first, &input, &weight) || !osw_same_dtype(&grad, &weight) ||
        !pixels(&grad, &linear.grad_output, &rows) || rows != linear.rows ||
        grad.size[0] != input.size[0] || grad.size[2] != input.size[2] || grad.size[1] != first[1])
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *made[3] = {NULL}, *result = NULL;
    if (make_gradients(&linear, args, &input, &weight, made) &&
        osw_linear_run("pointwise_conv2d_backward", &linear, dtype_of(&weight)) == 0)
        result = PyTuple_Pack(3, made[0], made[1], made[2]);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(made[i]);
    return osw_or_declined(result);
}

PyMethodDef osw_pointwise_methods[] = {
    {"plain_pointwise", OSW_METHOD(plain_pointwise), METH_FASTCALL,
     "plain_pointwise(input, weight, bias) -> output, or NotImplemented"},
    {"plain_pointwise_backward", OSW_METHOD(plain_pointwise_backward), METH_FASTCALL,
     "plain_pointwise_backward(grad_output, input, weight, want_input, want_weight, want_bias) -> "
     "gradients, or NotImplemented"},
    {NULL, NULL, 0, NULL},
};
