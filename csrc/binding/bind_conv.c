/* SPDX-License-Identifier: MIT */
/* Gradients of dense convolutions of tensors in channels_last: plain_conv_backward(grad_output,
 * input, weight, stride, padding, dilation, wants_bias) -> the gradients of weight and bias, None
 * for the latter if it is not wanted. stride, padding, dilation: an int or a pair of ints. The
 * gradient of the weight lies in memory as the weight. Returns NotImplemented for everything that
 * is not the kernels': other memory formats, sizes or dtypes, what would be an error, calls that
 * torch's dispatcher has to see. conv_variants(): the kernels and how often each was called. */
#include "binding/binding.h"
#include "binding/profile.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "binding/variant_counts.h"
#include "conv/holds.h"
#include "core/isa.h"
#include "core/parallel.h"

#include <assert.h>

/* MIN_COST: products for which the GIL is released, and which a thread has at least. */
enum { MIN_COST = 1 << 17, DL_FLOAT = 2, ARGUMENTS = 7 };

static const int64_t MOST_PRODUCTS = INT64_C(1) << 56;

static uint64_t calls[OSW_CONV_COUNT];

/* Shared by the threads; per part the sums of the weight lie weight_step apart, and those of the
 * bias behind each. */
typedef struct osw_conv_work {
    const osw_conv *conv;
    osw_conv_fn *kernel;
    int64_t output_parts;
    char *weight, *bias;
    int64_t step; /* bytes from one of conv->parts to the next */
} osw_conv_work;

static void run_parts(int64_t begin, int64_t end, void *context)
{
    const osw_conv_work *work = context;
    for (int64_t i = begin; i < end; i++) {
        osw_conv_part part = osw_conv_part_at(work->conv, work->output_parts, i);
        const int64_t offset = i / work->output_parts * work->step;
        part.weight = work->weight + offset;
        part.bias = work->bias ? work->bias + offset : NULL;
        assert(osw_conv_part_holds(work->conv, &part));
        work->kernel(work->conv, &part);
    }
}

/* An int, or a tuple or list of one or two, from `least` on. */
static bool read_pair(PyObject *object, int64_t least, int64_t pair[2])
{
    PyObject *tuple = PyTuple_Check(object) || PyList_Check(object) ? PySequence_Tuple(object)
                                                                    : PyTuple_Pack(1, object);
    const Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0;
    bool fits = count == 1 || count == 2;
    for (Py_ssize_t i = 0; fits && i < 2; i++)
        fits =
            osw_exact_int(PyTuple_GetItem(tuple, count == 2 ? i : 0), least, INT32_MAX, &pair[i]);
    Py_XDECREF(tuple);
    PyErr_Clear();
    return fits;
}

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
    return read_pair(args[0], 1, window->stride) && read_pair(args[1], 0, window->padding) &&
           read_pair(args[2], 1, window->dilation);
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

static bool read_tensors(osw_conv *conv, PyObject *const *args, const osw_window *window,
                         osw_tensor *weight, bool *channels_last)
{
    osw_tensor grad, input;
    if (!osw_tensor_plain(args[0], &grad) || !osw_tensor_plain(args[1], &input) ||
        !osw_tensor_plain(args[2], weight) || !osw_same_dtype(&grad, weight) ||
        !osw_same_dtype(&input, weight) || !read_image(&grad, &conv->grad_output) ||
        !read_image(&input, &conv->input) || !is_weight(weight, channels_last))
        return false;
    conv->batch = input.size[0];
    conv->channels = input.size[1];
    conv->outputs = weight->size[0];
    return weight->dtype.code == DL_FLOAT && weight->dtype.lanes == 1 &&
           (weight->dtype.bits == 32 || weight->dtype.bits == 64) && grad.size[0] == conv->batch &&
           grad.size[1] == conv->outputs && weight->size[1] == conv->channels &&
           read_axis(&grad, &input, weight, window, 0, &conv->rows) &&
           read_axis(&grad, &input, weight, window, 1, &conv->columns) && is_countable(conv);
}

static void run(const osw_conv *conv, osw_conv_work *work)
{
    const int64_t pixels = conv->batch * conv->rows.out_size * conv->columns.out_size;
    const int64_t cost = pixels * osw_conv_weights(conv), count = conv->parts * work->output_parts;
    PyObject *range = osw_profile_begin("conv2d_backward");
    PyThreadState *state = cost > MIN_COST ? PyEval_SaveThread() : NULL;
    assert(osw_conv_holds(conv));
    osw_parallel_for(count, MIN_COST / (cost / count + 1) + 1, run_parts, work);
    if (state)
        PyEval_RestoreThread(state);
    osw_profile_end(range);
}

/* Into the gradients, by way of sums of their own unless the only ones lie as they do. */
static int execute(osw_conv *conv, const osw_tensor *weight, bool channels_last,
                   const osw_tensor *grad_weight, const osw_tensor *grad_bias)
{
    const bool is_double = weight->itemsize == sizeof(double);
    const osw_conv_id id = is_double ? OSW_CONV_grad_weight_f64 : OSW_CONV_grad_weight_f32;
    osw_conv_prepare(conv, weight->itemsize);
    const bool taps_last = !channels_last && weight->size[2] * weight->size[3] > 1;
    const bool direct = conv->parts == 1 && !conv->crossed && !taps_last;
    const int64_t length = osw_conv_weights(conv) + conv->outputs;
    osw_conv_work work = {.conv = conv,
                          .kernel = osw_conv_table[id],
                          .output_parts =
                              osw_conv_output_parts(conv, weight->itemsize, osw_parallel_threads()),
                          .weight = grad_weight->data,
                          .bias = grad_bias->data,
                          .step = length * weight->itemsize};
    char *sums = direct ? NULL : PyMem_Malloc((size_t)(conv->parts * work.step));
    if (!direct && !sums) {
        PyErr_NoMemory();
        return -1;
    }
    if (sums) {
        work.weight = sums;
        work.bias = grad_bias->data ? sums + osw_conv_weights(conv) * weight->itemsize : NULL;
    }
    calls[id]++;
    run(conv, &work);
    if (sums && is_double)
        osw_conv_finish_f64(conv, (double *)(void *)sums, taps_last,
                            (double *)(void *)grad_weight->data, (double *)(void *)grad_bias->data);
    else if (sums)
        osw_conv_finish_f32(conv, (float *)(void *)sums, taps_last,
                            (float *)(void *)grad_weight->data, (float *)(void *)grad_bias->data);
    PyMem_Free(sums);
    return 0;
}

static PyObject *plain_conv_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const char name[] = "conv2d_backward";
    (void)module;
    osw_conv conv = {0};
    osw_window window;
    osw_tensor weight, grad_weight, grad_bias = {.data = NULL};
    bool channels_last;
    if (nargs != ARGUMENTS || !osw_plain_eager(true) || !read_window(args + 3, &window) ||
        !read_tensors(&conv, args, &window, &weight, &channels_last))
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *result = NULL, *bias = NULL;
    PyObject *made =
        osw_tensor_new(args[2], OSW_SAME_DTYPE, name, 4, weight.size, channels_last, &grad_weight);
    if (made && args[6] == Py_True)
        bias = osw_tensor_new(args[2], OSW_SAME_DTYPE, name, 1, weight.size, false, &grad_bias);
    if (made && (bias || args[6] != Py_True) &&
        execute(&conv, &weight, channels_last, &grad_weight, &grad_bias) == 0)
        result = PyTuple_Pack(2, made, bias ? bias : Py_None);
    Py_XDECREF(made);
    Py_XDECREF(bias);
    return osw_or_declined(result);
}

#define NAME(operation, dtype) #operation "_" #dtype,

static PyObject *conv_variants(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {OSW_CONV_VARIANTS(NAME)};
    (void)module, (void)unused;
    return osw_variant_counts(OSW_CONV_COUNT, names, calls);
}

PyMethodDef osw_conv_methods[] = {
    {"plain_conv_backward", OSW_METHOD(plain_conv_backward), METH_FASTCALL,
     "plain_conv_backward(grad_output, input, weight, stride, padding, dilation, wants_bias) -> "
     "gradients of weight and bias, or NotImplemented"},
    {"conv_variants", conv_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
