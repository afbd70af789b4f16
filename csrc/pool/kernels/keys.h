/* SPDX-License-Identifier: MIT */
/* Keys replace the elements of a vector when only their order matters: floats themselves; 16-bit
 * floats as integers, sign and magnitude turned into two's complement, which makes both zeros 0 and
 * needs no conversion. A NaN is not a key: `watch_keys` notices it. */
#ifndef OSW_POOL_KEYS_H
#define OSW_POOL_KEYS_H

#include "core/names.h"
#include "core/simd.h"

/* KEY(max) is max_f32 or max_i16, by SUFFIX; PLACE(load), of positions of keys and masks, load_i32
 * or load_i16. */
#define KEYS_OF_f32    f32
#define KEYS_OF_bf16   i16
#define KEYS_OF_f16    i16
#define PLACES_OF_f32  i32
#define PLACES_OF_bf16 i16
#define PLACES_OF_f16  i16
#define KEY(name)      OSW_JOIN(name##_, OSW_JOIN(KEYS_OF_, SUFFIX))
#define PLACE(name)    OSW_JOIN(name##_, OSW_JOIN(PLACES_OF_, SUFFIX))

/* The key of infinity, of 16-bit floats. */
#define INFINITY_OF_f32  0
#define INFINITY_OF_bf16 0x7f80
#define INFINITY_OF_f16  0x7c00
#define KEY_INFINITY     OSW_JOIN(INFINITY_OF_, SUFFIX)

/* Lanes of keys, as many as there are elements of the dtype in a vector. */
#define KEYS (VEC_BYTES / (int)sizeof(ELEMENT))

/* Elements whose comparison fits a mask of 64 bits. */
enum { CHUNK = 64 };

/* What a pass over pixels finds out beside the maximum: positions of it. */
enum { VALUES, FIRST, FIRST_AND_LAST };

/* Vectors of keys, of positions or masks; a position in memory. */
typedef vf32 keys_f32;
typedef vi16 keys_i16;
typedef vi32 places_i32;
typedef vi16 places_i16;
typedef int32_t place_i32;
typedef uint16_t place_i16;

OSW_INLINE vf32 load_keys_f32(const float *p)
{
    return load_f32(p);
}

OSW_INLINE vi16 load_keys_i16(const uint16_t *p)
{
    const vi16 x = load_i16(p);
    return signed_like_i16(x & set1_i16(0x7fff), x);
}

/* `seen` starts as zeros. */
OSW_INLINE vi32 watch_keys_f32(vi32 seen, vf32 keys)
{
    return seen | (keys != keys);
}

OSW_INLINE vi16 watch_keys_i16(vi16 seen, vi16 keys)
{
    return min_i16(seen, keys);
}

/* Whether a NaN was among the keys that were seen. best: their maximum. */
OSW_INLINE bool saw_nan_f32(vi32 seen, vf32 best, int16_t infinity)
{
    (void)best, (void)infinity;
    return any_i32(seen);
}

/* A positive NaN shows in the maximum, a negative one in the minimum. */
OSW_INLINE bool saw_nan_i16(vi16 seen, vi16 best, int16_t infinity)
{
    return any_i16((best > set1_i16(infinity)) | (set1_i16((int16_t)-infinity) > seen));
}

/* Whether a zero among the keys may have lost its sign. */
OSW_INLINE bool lost_sign_f32(vf32 keys)
{
    (void)keys;
    return false;
}

OSW_INLINE bool lost_sign_i16(vi16 keys)
{
    return any_i16(keys == (vi16){0});
}

/* Keys other than zero as elements. */
OSW_INLINE vf32 elements_of_f32(vf32 keys)
{
    return keys;
}

OSW_INLINE vi16 elements_of_i16(vi16 keys)
{
    return abs_i16(keys) | (keys & set1_i16((int16_t)0x8000));
}

/* LANES positions as int32. */
OSW_INLINE vi32 wide_places_i32(const int32_t *p)
{
    return load_i32(p);
}

OSW_INLINE vi32 wide_places_i16(const uint16_t *p)
{
    return load_u16_i32(p);
}

#endif
