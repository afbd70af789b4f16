/* SPDX-License-Identifier: MIT */
/* Convolutions with a 1 x 1 kernel: of tensors in channels_last, which are one linear map of rows
 * of channels, with a stride of every second, third, ... pixel; of contiguous tensors, which are
 * maps of planes, without a stride: plain_pointwise(input, weight, bias, stride) -> output and
 * plain_pointwise_backward(grad_output, input, weight, stride, want_input, want_weight, want_bias)
 * -> the three gradients, None for those that are not wanted. stride: an int or a pair of ints, as
 * torch takes them. Both return NotImplemented for everything that is not theirs: other memory
 * formats, sizes or dtypes, what would be an error, calls that torch's dispatcher has to see, tiers
 * on which the convolution library has wider vectors. pointwise_variants(): the kernels of planes
 * and how often each was called. */
#include "binding/layer.h"
#include "core/isa.h"
#include "pointwise/run.h"

static uint64_t calls[OSW_POINTWISE_COUNT];

typedef struct osw_pointwise_call {
    osw_linear_job job;
    osw_pointwise_job planes;
    bool is_planes;     /* which of the two */
    bool channels_last; /* the output, and the gradient of the input */
    int64_t stride[2];
    int64_t first[2]; /* of the outputs, and of those behind them */
} osw_pointwise_call;

/* Pixels of a line that the windows lie on. */
static int64_t outputs(int64_t side, int64_t stride)
{
    return (side - 1) / stride + 1;
}

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

/* The planes of a tensor (N, C, H, W); false if their pixels do not lie one after another. */
static bool planes_of(const osw_tensor *t, osw_pointwise_images *images, int64_t *count)
{
    int64_t step;
    if (t->ndim != 4 || t->numel == 0 || !osw_flatten(t, 2, count, &step) ||
        (*count > 1 && step != 1))
        return false;
    *images = (osw_pointwise_images){t->data, t->stride[0], t->stride[1]};
    return true;
}

/* The pixels of planes, of an input whose output will be in channels_last. */
static bool pixels_of_planes(const osw_tensor *t, osw_linear *l)
{
    osw_pointwise_images images;
    const int64_t channels = t->size[1];
    int64_t count;
    if (!planes_of(t, &images, &count))
        return false;
    l->lines = (osw_linear_lines){count, 1};
    l->rows = t->size[0] * count;
    l->input = (osw_linear_rows){t->data, 1, 0};
    l->planes = true;
    l->plane_step = images.plane_step;
    l->input_steps = (osw_linear_steps){0, images.image_step};
    l->grad_input = (osw_linear_rows){NULL, channels, 0};
    l->grad_input_steps = (osw_linear_steps){count * channels, count * channels};
    return true;
}

/* The pixels of the input that the windows lie on; `job` also gets where their gradients lie. */
static bool windows(const osw_tensor *t, const int64_t stride[2], osw_linear *l)
{
    const bool dense = stride[0] == 1 && stride[1] == 1;
    if (dense && (pixels(t, &l->input, &l->rows) || pixels_of_planes(t, l)))
        return true;
    if (t->ndim != 4 || t->numel == 0 || (t->stride[1] != 1 && t->size[1] > 1))
        return false;
    const int64_t channels = t->size[1], height = t->size[2], width = t->size[3];
    l->lines = (osw_linear_lines){outputs(width, stride[1]), outputs(height, stride[0])};
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

static int describe_planes(osw_pointwise_call *pointwise, const osw_tensor *input,
                           const osw_tensor *weight)
{
    osw_pointwise *planes = &pointwise->planes.planes;
    if (pointwise->stride[0] != 1 || pointwise->stride[1] != 1 ||
        !planes_of(input, &planes->input, &planes->pixels))
        return -1;
    pointwise->is_planes = true;
    pointwise->planes.dtype = osw_dtype_of(weight);
    planes->images = input->size[0];
    planes->in_planes = weight->size[1];
    planes->out_planes = weight->size[0];
    planes->weight = weight->data;
    return 0;
}

/* Input and weight, described in a job. */
static int describe(osw_call *call)
{
    osw_pointwise_call *pointwise = call->job;
    const osw_tensor *input = &call->tensors[INPUT], *weight = &call->tensors[WEIGHT];
    osw_linear *linear = &pointwise->job.linear;
    if (!is_weight(weight) || !osw_same_dtype(input, weight) || input->ndim != 4 ||
        input->size[1] != weight->size[1])
        return -1;
    pointwise->channels_last = osw_layer_gives_channels_last(input, weight);
    if (!pointwise->channels_last && (input->size[2] != 1 || input->size[3] != 1))
        return describe_planes(pointwise, input, weight);
    /* An image of one pixel is a row in either format. */
    if (!windows(input, pointwise->stride, linear))
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
    osw_pointwise_call *pointwise = call->job;
    osw_linear *linear = &pointwise->job.linear;
    const osw_tensor *t = call->tensors;
    const int64_t *stride = pointwise->stride;
    const int64_t size[] = {t[INPUT].size[0], t[WEIGHT].size[0],
                            outputs(t[INPUT].size[2], stride[0]),
                            outputs(t[INPUT].size[3], stride[1])};
    if (call->objects[BIAS] && !osw_layer_is_bias(&t[BIAS], &t[WEIGHT]))
        return -1;
    if (osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, 4, size, pointwise->channels_last) != 0)
        return -1;
    if (pointwise->is_planes) {
        pointwise->planes.planes.bias = t[BIAS].data;
        planes_of(&t[OUTPUT], &pointwise->planes.planes.output, &pointwise->planes.planes.pixels);
        return 0;
    }
    linear->bias = t[BIAS].data;
    linear->output = (osw_linear_rows){t[OUTPUT].data, size[1], 0};
    return 0;
}

static int make_plane_gradients(osw_call *call, osw_pointwise *planes)
{
    const osw_tensor *t = call->tensors, *grad = &t[GRAD_OUTPUT], *input = &t[INPUT];
    int64_t pixels;
    if (!osw_same_dtype(grad, input) || !planes_of(grad, &planes->grad_output, &pixels) ||
        grad->size[0] != input->size[0] || grad->size[1] != planes->out_planes ||
        grad->size[2] != input->size[2] || grad->size[3] != input->size[3] ||
        osw_layer_gradients(call, call->args + 4, false, false, 1) != 0)
        return -1;
    if (t[GRAD_INPUT].data)
        planes_of(&t[GRAD_INPUT], &planes->grad_input, &pixels);
    planes->grad_weight = t[GRAD_WEIGHT].data;
    planes->grad_bias = t[GRAD_BIAS].data;
    return 0;
}

static int make_gradients(osw_call *call)
{
    osw_pointwise_call *pointwise = call->job;
    osw_linear *linear = &pointwise->job.linear;
    const osw_tensor *t = call->tensors, *grad = &t[GRAD_OUTPUT], *input = &t[INPUT];
    int64_t rows;
    if (pointwise->is_planes)
        return make_plane_gradients(call, &pointwise->planes.planes);
    if (!osw_same_dtype(grad, input) || !pixels(grad, &linear->grad_output, &rows) ||
        rows != linear->rows || grad->size[0] != input->size[0] ||
        grad->size[2] != outputs(input->size[2], pointwise->stride[0]) ||
        grad->size[1] != linear->first[1] ||
        osw_layer_gradients(call, call->args + 4, pointwise->channels_last,
                            osw_suggests_channels_last(&t[WEIGHT]), 1) != 0)
        return -1;
    linear->grad_input.base = t[GRAD_INPUT].data;
    if (!linear->lines.rows)
        linear->grad_input.row_step = input->size[1];
    linear->grad_weight = t[GRAD_WEIGHT].data;
    linear->grad_bias = t[GRAD_BIAS].data;
    return 0;
}

static int run_planes(osw_call *call, osw_pointwise_job *job)
{
    char *parts = osw_call_room(call, osw_pointwise_plan(job, calls));
    if (!parts)
        return -1;
    OSW_RUN(call->name, job->cost > OSW_GRAIN_PRODUCTS, osw_pointwise_run(job, parts));
    return 0;
}

static int run(osw_call *call)
{
    osw_pointwise_call *pointwise = call->job;
    return pointwise->is_planes ? run_planes(call, &pointwise->planes)
                                : osw_layer_run_linear(call, &pointwise->job);
}

OSW_ENTRY_OF(plain_pointwise, true, (osw_pointwise_call){0}, .name = "pointwise_conv2d",
             OSW_LAYER_FORWARD, .arguments = 4, .numbers = read_stride,
             OSW_STEPS(describe, make_output, run))

OSW_ENTRY_OF(plain_pointwise_backward, true, (osw_pointwise_call){0},
             .name = "pointwise_conv2d_backward", OSW_LAYER_BACKWARD, .arguments = 7,
             .numbers = read_stride, OSW_STEPS(describe, make_gradients, run))

OSW_ENTRY_COUNTS(pointwise_variants, calls, OSW_POINTWISE_VARIANTS(OSW_VARIANT_2))

PyMethodDef osw_pointwise_methods[] = {
    OSW_ENTRY_LINE(plain_pointwise,
                   "plain_pointwise(input, weight, bias, stride) -> output, or NotImplemented"),
    OSW_ENTRY_LINE(plain_pointwise_backward,
                   "plain_pointwise_backward(grad_output, input, weight, stride, want_input, "
                   "want_weight, want_bias) -> gradients, or NotImplemented"),
    OSW_ENTRY_COUNTS_LINE(pointwise_variants),
    {NULL, NULL, 0, NULL},
};
