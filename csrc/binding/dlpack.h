/* SPDX-License-Identifier: MIT */
/* The part of DLPack 1.x that is used: a borrowed tensor, and the C exchange table that a tensor
 * type offers. Source: dmlc/dlpack, include/dlpack/dlpack.h. */
#ifndef OSW_BINDING_DLPACK_H
#define OSW_BINDING_DLPACK_H

#include <stdint.h>

enum { OSW_DL_CPU = 1, OSW_DL_MAJOR = 1 };

typedef struct osw_dl_device {
    int32_t type;
    int32_t id;
} osw_dl_device;

typedef struct osw_dl_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} osw_dl_dtype;

typedef struct osw_dl_tensor {
    void *data;
    osw_dl_device device;
    int32_t ndim;
    osw_dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements */
    uint64_t byte_offset;
} osw_dl_tensor;

typedef struct osw_dl_version {
    uint32_t major;
    uint32_t minor;
} osw_dl_version;

/* The capsule "dlpack_exchange_api"; functions that are not called are typed as plain pointers. */
typedef struct osw_dl_exchange {
    osw_dl_version version;
    void *previous;
    void *allocate;
    void *managed_from_object;
    void *managed_to_object;
    int (*tensor_from_object)(void *object, osw_dl_tensor *out);
    void *current_stream;
} osw_dl_exchange;

#endif
