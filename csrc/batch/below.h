/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share. */
#ifndef OSW_BATCH_BELOW_H
#define OSW_BATCH_BELOW_H

#include "batch/batch.h"
#include "core/simd.h"

/* Pixels of more channels are left to the tier below by the kernels that write planes. */
enum { MAX_CHANNELS = 4 };

/* Bytes are parted into planes so many pixels at a time, in the first cache, and then written plane
 * by plane: runs of 512 to 2048 bytes in place of a line of each plane in turn. Measured on Zen 5
 * with rows of 560 pixels and more: 1.2 to 1.4 times the speed, from memory; rows of 200 pixels 0.9
 * for bfloat16, 1.0 for float32; 256 to 2048 pixels are alike. */
enum { CHUNK = 512 };

typedef struct osw_chunk {
    int64_t first, pixels;
} osw_chunk;

/* Of `pixels`, those from number `i` on; a last chunk of less than a vector of bytes begins
 * earlier. */
OSW_INLINE osw_chunk chunk_from(int64_t i, int64_t pixels)
{
    const int64_t first = i > 0 && pixels - i < VEC_BYTES ? pixels - VEC_BYTES : i;
    return (osw_chunk){first, pixels - first < CHUNK ? pixels - first : CHUNK};
}

/* The kernels of the tier below, for what is too small for vectors. */
static osw_batch_fn *below[OSW_BATCH_COUNT];

/* Factors of LANES elements. */
typedef struct osw_lanes {
    vf32 scale, mean, std; /* unless the form is fused */
    vf32 inverse;          /* if it is corrected */
    vf32 slope, shift;     /* if it is fused */
} osw_lanes;

OSW_INLINE vf32 factor(const float *values, const bool same)
{
    return same ? set1_f32(*values) : load_f32(values);
}

/* From channel `c` on, the same for all lanes or one channel after another. */
OSW_INLINE osw_lanes lanes_of(const osw_batch_factors *f, int64_t c, const bool same,
                              const osw_batch_form form)
{
    osw_lanes lanes = {0};
    if (form == OSW_BATCH_FUSED) {
        lanes.slope = factor(f->slope + c, same);
        lanes.shift = factor(f->shift + c, same);
        return lanes;
    }
    lanes.scale = set1_f32(f->scale);
    lanes.mean = factor(f->mean + c, same);
    lanes.std = factor(f->std + c, same);
    if (form == OSW_BATCH_CORRECTED)
        lanes.inverse = factor(f->inverse + c, same);
    return lanes;
}

/* LANES elements in their order, as floats. */
OSW_INLINE vf32 load_any(const void *x, int64_t i, const bool bytes)
{
    return bytes ? f32_of_i32(load_u8_i32((const uint8_t *)x + i)) : load_f32((const float *)x + i);
}

/* Channel k of LANES pixels of `channels` bytes each, as integers; the kernels call these with
 * constants. Bytes of two and four channels are read as the wider integers that they make up. */
OSW_INLINE int byte_shift(const int k, const int channels)
{
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 8 * k : 8 * (channels - 1 - k);
}

OSW_INLINE void load_channels_u8(const uint8_t *p, const int channels, vi32 v[MAX_CHANNELS])
{
    if (channels == 1) {
        v[0] = load_u8_i32(p);
    } else if (channels == 3) {
        unzip3_u8_i32(p, v);
    } else {
        const vi32 all =
            channels == 4 ? load_i32(p) : load_u16_i32((const uint16_t *)(const void *)p);
        OSW_UNROLL
        for (int k = 0; k < channels; k++)
            v[k] = all >> byte_shift(k, channels) & 0xff;
    }
}

/* The same of floats, or of any elements of 32 bits. */
OSW_INLINE void load_channels_f32(const float *p, const int channels, vf32 v[MAX_CHANNELS])
{
    if (channels == 1) {
        v[0] = load_f32(p);
    } else if (channels == 3) {
        unzip3_f32(p, v);
    } else if (channels == 2) {
        unzip_f32(load_f32(p), load_f32(p + LANES), &v[0], &v[1]);
    } else {
        vf32 even[2], odd[2];
        unzip_f32(load_f32(p), load_f32(p + LANES), &even[0], &odd[0]);
        unzip_f32(load_f32(p + 2 * LANES), load_f32(p + 3 * LANES), &even[1], &odd[1]);
        unzip_f32(even[0], even[1], &v[0], &v[2]);
        unzip_f32(odd[0], odd[1], &v[1], &v[3]);
    }
}

#endif
