/* SPDX-License-Identifier: MIT */
/* Gradients of dense convolutions of tensors in channels_last: plain_conv_backward(grad_output,
 * input, weight, stride, padding, dilation, wants_bias) -> the gradients of weight and bias, None
 * for the latter if it is not wanted. stride, padding, dilation: an int or a pair of ints. The
 * gradient of the weight lies in memory as the weight. Returns NotImplemented for everything that
 * is not the kernels': other memory formats, sizes or dtypes, what would be an error, calls that
 * torch's dispatcher has to see. conv_variants(): the kernels and how often each was called. */
#include "binding/layer.h"
#include "conv/run.h"

enum { DL_FLOAT = 2 };

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

/* stride, padding and dilation, of rows and of columns. */
typedef struct osw_window {
    int64_t stride[2], padding[2], dilation[2];
} osw_window;

static bool read_window(PyObject *const *args, osw_window *window)
{
    return osw_exact_sides(args[0], 2, true, 1, window->stride) &&
           osw_exact_sides(args[1], 2, true, 0, window->padding) &&
           osw_exact_sides(args[2], 2, true, 1, window->dilation);
}

/* Rows (0) or columns (1) of the tensors. */
static bool read_axis(const osw_tensor *grad, const osw_tensor *input, const osw_tensor *weight,
                      const osw_window *window, int i, osw_conv_axis *axis)
{
    *axis = (osw_conv_axis){.size = input->size[2 + i],
                            .out_size = grad->size[2 + i],
                            .taps = weight->size[2 + i],
                            .stride = window->stride[i],
                            .padding = window->padding[i],
                            .dilation = window->dilation[i]};
    if (axis->taps > OSW_CONV_MOST_TAPS)
        return false;
    const int64_t room = axis->size + 2 * axis->padding - (axis->taps - 1) * axis->dilation - 1;
    return room >= 0 && axis->out_size == room / axis->stride + 1;
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
    if (t->ndim != 4 || t->numel == 0)
        return false;
    if (!*channels_last)
        return osw_is_dense(t, 0);
    const int64_t stride[] = {t->size[1] * t->size[2] * t->size[3], 1, t->size[1] * t->size[3],
                              t->size[1]};
    bool fits = true;
    for (int i = 0; i < 4; i++)
        fits = fits && (t->size[i] == 1 || t->stride[i] == stride[i]);
    return fits;
}

/* The sizes of a call, and where its tensors lie. */
static bool describe(osw_conv_job *job, const osw_call *call, const osw_window *window)
{
    const osw_tensor *grad = &call->tensors[GRAD_OUTPUT], *input = &call->tensors[INPUT];
    const osw_tensor *weight = &call->tensors[WEIGHT];
    osw_conv *conv = &job->conv;
    if (!osw_same_dtype(grad, weight) || !osw_same_dtype(input, weight) ||
        !read_image(grad, &conv->grad_output) || !read_image(input, &conv->input) ||
        !is_weight(weight, &job->channels_last))
        return false;
    conv->batch = input->size[0];
    conv->channels = input->size[1];
    conv->outputs = weight->size[0];
    job->element_bytes = weight->itemsize;
    return weight->dtype.code == DL_FLOAT && weight->dtype.lanes == 1 &&
           (weight->dtype.bits == 32 || weight->dtype.bits == 64) && grad->size[0] == conv->batch &&
           grad->size[1] == conv->outputs && weight->size[1] == conv->channels &&
           read_axis(grad, input, weight, window, 0, &conv->rows) &&
           read_axis(grad, input, weight, window, 1, &conv->columns) && is_countable(conv);
}

static int execute(osw_call *call, osw_conv_job *job, PyObject *wants_bias)
{
    PyObject *const wanted[] = {NULL, Py_True, wants_bias};
    if (osw_layer_gradients(call, wanted, false, job->channels_last, 1) != 0)
        return -1;
    job->grad_weight = call->tensors[GRAD_WEIGHT].data;
    job->grad_bias = call->tensors[GRAD_BIAS].data;
    const osw_conv_id id =
        job->element_bytes == sizeof(double) ? OSW_CONV_grad_weight_f64 : OSW_CONV_grad_weight_f32;
    const size_t bytes = osw_conv_plan(job);
    char *sums = bytes ? osw_room(bytes) : NULL;
    if (bytes && !sums)
        return -1;
    calls[id]++;
    job->kernel = osw_conv_table[id];
    const osw_running running = osw_run_begin(call->name, job->products > OSW_GRAIN_PRODUCTS);
    osw_conv_run(job, sums);
    osw_run_end(running);
    PyMem_Free(sums);
    return 0;
}

OSW_ENTRY(plain_conv_backward)
{
    osw_call call = {.name = "conv2d_backward", .plain = true};
    osw_conv_job job = {.kernel = NULL};
    osw_window window;
    const bool done = nargs == 7 && osw_plain_eager(true) && read_window(args + 3, &window) &&
                      osw_call_tensors(&call, GRAD_OUTPUT, 3, args) == 0 &&
                      describe(&job, &call, &window) && execute(&call, &job, args[6]) == 0;
    return osw_or_declined(
        osw_call_end(&call, done ? osw_call_tuple(&call, GRAD_WEIGHT, 2) : NULL));
}

OSW_ENTRY_COUNTS(conv_variants, calls, OSW_CONV_VARIANTS(OSW_VARIANT_2))

PyMethodDef osw_conv_methods[] = {
    OSW_ENTRY_LINE(
        plain_conv_backward,
        "plain_conv_backward(grad_output, input, weight, stride, padding, dilation, wants_bias) -> "
        "gradients of weight and bias, or NotImplemented"),
    OSW_ENTRY_COUNTS_LINE(conv_variants),
    {NULL, NULL, 0, NULL},
};
