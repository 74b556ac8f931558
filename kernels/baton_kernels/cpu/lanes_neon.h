// Sixteen fp32 lanes as four NEON registers. Same operations, same bits as lanes_plain.h. Four bytes are multiplied by four in
// one instruction, which takes signed ones.
#pragma once
#include <arm_neon.h>
#include <cstddef>
#include <cstdint>
#define INLINE static inline __attribute__((always_inline))
#define BATON_BYTE_DOTS
#define BATON_SIGNED_DOTS

namespace baton::BODY {
constexpr int kTileRows = 6, kTileVectors = 1;

struct Lanes { float32x4_t a, b, c, d; };
struct Ints { uint32x4_t a, b, c, d; };
struct Mask { uint32x4_t a, b, c, d; };
struct Words { uint64x2_t a, b, c, d; };

// A function of each of the four registers of x, of x and y, or of x, y and z.
#define OF_X(f) {f(x.a), f(x.b), f(x.c), f(x.d)}
#define OF_XY(f) {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)}
#define OF_XYZ(f) {f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d)}

INLINE Mask first(long n) {
    const uint32x4_t count = vdupq_n_u32(n <= 0 ? 0 : n > 16 ? 16 : static_cast<uint32_t>(n)), lane = {0, 1, 2, 3}, four = vdupq_n_u32(4);
    const uint32x4_t second = vaddq_u32(lane, four), third = vaddq_u32(second, four), fourth = vaddq_u32(third, four);
    return {vcltq_u32(lane, count), vcltq_u32(second, count), vcltq_u32(third, count), vcltq_u32(fourth, count)};
}
INLINE Lanes select(Mask x, Lanes y, Lanes z) { return OF_XYZ(vbslq_f32); }
INLINE Ints select(Mask x, Ints y, Ints z) { return OF_XYZ(vbslq_u32); }
INLINE uint32_t to_bits(Mask x) {
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(x.a, bit)) | vaddvq_u32(vandq_u32(x.b, bit)) << 4 | vaddvq_u32(vandq_u32(x.c, bit)) << 8 |
           vaddvq_u32(vandq_u32(x.d, bit)) << 12;
}

INLINE Lanes set(float x) { const float32x4_t v = vdupq_n_f32(x); return {v, v, v, v}; }
INLINE Lanes load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
INLINE void store(float* p, Lanes x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d); }
INLINE Lanes load_first(const float* p, long n, float fill) {
    if (n >= 16) return load(p);
    alignas(64) float at[16];
    for (int i = 0; i < 16; ++i) at[i] = i < n ? p[i] : fill;
    return load(at);
}
INLINE void store_first(float* p, long n, Lanes x) {
    if (n >= 16) return store(p, x);
    if (n <= 0) return;
    if (n & 8) vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), p += 8, x.a = x.c, x.b = x.d;
    if (n & 4) vst1q_f32(p, x.a), p += 4, x.a = x.b;
    if (n & 2) vst1_f32(p, vget_low_f32(x.a)), p += 2, x.a = vextq_f32(x.a, x.a, 2);
    if (n & 1) vst1q_lane_f32(p, x.a, 0);
}
INLINE Lanes operator+(Lanes x, Lanes y) { return OF_XY(vaddq_f32); }
INLINE Lanes operator-(Lanes x, Lanes y) { return OF_XY(vsubq_f32); }
INLINE Lanes operator*(Lanes x, Lanes y) { return OF_XY(vmulq_f32); }
INLINE Lanes operator/(Lanes x, Lanes y) { return OF_XY(vdivq_f32); }
INLINE Lanes fma(Lanes y, Lanes z, Lanes x) { return OF_XYZ(vfmaq_f32); }  // the instruction's sum comes first
INLINE Lanes sqrt(Lanes x) { return OF_X(vsqrtq_f32); }
// The machine's own max and min know another rule for NaN and for zeros of two signs.
INLINE float32x4_t larger(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
INLINE float32x4_t smaller(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
INLINE Lanes max(Lanes x, Lanes y) { return OF_XY(larger); }
INLINE Lanes min(Lanes x, Lanes y) { return OF_XY(smaller); }
INLINE Lanes swap_pairs(Lanes x) { return OF_X(vrev64q_f32); }

INLINE Ints ints(uint32_t x) { const uint32x4_t v = vdupq_n_u32(x); return {v, v, v, v}; }
INLINE Ints load(const uint32_t* p) { return {vld1q_u32(p), vld1q_u32(p + 4), vld1q_u32(p + 8), vld1q_u32(p + 12)}; }
INLINE void store(uint32_t* p, Ints x) { vst1q_u32(p, x.a), vst1q_u32(p + 4, x.b), vst1q_u32(p + 8, x.c), vst1q_u32(p + 12, x.d); }
INLINE Ints operator+(Ints x, Ints y) { return OF_XY(vaddq_u32); }
INLINE Ints operator-(Ints x, Ints y) { return OF_XY(vsubq_u32); }
INLINE Ints operator&(Ints x, Ints y) { return OF_XY(vandq_u32); }
INLINE Ints operator|(Ints x, Ints y) { return OF_XY(vorrq_u32); }
template <int N> INLINE Ints left(Ints x) { return {vshlq_n_u32(x.a, N), vshlq_n_u32(x.b, N), vshlq_n_u32(x.c, N), vshlq_n_u32(x.d, N)}; }
template <int N> INLINE Ints right(Ints x) { return {vshrq_n_u32(x.a, N), vshrq_n_u32(x.b, N), vshrq_n_u32(x.c, N), vshrq_n_u32(x.d, N)}; }
INLINE Ints bits(Lanes x) { return OF_X(vreinterpretq_u32_f32); }
INLINE Lanes floats(Ints x) { return OF_X(vreinterpretq_f32_u32); }
INLINE float32x4_t convert_one(uint32x4_t x) { return vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }
INLINE Lanes convert(Ints x) { return OF_X(convert_one); }

INLINE Mask less(Lanes x, Lanes y) { return OF_XY(vcltq_f32); }
INLINE Mask equal(Lanes x, Lanes y) { return OF_XY(vceqq_f32); }
INLINE uint32x4_t no_number(float32x4_t x) { return vmvnq_u32(vceqq_f32(x, x)); }
INLINE Mask is_nan(Lanes x) { return OF_X(no_number); }

INLINE float tree_sum(Lanes x) {
    const float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
INLINE float tree_max(Lanes x) {
    float32x4_t q = larger(larger(x.a, x.c), larger(x.b, x.d));
    q = larger(q, vextq_f32(q, q, 2));
    return vgetq_lane_f32(larger(q, vextq_f32(q, q, 1)), 0);
}
INLINE void store_high(uint16_t* p, Ints x) {
    vst1q_u16(p, vcombine_u16(vshrn_n_u32(x.a, 16), vshrn_n_u32(x.b, 16)));
    vst1q_u16(p + 8, vcombine_u16(vshrn_n_u32(x.c, 16), vshrn_n_u32(x.d, 16)));
}

INLINE int16x8_t as_words(uint32x4_t x) { return vreinterpretq_s16_u32(x); }
INLINE int8x16_t as_bytes(uint32x4_t x) { return vreinterpretq_s8_u32(x); }
INLINE uint32x4_t even_of(uint32x4_t x) { return vreinterpretq_u32_s16(vshrq_n_s16(vshlq_n_s16(as_words(x), 8), 8)); }
INLINE uint32x4_t odd_of(uint32x4_t x) { return vreinterpretq_u32_s16(vshrq_n_s16(as_words(x), 8)); }
INLINE uint32x4_t dot_of(uint32x4_t x, uint32x4_t y) {
    const int32x4_t low = vmull_s16(vget_low_s16(as_words(x)), vget_low_s16(as_words(y))), high = vmull_high_s16(as_words(x), as_words(y));
    return vreinterpretq_u32_s32(vpaddq_s32(low, high));
}
INLINE uint32x4_t product_of(uint32x4_t x, uint32x4_t y) { return vreinterpretq_u32_s16(vmulq_s16(as_words(x), as_words(y))); }
INLINE uint32x4_t difference_of(uint32x4_t x, uint32x4_t y) { return vreinterpretq_u32_s8(vsubq_s8(as_bytes(x), as_bytes(y))); }
INLINE uint32x4_t found_in(uint32x4_t x, uint32x4_t y) {
    return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(x), vreinterpretq_u8_u32(y)));
}
INLINE uint32x4_t quads_of(uint32x4_t x, uint32x4_t y, uint32x4_t z) {
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(x), as_bytes(y), as_bytes(z)));
}
INLINE Ints even_bytes(Ints x) { return OF_X(even_of); }
INLINE Ints odd_bytes(Ints x) { return OF_X(odd_of); }
INLINE Ints dot_words(Ints x, Ints y) { return OF_XY(dot_of); }
INLINE Ints multiply_words(Ints x, Ints y) { return OF_XY(product_of); }
INLINE Ints subtract_bytes(Ints x, Ints y) { return OF_XY(difference_of); }
INLINE Ints times(Ints x, Ints y) { return OF_XY(vmulq_u32); }
// Four products of signed bytes per lane, added to x.
INLINE Ints dot_bytes(Ints x, Ints y, Ints z) { return OF_XYZ(quads_of); }
INLINE Ints load_table(const int8_t* p) { const uint32x4_t v = vreinterpretq_u32_s8(vld1q_s8(p)); return {v, v, v, v}; }
INLINE Ints look_up(Ints x, Ints y) { return OF_XY(found_in); }
INLINE void store_bytes(int8_t* p, Ints x) {
    const uint16x8_t low = vcombine_u16(vmovn_u32(x.a), vmovn_u32(x.b)), high = vcombine_u16(vmovn_u32(x.c), vmovn_u32(x.d));
    vst1q_s8(p, vreinterpretq_s8_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high))));
}
INLINE uint32x4_t widened(int16x4_t x) { return vreinterpretq_u32_s32(vmovl_s16(x)); }
INLINE Ints widen_bytes(const int8_t* p) {
    const int8x16_t x = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    return {widened(vget_low_s16(low)), widened(vget_high_s16(low)), widened(vget_low_s16(high)), widened(vget_high_s16(high))};
}
INLINE Ints widen_words(const uint16_t* p) {
    return {vmovl_u16(vld1_u16(p)), vmovl_u16(vld1_u16(p + 4)), vmovl_u16(vld1_u16(p + 8)), vmovl_u16(vld1_u16(p + 12))};
}
INLINE float32x4_t fp16_at(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE Lanes widen_fp16(const uint16_t* p) { return {fp16_at(p), fp16_at(p + 4), fp16_at(p + 8), fp16_at(p + 12)}; }

INLINE void transpose_four(uint32x4_t& a, uint32x4_t& b, uint32x4_t& c, uint32x4_t& d) {
    const uint64x2_t e = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), f = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
    const uint64x2_t g = vreinterpretq_u64_u32(vtrn1q_u32(c, d)), h = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
    a = vreinterpretq_u32_u64(vtrn1q_u64(e, g)), b = vreinterpretq_u32_u64(vtrn1q_u64(f, h));
    c = vreinterpretq_u32_u64(vtrn2q_u64(e, g)), d = vreinterpretq_u32_u64(vtrn2q_u64(f, h));
}
INLINE void exchange(uint32x4_t& x, uint32x4_t& y) { const uint32x4_t was = x; x = y, y = was; }
// Row i's lane j becomes row j's lane i: within squares of four by four, then whole squares.
INLINE void transpose(Ints (&v)[16]) {
#pragma GCC unroll 4
    for (int g = 0; g < 16; g += 4) {
        transpose_four(v[g].a, v[g + 1].a, v[g + 2].a, v[g + 3].a), transpose_four(v[g].b, v[g + 1].b, v[g + 2].b, v[g + 3].b);
        transpose_four(v[g].c, v[g + 1].c, v[g + 2].c, v[g + 3].c), transpose_four(v[g].d, v[g + 1].d, v[g + 2].d, v[g + 3].d);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
        exchange(v[r].b, v[4 + r].a), exchange(v[r].c, v[8 + r].a), exchange(v[r].d, v[12 + r].a);
        exchange(v[4 + r].c, v[8 + r].b), exchange(v[4 + r].d, v[12 + r].b), exchange(v[8 + r].d, v[12 + r].c);
    }
}

INLINE Words words(uint64_t x) { const uint64x2_t v = vdupq_n_u64(x); return {v, v, v, v}; }
INLINE uint64x2_t two_words(const void* p) { return vreinterpretq_u64_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
INLINE Words load_words(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    return {two_words(q), two_words(q + 16), two_words(q + 32), two_words(q + 48)};
}
INLINE void store_words(void* p, Words x) {
    auto* q = static_cast<uint8_t*>(p);
    vst1q_u8(q, vreinterpretq_u8_u64(x.a)), vst1q_u8(q + 16, vreinterpretq_u8_u64(x.b));
    vst1q_u8(q + 32, vreinterpretq_u8_u64(x.c)), vst1q_u8(q + 48, vreinterpretq_u8_u64(x.d));
}
INLINE void stream_words(void* p, Words x) {
    __asm__ volatile("stnp %q1, %q2, [%0]\nstnp %q3, %q4, [%0, #32]" ::"r"(p), "w"(x.a), "w"(x.b), "w"(x.c), "w"(x.d) : "memory");
}
INLINE void stream_end() { __atomic_thread_fence(__ATOMIC_RELEASE); }
INLINE uint64x2_t multiply64(uint64x2_t x, uint64x2_t y) {
    const uint32x4_t cross = vmulq_u32(vreinterpretq_u32_u64(x), vrev64q_u32(vreinterpretq_u32_u64(y)));
    return vmlal_u32(vshlq_n_u64(vpaddlq_u32(cross), 32), vmovn_u64(x), vmovn_u64(y));
}
INLINE Words operator+(Words x, Words y) { return OF_XY(vaddq_u64); }
INLINE Words operator*(Words x, Words y) { return OF_XY(multiply64); }
INLINE Words operator^(Words x, Words y) { return OF_XY(veorq_u64); }
INLINE Words operator|(Words x, Words y) { return OF_XY(vorrq_u64); }
template <int N> INLINE Words right(Words x) { return {vshrq_n_u64(x.a, N), vshrq_n_u64(x.b, N), vshrq_n_u64(x.c, N), vshrq_n_u64(x.d, N)}; }
INLINE void fetch(const void* p) { __builtin_prefetch(p, 0, 3); }
INLINE void fetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
#undef OF_X
#undef OF_XY
#undef OF_XYZ
}  // namespace baton::BODY
