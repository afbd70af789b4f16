/* SPDX-License-Identifier: MIT */
/* Dense convolutions of tensors in channels_last: plain_conv(input, weight, bias, stride, padding,
 * dilation) -> output, and plain_conv_backward(grad_output, input, weight, stride, padding,
 * dilation, want_input, want_weight, want_bias) -> the three gradients, None for those that are not
 * wanted; that of the bias comes with that of the weight only. stride, padding, dilation: an int or
 * a pair of ints. The gradient of the weight lies in memory as the weight. Both return
 * NotImplemented for everything that is not the kernels': other memory formats, sizes or dtypes,
 * what would be an error, calls that torch's dispatcher has to see. conv_variants(): the kernels
 * and how often each was called. */
#include "binding/layer.h"
#include "conv/run.h"

static const int64_t MOST_PRODUCTS = INT64_C(1) << 56;

static uint64_t calls[OSW_CONV_COUNT];

/* An image whose channels are neighbours; steps of dimensions of one element are those of a dense
 * tensor. */
static bool read_image(const osw_tensor *t, osw_conv_image *image)
{
    if (t->ndim != 4 || t->numel == 0 || (t->stride[1] != 1 && t->size[1] > 1))
        return false;
    image->data = t->data;
    image->pixel_step = t->size[3] > 1 ? t->stride[3] : t->size[1];
    image->row_step = t->size[2] > 1 ? t->stride[2] : t->size[3] * image->pixel_step;
    image->image_step = t->size[0] > 1 ? t->stride[0] : t->size[2] * image->row_step;
    return true;
}

/* The pairs are of rows and of columns. */
typedef struct osw_conv_call {
    osw_conv_job job;
    int64_t stride[2], padding[2], dilation[2];
} osw_conv_call;

static int read_window(osw_call *call)
{
    osw_conv_call *window = call->job;
    return osw_plain_eager(true) && osw_exact_sides(call->args[3], 2, true, 1, window->stride) &&
                   osw_exact_sides(call->args[4], 2, true, 0, window->padding) &&
                   osw_exact_sides(call->args[5], 2, true, 1, window->dilation)
               ? 0
               : -1;
}

/* Rows (0) or columns (1) of the tensors. */
static bool read_axis(const osw_tensor *input, const osw_tensor *weight,
                      const osw_conv_call *window, int i, osw_conv_axis *axis)
{
    *axis = (osw_conv_axis){.size = input->size[2 + i],
                            .taps = weight->size[2 + i],
                            .stride = window->stride[i],
                            .padding = window->padding[i],
                            .dilation = window->dilation[i]};
    if (axis->taps > OSW_CONV_MOST_TAPS)
        return false;
    const int64_t room = axis->size + 2 * axis->padding - (axis->taps - 1) * axis->dilation - 1;
    axis->out_size = room >= 0 ? room / axis->stride + 1 : 0;
    return room >= 0;
}

/* Sizes whose products fit: an expanded tensor may have any. */
static bool is_countable(const osw_conv *conv)
{
    const int64_t factors[] = {conv->rows.out_size, conv->columns.out_size, conv->outputs,
                               conv->channels,      conv->rows.taps,        conv->columns.taps};
    int64_t product = conv->batch;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (__builtin_mul_overflow(product, factors[i], &product))
            return false;
    return product <= MOST_PRODUCTS;
}

/* Contiguous, or channels last: [out][r][s][c]. */
static bool is_weight(const osw_tensor *t, bool *channels_last)
{
    *channels_last = osw_suggests_channels_last(t);
    return t->ndim == 4 && t->numel > 0 && (*channels_last ? osw_is_pixels(t) : osw_is_dense(t, 0));
}

static osw_conv_weight weight_of(const osw_tensor *t, bool channels_last)
{
    const int64_t taps = t->size[2] * t->size[3], channels = t->size[1];
    return (osw_conv_weight){.data = t->data,
                             .output = taps * channels,
                             .row = t->size[3] * (channels_last ? channels : 1),
                             .column = channels_last ? channels : 1,
                             .channel = channels_last ? 1 : taps};
}

/* What a dense image of so many pixels and channels, in channels_last, is. */
static osw_conv_output new_image(const osw_tensor *t)
{
    const int64_t row = t->size[3] * t->size[1];
    return (osw_conv_output){t->data, t->size[2] * row, row, t->size[1]};
}

/* The sizes of a call, and where input and weight lie. */
static int describe(osw_call *call)
{
    osw_conv_call *window = call->job;
    osw_conv_job *job = &window->job;
    const osw_tensor *input = &call->tensors[INPUT], *weight = &call->tensors[WEIGHT];
    const osw_dtype dtype = osw_dtype_of(weight);
    osw_conv *conv = &job->conv;
    if ((dtype != OSW_F32 && dtype != OSW_F64) || !osw_same_dtype(input, weight) ||
        !read_image(input, &conv->input) || !is_weight(weight, &job->channels_last) ||
        weight->size[1] != input->size[1])
        return -1;
    conv->batch = input->size[0];
    conv->channels = input->size[1];
    conv->outputs = weight->size[0];
    conv->weight = weight_of(weight, job->channels_last);
    job->element_bytes = weight->itemsize;
    return read_axis(input, weight, window, 0, &conv->rows) &&
                   read_axis(input, weight, window, 1, &conv->columns) && is_countable(conv)
               ? 0
               : -1;
}

/* A kernel of the dtype, counted. */
static osw_conv_fn *kernel_of(const osw_conv_job *job, osw_conv_id f32, osw_conv_id f64)
{
    const osw_conv_id id = job->element_bytes == sizeof(double) ? f64 : f32;
    calls[id]++;
    return osw_conv_table[id];
}

/* Outputs or, if `backward`, the gradient of the input. */
static int run_product(osw_call *call, const osw_conv_job *job, const osw_tensor *output,
                       bool backward)
{
    osw_conv_product product = {
        .conv = job->conv,
        .pack = kernel_of(job, OSW_CONV_pack_f32, OSW_CONV_pack_f64),
        .forward = kernel_of(job, OSW_CONV_forward_f32, OSW_CONV_forward_f64),
        .element_bytes = job->element_bytes,
    };
    const osw_conv *conv = &job->conv;
    product.conv.bias = call->tensors[BIAS].data;
    product.conv.output = new_image(output);
    void *room = osw_call_room(call, osw_conv_product_room(&product));
    if (!room)
        return -1;
    const int64_t products =
        conv->batch * conv->rows.out_size * conv->columns.out_size * osw_conv_weights(conv);
    OSW_RUN(call->name, products > OSW_GRAIN_PRODUCTS,
            (backward ? osw_conv_run_grad_input : osw_conv_run_forward)(&product, room));
    return 0;
}

static int run_grad_weight(osw_call *call, osw_conv_job *job)
{
    job->grad_weight = call->tensors[GRAD_WEIGHT].data;
    job->grad_bias = call->tensors[GRAD_BIAS].data;
    job->kernel = kernel_of(job, OSW_CONV_grad_weight_f32, OSW_CONV_grad_weight_f64);
    const size_t bytes = osw_conv_plan(job);
    char *sums = bytes ? osw_call_room(call, bytes) : NULL;
    if (bytes && !sums)
        return -1;
    OSW_RUN(call->name, job->products > OSW_GRAIN_PRODUCTS, osw_conv_run(job, sums));
    return 0;
}

static int make_output(osw_call *call)
{
    const osw_conv *conv = &((osw_conv_call *)call->job)->job.conv;
    const osw_tensor *t = call->tensors;
    const int64_t size[] = {conv->batch, conv->outputs, conv->rows.out_size,
                            conv->columns.out_size};
    if ((call->objects[BIAS] && !osw_layer_is_bias(&t[BIAS], &t[WEIGHT])) ||
        !osw_layer_gives_channels_last(&t[INPUT], &t[WEIGHT]))
        return -1;
    return osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, 4, size, true);
}

static int run_forward(osw_call *call)
{
    const osw_conv_job *job = &((osw_conv_call *)call->job)->job;
    return run_product(call, job, &call->tensors[OUTPUT], false);
}

OSW_ENTRY_OF(plain_conv, true, (osw_conv_call){0}, .name = "conv2d", OSW_LAYER_FORWARD,
             .arguments = 6, .numbers = read_window, OSW_STEPS(describe, make_output, run_forward))

static int make_gradients(osw_call *call)
{
    osw_conv_job *job = &((osw_conv_call *)call->job)->job;
    const osw_tensor *t = call->tensors, *grad = &t[GRAD_OUTPUT];
    osw_conv *conv = &job->conv;
    const int64_t size[] = {conv->batch, conv->outputs, conv->rows.out_size,
                            conv->columns.out_size};
    const bool of_weight = call->args[7] == Py_True, of_bias = call->args[8] == Py_True;
    if (!osw_same_dtype(grad, &t[WEIGHT]) || !read_image(grad, &conv->grad_output) ||
        !osw_has_size(grad, 4, size) || (of_bias && !of_weight))
        return -1;
    return osw_layer_gradients(call, call->args + 6, true, job->channels_last, 1);
}

static int run_backward(osw_call *call)
{
    osw_conv_job *job = &((osw_conv_call *)call->job)->job;
    if (call->made[GRAD_INPUT] && run_product(call, job, &call->tensors[GRAD_INPUT], true) != 0)
        return -1;
    return call->made[GRAD_WEIGHT] ? run_grad_weight(call, job) : 0;
}

OSW_ENTRY_OF(plain_conv_backward, true, (osw_conv_call){0}, .name = "conv2d_backward",
             OSW_LAYER_BACKWARD, .arguments = 9, .numbers = read_window,
             OSW_STEPS(describe, make_gradients, run_backward))

OSW_ENTRY_COUNTS(conv_variants, calls, OSW_CONV_VARIANTS(OSW_VARIANT_2))

PyMethodDef osw_conv_methods[] = {
    OSW_ENTRY_LINE(
        plain_conv,
        "plain_conv(input, weight, bias, stride, padding, dilation) -> output, or NotImplemented"),
    OSW_ENTRY_LINE(plain_conv_backward,
                   "plain_conv_backward(grad_output, input, weight, stride, padding, dilation, "
                   "want_input, want_weight, want_bias) -> gradients, or NotImplemented"),
    OSW_ENTRY_COUNTS_LINE(conv_variants),
    {NULL, NULL, 0, NULL},
};
