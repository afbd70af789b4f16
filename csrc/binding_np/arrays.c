/* SPDX-License-Identifier: MIT */
/* examine(arrays), fill(arrays, batch, dtype, channels_last, padding, scale, mean, std),
 * huge_pages(batch) */
#include "binding_np/arrays.h"
#include "batch/run.h"
#include "binding_np/pages.h"
#include "core/prefetch.h"

#include <numpy/arrayobject.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The dtypes by osw_batch_dtype: the caller's name, and what the elements are for NumPy. */
static const struct {
    const char *name;
    int type;
} dtypes[OSW_BATCH_DTYPES] = {{"uint8", NPY_UINT8},     {"uint16", NPY_UINT16},
                              {"float16", NPY_FLOAT16}, {"bfloat16", NPY_UINT16},
                              {"float32", NPY_FLOAT32}, {"float64", NPY_FLOAT64}};

/* Sizes of all images of a call. */
typedef struct osw_images {
    osw_batch_dtype dtype;
    int64_t channels;
    int64_t count;
    osw_batch_image *each;
} osw_images;

int osw_numpy_start(void)
{
    import_array1(-1);
    return 0;
}

/* Sets an exception, as PyErr_Format does. Returns -1. */
static int fail(PyObject *error, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyErr_FormatV(error, format, values);
    va_end(values);
    return -1;
}

/* An error about image `index` with the value of one of its attributes. */
static int refuse(PyObject *error, Py_ssize_t index, PyArrayObject *array, const char *attribute,
                  const char *format)
{
    PyObject *value = PyObject_GetAttrString((PyObject *)array, attribute);
    if (value)
        PyErr_Format(error, format, index, value);
    Py_XDECREF(value);
    return -1;
}

static int refuse_class(PyObject *object, Py_ssize_t index, bool masked)
{
    PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
    if (name)
        PyErr_Format(PyExc_TypeError, "batch_images: image %zd is a %S, %s", index, name,
                     masked ? "whose mask would be lost; pass filled()"
                            : "expected a NumPy array (h, w, c) or (h, w)");
    Py_XDECREF(name);
    return -1;
}

static osw_batch_dtype dtype_of_image(PyArrayObject *array)
{
    const int type = PyArray_TYPE(array);
    for (osw_batch_dtype dtype = 0; dtype < OSW_BATCH_DTYPES; dtype++)
        if (dtype != OSW_BATCH_BF16 && dtypes[dtype].type == type && PyArray_ISNOTSWAPPED(array))
            return dtype;
    return OSW_BATCH_DTYPES;
}

static int read_image(PyObject *object, Py_ssize_t index, osw_images *images)
{
    if (!PyArray_CheckExact(object)) {
        const bool masked = PyObject_HasAttrString(object, "mask");
        if (!PyArray_Check(object) || masked)
            return refuse_class(object, index, masked);
    }
    PyArrayObject *array = (PyArrayObject *)object;
    const osw_batch_dtype dtype = dtype_of_image(array);
    if (dtype == OSW_BATCH_DTYPES)
        return refuse(PyExc_TypeError, index, array, "dtype",
                      "batch_images: image %zd is %S, expected uint8, uint16, float16, float32 or "
                      "float64 in the machine's byte order");
    const int ndim = PyArray_NDIM(array);
    const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
    if ((ndim != 2 && ndim != 3) || PyArray_SIZE(array) == 0)
        return refuse(PyExc_ValueError, index, array, "shape",
                      "batch_images: image %zd has the shape %R, expected (h, w, c) or (h, w) "
                      "with pixels");
    const int64_t channels = ndim == 3 ? shape[2] : 1;
    if (index == 0) {
        images->dtype = dtype;
        images->channels = channels;
    }
    if (dtype != images->dtype)
        return fail(PyExc_TypeError, "batch_images: image %zd is %s, image 0 is %s", index,
                    dtypes[dtype].name, dtypes[images->dtype].name);
    if (channels != images->channels)
        return fail(PyExc_ValueError, "batch_images: image %zd has %lld channels, image 0 has %lld",
                    index, (long long)channels, (long long)images->channels);
    images->each[index] = (osw_batch_image){
        PyArray_BYTES(array),
        shape[0],
        shape[1],
        strides[0],
        strides[1],
        ndim == 3 ? strides[2] : 0,
        PyArray_ISALIGNED(array),
    };
    return 0;
}

/* The images of a tuple; `each` is to be freed. -1 with TypeError or ValueError. */
static int read_images(PyObject *tuple, osw_images *images)
{
    if (!PyTuple_Check(tuple))
        return fail(PyExc_TypeError, "batch_images: expected a tuple of images, got %R", tuple);
    images->count = PyTuple_Size(tuple);
    if (images->count == 0)
        return fail(PyExc_ValueError, "batch_images: there are no images");
    images->each = malloc((size_t)images->count * sizeof *images->each);
    if (!images->each) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < images->count; i++)
        if (read_image(PyTuple_GetItem(tuple, i), i, images) != 0) {
            free(images->each);
            return -1;
        }
    return 0;
}

/* (dtype, channels, ((height, width), ...)) */
static PyObject *examine(PyObject *module, PyObject *tuple)
{
    (void)module;
    osw_images images;
    if (read_images(tuple, &images) != 0)
        return NULL;
    PyObject *sizes = PyTuple_New((Py_ssize_t)images.count);
    for (Py_ssize_t i = 0; sizes && i < images.count; i++) {
        PyObject *size = Py_BuildValue("(LL)", (long long)images.each[i].height,
                                       (long long)images.each[i].width);
        if (!size || PyTuple_SetItem(sizes, i, size) != 0)
            Py_CLEAR(sizes);
    }
    free(images.each);
    if (!sizes)
        return NULL;
    return Py_BuildValue("(sLN)", dtypes[images.dtype].name, (long long)images.channels, sizes);
}

/* The first and one past the last byte of an image's elements. */
static void extent(const osw_batch_image *image, int64_t channels, int64_t itemsize,
                   const char **low, const char **high)
{
    const int64_t spans[] = {(image->height - 1) * image->row_stride,
                             (image->width - 1) * image->pixel_stride,
                             (channels - 1) * image->channel_stride};
    *low = *high = image->data;
    for (int i = 0; i < 3; i++)
        *(spans[i] < 0 ? low : high) += spans[i];
    *high += itemsize;
}

/* That every image fits into the batch and lies elsewhere. */
static int check_images(const osw_images *images, const osw_batch_job *job)
{
    const int64_t bytes = job->count * job->channels * job->height * job->width;
    const char *end = job->batch + bytes * osw_batch_itemsize(job->to);
    for (int64_t i = 0; i < images->count; i++) {
        const osw_batch_image *image = &images->each[i];
        if (image->height > job->height || image->width > job->width)
            return fail(PyExc_ValueError,
                        "batch_images: image %lld of %lld x %lld pixels is larger than the batch "
                        "of %lld x %lld",
                        (long long)i, (long long)image->height, (long long)image->width,
                        (long long)job->height, (long long)job->width);
        const char *low, *high;
        extent(image, images->channels, osw_batch_itemsize(images->dtype), &low, &high);
        if (low < end && job->batch < high)
            return fail(PyExc_ValueError, "batch_images: out shares memory with image %lld",
                        (long long)i);
    }
    return 0;
}

/* The data of an array that is aligned, in C order, of `count` elements of a type, and, if asked,
 * writeable; NULL with a TypeError. */
static void *plain_array(const char *what, PyObject *object, int type, int64_t count, bool write)
{
    PyArrayObject *array = PyArray_Check(object) ? (PyArrayObject *)object : NULL;
    if (array && PyArray_TYPE(array) == type && PyArray_ISNOTSWAPPED(array) &&
        PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISALIGNED(array) &&
        (count < 0 || PyArray_SIZE(array) == count) && (!write || PyArray_ISWRITEABLE(array)))
        return PyArray_DATA(array);
    return PyErr_Format(PyExc_TypeError, "batch_images: %s is not the array that it should be",
                        what);
}

/* The batch and what is written into it. -1 with TypeError or ValueError. */
static int read_batch(osw_batch_job *job, PyObject *batch, const char *dtype, PyObject *padding,
                      PyObject *mean, PyObject *std)
{
    while (job->to < OSW_BATCH_F64 && strcmp(dtypes[job->to].name, dtype) != 0)
        job->to++;
    if (job->to == OSW_BATCH_F64)
        return fail(PyExc_TypeError, "batch_images: a batch cannot be %s", dtype);
    const int type = dtypes[job->to].type;
    job->batch = plain_array("out", batch, type, -1, true);
    job->padding = plain_array("padding", padding, type, job->channels, false);
    job->mean = plain_array("mean", mean, NPY_FLOAT32, job->channels, false);
    job->std = plain_array("std", std, NPY_FLOAT32, job->channels, false);
    if (!job->batch || !job->padding || !job->mean || !job->std)
        return -1;
    PyArrayObject *array = (PyArrayObject *)batch;
    const npy_intp *shape = PyArray_DIMS(array);
    const int rows = job->planes ? 2 : 1, channels = job->planes ? 1 : 3;
    if (PyArray_NDIM(array) != 4 || shape[0] != job->count || shape[channels] != job->channels)
        return fail(PyExc_ValueError,
                    "batch_images: out does not hold %lld images of %lld channels",
                    (long long)job->count, (long long)job->channels);
    job->height = shape[rows];
    job->width = shape[rows + 1];
    if (!job->move && job->to != OSW_BATCH_F32 && job->to != OSW_BATCH_BF16 &&
        job->to != OSW_BATCH_F16)
        return fail(PyExc_TypeError, "batch_images: %s images cannot become %s",
                    dtypes[job->from].name, dtype);
    return 0;
}

static PyObject *fill(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tuple, *batch, *padding, *scale, *mean, *std;
    const char *dtype;
    int channels_last;
    if (!PyArg_ParseTuple(args, "O!OspOOOO:fill", &PyTuple_Type, &tuple, &batch, &dtype,
                          &channels_last, &padding, &scale, &mean, &std))
        return NULL;
    osw_batch_job job = {.planes = !channels_last,
                         .move = scale == Py_None,
                         .scale = 1,
                         .stream_bytes = osw_stream_batch_bytes};
    if (!job.move) {
        job.scale = (float)PyFloat_AsDouble(scale);
        if (PyErr_Occurred())
            return NULL;
    }
    osw_images images;
    if (read_images(tuple, &images) != 0)
        return NULL;
    job.images = images.each;
    job.count = images.count;
    job.channels = images.channels;
    job.from = images.dtype;
    int done = read_batch(&job, batch, dtype, padding, mean, std);
    if (done == 0 && job.move && job.from != job.to) {
        PyErr_SetString(PyExc_TypeError, "batch_images: another dtype needs a scale");
        done = -1;
    }
    done = done == 0 ? check_images(&images, &job) : done;
    if (done == 0) {
        osw_batch_fn *kernels[OSW_BATCH_COUNT];
        memcpy(kernels, osw_batch_table, sizeof kernels);
        Py_BEGIN_ALLOW_THREADS;
        done = osw_batch_run(&job, kernels);
        Py_END_ALLOW_THREADS;
        if (done != 0)
            PyErr_NoMemory();
    }
    free(images.each);
    return done == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *huge_pages(PyObject *module, PyObject *batch)
{
    (void)module;
    if (!PyArray_Check(batch) || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)batch))
        return PyErr_Format(PyExc_TypeError, "batch_images: expected an array in C order");
    osw_huge_pages(PyArray_DATA((PyArrayObject *)batch),
                   (size_t)PyArray_NBYTES((PyArrayObject *)batch));
    Py_RETURN_NONE;
}

PyMethodDef osw_array_methods[] = {
    {"examine", examine, METH_O, "The dtype, the number of channels and the sizes of images."},
    {"fill", fill, METH_VARARGS, "Write images and their padding into a batch."},
    {"huge_pages", huge_pages, METH_O, "Ask the system for pages of 2 MiB for an array."},
    {NULL, NULL, 0, NULL},
};
