/* SPDX-License-Identifier: MIT */
#include "binding/tensor_arg.h"

#include "binding/tensor_public.h"
#include "binding/torch_names.h"

#include <stdio.h>

enum { MAX_TYPES = 8 };

/* Exchange tables by type: Tensor and Parameter alternate in most calls. Guarded by the GIL. */
static struct {
    PyTypeObject *type;
    const osw_dl_exchange *exchange;
} known[MAX_TYPES];
static int known_count;

static const osw_dl_exchange *exchange_of(PyTypeObject *type)
{
    for (int i = 0; i < known_count; i++)
        if (known[i].type == type)
            return known[i].exchange;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const osw_dl_exchange *exchange =
        capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule);
    PyErr_Clear();
    if (!exchange || exchange->version.major != OSW_DL_MAJOR || !exchange->tensor_from_object)
        return NULL;
    if (known_count < MAX_TYPES) {
        Py_INCREF(type);
        known[known_count].type = type;
        known[known_count++].exchange = exchange;
    }
    return exchange;
}

static int fail(PyObject *kind, const char *name, const char *problem, PyObject *object)
{
    PyErr_Clear();
    return osw_raise(kind, "%s: %s, got %R", name, problem, (PyObject *)Py_TYPE(object));
}

static int copy_dims(const osw_dl_tensor *from, osw_tensor *to)
{
    to->ndim = from->ndim;
    to->dtype = from->dtype;
    to->itemsize = (int64_t)from->dtype.bits * from->dtype.lanes / 8;
    uint64_t numel = 1; /* without elements, the other sizes may have any product */
    for (int i = 0; i < from->ndim; i++) {
        to->size[i] = from->shape[i];
        to->stride[i] = from->strides[i];
        numel *= (uint64_t)from->shape[i];
    }
    to->numel = (int64_t)numel;
    to->data = to->numel ? (char *)from->data + from->byte_offset : NULL;
    return to->numel && !from->data ? -1 : 0;
}

static bool is_tensor(PyObject *object)
{
    PyObject *type = osw_torch(OSW_TORCH_TENSOR);
    const int is = type ? PyObject_IsInstance(object, type) : 0;
    PyErr_Clear();
    return is == 1;
}

int osw_tensor_arg(PyObject *object, const char *name, osw_tensor *out)
{
    const osw_dl_exchange *exchange = exchange_of(Py_TYPE(object));
    out->object = object;
    if (!exchange && !is_tensor(object))
        return fail(PyExc_TypeError, name, "expected a tensor of torch >= 2.10", object);
    osw_dl_tensor borrowed;
    if (exchange ? exchange->tensor_from_object(object, &borrowed) != 0
                 : osw_tensor_public(object, out, &borrowed) != 0)
        return fail(PyExc_RuntimeError, name, "expected a strided tensor with memory of its own",
                    object);
    if (borrowed.device.type != OSW_DL_CPU)
        return fail(PyExc_RuntimeError, name, "expected a CPU tensor", object);
    if (borrowed.ndim > OSW_MAX_DIMS)
        return osw_raise(PyExc_RuntimeError, "%s: expected at most %d dimensions, got %d", name,
                         OSW_MAX_DIMS, (int)borrowed.ndim);
    if (copy_dims(&borrowed, out) != 0)
        return fail(PyExc_RuntimeError, name, "expected a tensor with memory", object);
    return 0;
}

const void *osw_tensor_near(PyObject *object)
{
    const osw_dl_exchange *exchange = exchange_of(Py_TYPE(object));
    osw_dl_tensor borrowed;
    const bool found = exchange && exchange->tensor_from_object(object, &borrowed) == 0;
    PyErr_Clear();
    return found ? borrowed.shape : NULL;
}

int osw_check_unchanged(const char *name, const osw_tensor *t)
{
    osw_tensor now;
    if (!t->object || (osw_tensor_arg(t->object, name, &now) == 0 && now.data == t->data &&
                       now.numel == t->numel && osw_same_dtype(&now, t)))
        return 0;
    PyErr_Clear();
    return osw_raise(PyExc_RuntimeError, "%s: a tensor was resized while the call ran", name);
}

osw_dtype osw_dtype_of(const osw_tensor *t)
{
    return osw_dtype_of_dlpack(t->dtype.code, t->dtype.bits, t->dtype.lanes);
}

int osw_fail_dtype(const char *name, const osw_tensor *t)
{
    return osw_raise(PyExc_NotImplementedError, "%s: not implemented for dtype code %d, %d bit",
                     name, (int)t->dtype.code, (int)t->dtype.bits);
}

bool osw_same_dtype(const osw_tensor *a, const osw_tensor *b)
{
    return a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits &&
           a->dtype.lanes == b->dtype.lanes;
}

bool osw_same_sizes(const osw_tensor *a, const osw_tensor *b, int but)
{
    bool same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = i == but || a->size[i] == b->size[i];
    return same;
}

bool osw_has_size(const osw_tensor *t, int ndim, const int64_t *size)
{
    bool same = t->ndim == ndim;
    for (int i = 0; same && i < ndim; i++)
        same = t->size[i] == size[i];
    return same;
}

osw_sizes_text osw_print_sizes(int ndim, const int64_t *size)
{
    osw_sizes_text out = {"("};
    size_t used = 1;
    for (int i = 0; i < ndim; i++)
        used += (size_t)snprintf(out.text + used, sizeof out.text - used, i ? ", %lld" : "%lld",
                                 (long long)size[i]);
    snprintf(out.text + used, sizeof out.text - used, ndim == 1 ? ",)" : ")");
    return out;
}

bool osw_flatten(const osw_tensor *t, int first, int64_t *count, int64_t *step)
{
    *count = 1;
    *step = 1;
    for (int i = t->ndim - 1; i >= first; i--) {
        if (t->size[i] == 1)
            continue;
        if (*count == 1)
            *step = t->stride[i];
        else if (t->stride[i] != (int64_t)((uint64_t)*step * (uint64_t)*count))
            return false;
        *count = (int64_t)((uint64_t)*count * (uint64_t)t->size[i]);
    }
    return true;
}

bool osw_is_dense(const osw_tensor *t, int first)
{
    int64_t count, step;
    return osw_flatten(t, first, &count, &step) && (count <= 1 || step == 1);
}

bool osw_is_channels_last(const osw_tensor *t)
{
    int64_t step = 1;
    if (t->ndim < 4 || t->ndim > 5 || t->numel == 0)
        return false;
    for (int n = 0; n < t->ndim; n++) {
        const int i = osw_channels_last_at(t->ndim, n);
        if (t->size[i] > 1 && t->stride[i] != step)
            return false;
        step *= t->size[i];
    }
    return true;
}

bool osw_is_pixels(const osw_tensor *t)
{
    return t->ndim == 4 && osw_is_channels_last(t);
}

bool osw_no_overlap(const osw_tensor *t)
{
    /* Taken by rising stride, every dimension steps over all that the smaller ones reach. */
    int64_t reach = 1;
    bool used[OSW_MAX_DIMS] = {false};
    for (int n = 0; n < t->ndim; n++) {
        int next = -1;
        for (int i = 0; i < t->ndim; i++)
            if (!used[i] && (next < 0 || t->stride[i] < t->stride[next]))
                next = i;
        used[next] = true;
        if (t->size[next] <= 1)
            continue;
        if (t->stride[next] < reach)
            return false;
        reach = t->stride[next] * t->size[next];
    }
    return true;
}

/* The address after the last element. */
static uint64_t end_of(const osw_tensor *t)
{
    uint64_t last = 0; /* wraps for no tensor that has memory */
    for (int i = 0; i < t->ndim; i++)
        last += (uint64_t)(t->size[i] - 1) * (uint64_t)t->stride[i];
    return (uint64_t)(uintptr_t)t->data + (last + 1) * (uint64_t)t->itemsize;
}

bool osw_ranges_meet(const osw_tensor *a, const osw_tensor *b)
{
    return a->numel > 0 && b->numel > 0 && (uint64_t)(uintptr_t)a->data < end_of(b) &&
           (uint64_t)(uintptr_t)b->data < end_of(a);
}
