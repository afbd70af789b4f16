/* SPDX-License-Identifier: MIT */
#include "core/simd.h"
#include "primitives.h"

static void record(osw_log *log, const char *name, const void *bytes, size_t count)
{
    const size_t start = log->count ? log->end[log->count - 1] : 0;
    memcpy(log->bytes + start, bytes, count);
    log->name[log->count] = name;
    log->end[log->count++] = start + count;
}

/* Any NaN that arithmetic made counts as the same. */
OSW_INLINE vf32 plain_nan_f32(vf32 v)
{
    return select_f32(v != v, set1_f32(NAN), v);
}

OSW_INLINE vf64 plain_nan_f64(vf64 v)
{
    return select_f64((vi64)(v != v), set1_f64(NAN), v);
}

#define RECORD(name, value)                                                                        \
    do {                                                                                           \
        const __typeof__(value) recorded = value;                                                  \
        record(log, name, &recorded, sizeof recorded);                                             \
    } while (0)

static void lanes_f32(const float *x, osw_log *log)
{
    const vf32 a = load_f32(x), b = load_f32(x + LANES), c = load_f32(x + 2 * LANES);
    const vi32 mask = a > b, some = first_lanes_i32(LANES - 1) & ~first_lanes_i32(1);
    RECORD("compare", mask);
    RECORD("keep_f32", keep_f32(mask, c));
    RECORD("select_f32", select_f32(mask, a, c));
    RECORD("select_i32", select_i32(mask, (vi32)a, (vi32)c));
    RECORD("not_le_f32", not_le_f32(a, b));
    RECORD("not_lt_f32", not_lt_f32(a, b));
    RECORD("not_ge_f32", not_ge_f32(a, b));
    RECORD("max_f32", max_f32(a, b));
    RECORD("min_f32", min_f32(a, b));
    RECORD("fma_f32", plain_nan_f32(fma_f32(a, b, c)));
    RECORD("bits_i32", bits_i32(mask));
    RECORD("bits_i32 of some", bits_i32(some));
    RECORD("any_i32", any_i32(mask));
    RECORD("any_i32 of some", any_i32(some));
    RECORD("any_i32 of none", any_i32(some ^ some));
    RECORD("lanes_of_bits_i32", lanes_of_bits_i32(0x5a96));
    for (int64_t n = 0; n <= LANES; n++) {
        RECORD("first_lanes_i32", first_lanes_i32(n));
        RECORD("last_lanes_i32", last_lanes_i32(n));
    }
}

static void lanes_others(const void *x, osw_log *log)
{
    const vf64 a = load_f64(x), b = load_f64((const double *)x + LANES_64),
               c = load_f64((const double *)x + 2 * LANES_64);
    const vi64 mask = (vi64)(a > b);
    RECORD("keep_f64", keep_f64(mask, c));
    RECORD("select_f64", select_f64(mask, a, c));
    RECORD("fma_f64", plain_nan_f64(fma_f64(a, b, c)));
    RECORD("bits_i64", bits_i64(mask));
    for (int64_t n = 0; n <= LANES_64; n++) {
        RECORD("first_lanes_i64", first_lanes_i64(n));
        RECORD("last_lanes_i64", last_lanes_i64(n));
    }
    const vi16 p = load_i16(x), q = load_i16((const int16_t *)x + LANES_16);
    RECORD("select_i16", select_i16(p > q, p, q));
    RECORD("max_i16", max_i16(p, q));
    RECORD("min_i16", min_i16(p, q));
    RECORD("abs_i16", abs_i16(p));
    RECORD("signed_like_i16", signed_like_i16(p & (int16_t)0x7fff, p));
    RECORD("bits_i16", bits_i16(p > q));
    RECORD("any_i16", any_i16(p > q));
    RECORD("any_i16 of none", any_i16(p > p));
    RECORD("max_lanes_i16", max_lanes_i16(p));
    RECORD("max_lanes_i16 of few", max_lanes_i16(p | (int16_t)0x8000));
}

/* n elements are written, and no byte beyond; the room starts as all ones. */
#define STORED(name, type, count, statement)                                                       \
    do {                                                                                           \
        type to[2 * LANES + 2];                                                                    \
        memset(to, 0xff, sizeof to);                                                               \
        statement;                                                                                 \
        record(log, name, to, sizeof to);                                                          \
    } while (0)

/* `from` in front of a page's end would be as good: a copy that ends where n elements do. */
#define LOADED(name, type, n, load)                                                                \
    do {                                                                                           \
        type room[2 * LANES];                                                                      \
        memset(room, 0xff, sizeof room);                                                           \
        memcpy(room, x, (size_t)(n) * sizeof(type));                                               \
        const type *from = room;                                                                   \
        RECORD(name, load);                                                                        \
    } while (0)

static void memory(const void *x, osw_log *log)
{
    const uint8_t *bytes = x;
    const uint16_t *halves = x;
    const vf32 v = load_f32(x);
    RECORD("load_i32", load_i32(bytes + 1));
    RECORD("load_u8_i32", load_u8_i32(bytes + 3));
    RECORD("load_u8_pairs", load_u8_pairs(bytes + 3));
    RECORD("load_u16_i32", load_u16_i32(halves + 1));
    RECORD("f32_of_i32", f32_of_i32(load_i32(bytes)));
    vu8 some_bytes[3];
    vi32 bytes_of_three[3];
    vf32 floats_of_three[3];
    unzip3_u8(bytes + 1, some_bytes);
    record(log, "unzip3_u8", some_bytes, sizeof some_bytes);
    unzip3_u8_i32(bytes + 1, bytes_of_three);
    record(log, "unzip3_u8_i32", bytes_of_three, sizeof bytes_of_three);
    unzip3_f32((const float *)x + 1, floats_of_three);
    record(log, "unzip3_f32", floats_of_three, sizeof floats_of_three);
    RECORD("load_bf16", load_bf16(halves + 1));
    RECORD("load_f16", load_f16(halves + 1));
    RECORD("round_bf16", round_bf16(v));
    RECORD("round_f16", round_f16(v));
    RECORD("widen_one_f16", widen_one_f16(halves[1]));
    RECORD("narrow_one_f16", narrow_one_f16(v[0]));
    RECORD("narrow_one_bf16", narrow_one_bf16(v[1]));
    STORED("store_u8_i32", uint8_t, LANES, store_u8_i32(to + 1, load_u8_i32(bytes)));
    STORED("store_u16_i32", uint16_t, LANES, store_u16_i32(to + 1, load_u16_i32(halves)));
    STORED("store_bf16", uint16_t, LANES, store_bf16(to + 1, load_bf16(halves)));
    STORED("store_f16", uint16_t, LANES, store_f16(to + 1, v));
    STORED("store_rounded_bf16", uint16_t, LANES, store_rounded_bf16(to + 1, v));
    STORED("store_near_two_bf16", uint16_t, 2 * LANES,
           store_near_two_bf16(to + 1, v, load_bf16(halves)));
    for (int64_t n = 0; n <= LANES; n++) {
        STORED("store_first_f32", float, n, store_first_f32(to + 1, v, n));
        STORED("store_first_bf16", uint16_t, n, store_first_bf16(to + 1, v, n));
        STORED("store_first_f16", uint16_t, n, store_first_f16(to + 1, v, n));
        STORED("store_first_u16_i32", uint16_t, n,
               store_first_u16_i32(to + 1, load_u16_i32(halves), n));
        LOADED("load_first_f32", float, n, load_first_f32(from, n));
        LOADED("load_first_bf16", uint16_t, n, load_first_bf16(from, n));
        LOADED("load_first_f16", uint16_t, n, load_first_f16(from, n));
        LOADED("load_first_u16_i32", uint16_t, n, load_first_u16_i32(from, n));
    }
    for (int64_t n = 0; n <= LANES_64; n++) {
        STORED("store_first_f64", double, n, store_first_f64(to + 1, load_f64(x), n));
        LOADED("load_first_f64", double, n, load_first_f64(from, n));
    }
    _Alignas(VEC_BYTES) uint8_t aligned[4][VEC_BYTES] = {{0}};
    stream_rounded_f32((float *)aligned[0], v);
    stream_rounded_bf16((uint16_t *)aligned[1], v);
    stream_rounded_f16((uint16_t *)aligned[2], v);
    stream_i32(aligned[3], (vi32)v);
    stream_fence();
    record(log, "stream", aligned, sizeof aligned);
}

static void order(const float *x, osw_log *log)
{
    vf32 v[LANES], lo, hi;
    vf64 w[LANES_64];
    for (int i = 0; i < LANES; i++)
        v[i] = load_f32(x + i * LANES);
    for (int i = 0; i < LANES_64; i++)
        w[i] = load_f64((const double *)x + i * LANES_64);
    zip_f32(v[0], v[1], &lo, &hi);
    RECORD("zip_f32 lo", lo);
    RECORD("zip_f32 hi", hi);
    unzip_f32(v[0], v[1], &lo, &hi);
    RECORD("unzip_f32 even", lo);
    RECORD("unzip_f32 odd", hi);
    RECORD("even_f32, twice",
           in_order_f32(even_f32(even_f32(v[0], v[1]), even_f32(v[2], v[3])), 4));
    RECORD("odd_f32, twice", in_order_f32(odd_f32(odd_f32(v[0], v[1]), odd_f32(v[2], v[3])), 4));
    RECORD("swap_pairs_i32", swap_pairs_i32((vi32)v[0]));
    transpose_f32(v);
    record(log, "transpose_f32", v, sizeof v);
    transpose_f64(w);
    record(log, "transpose_f64", w, sizeof w);
}

static void reductions(const osw_input *input, osw_log *log)
{
    vf32 v[4];
    vf64 w[4];
    float sums[4];
    double sums_64[4], doubles[LANES];
    for (int i = 0; i < 4; i++) {
        v[i] = load_f32(input->whole + i * LANES);
        w[i] = load_f64(input->whole_64 + i * LANES_64);
    }
    for (int i = 0; i < LANES; i++)
        doubles[i] = i * 0.1;
    RECORD("max_lanes_f32", max_lanes_f32(v[0]));
    RECORD("sum_lanes_i32", sum_lanes_i32(load_i32(input->bits)));
    sum4_f32(v, sums);
    record(log, "sum4_f32", sums, sizeof sums);
    sum4_f64(w, sums_64);
    record(log, "sum4_f64", sums_64, sizeof sums_64);
    add_as_doubles(doubles, v[1]);
    record(log, "add_as_doubles", doubles, sizeof doubles);
}

void TIERED(primitives)(const osw_input *input, osw_log *log)
{
    lanes_f32((const float *)(const void *)input->bits, log);
    lanes_others(input->bits, log);
    memory(input->bits, log);
    order((const float *)(const void *)input->bits, log);
    reductions(input, log);
}
