// Sixteen fp32 lanes as one AVX-512 register (F, BW, DQ, VL). Same operations, same bits as lanes_plain.h; with
// AVX512-BF16 also the pair product, one instruction that is exactly two fused multiply-adds, odd element first.
#pragma once
#include <immintrin.h>
#include <cstdint>
#define INLINE static inline __attribute__((always_inline))

namespace baton::BODY {
constexpr int kTileRows = 12, kTileVectors = 2;

struct Lanes { __m512 v; };
struct Ints { __m512i v; };
struct Mask { __mmask16 v; };
struct Words { __m512i v; };

INLINE Mask first(long n) { return {static_cast<__mmask16>(n >= 16 ? 0xFFFFu : (1u << n) - 1u)}; }
INLINE Lanes select(Mask m, Lanes a, Lanes b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
INLINE Ints select(Mask m, Ints a, Ints b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }
INLINE uint32_t to_bits(Mask m) { return m.v; }

INLINE Lanes set(float x) { return {_mm512_set1_ps(x)}; }
INLINE Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE Lanes load_first(const float* p, long n, float fill) { return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n).v, p)}; }
INLINE void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
INLINE void store_first(float* p, long n, Lanes a) { _mm512_mask_storeu_ps(p, first(n).v, a.v); }
INLINE Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
INLINE Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INLINE Lanes sqrt(Lanes a) { return {_mm512_sqrt_ps(a.v)}; }
INLINE Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE Lanes swap_pairs(Lanes a) { return {_mm512_permute_ps(a.v, 0xB1)}; }

INLINE Ints ints(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
INLINE Ints load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
INLINE void store(uint32_t* p, Ints a) { _mm512_storeu_si512(p, a.v); }
INLINE Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
INLINE Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
INLINE Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
INLINE Ints operator|(Ints a, Ints b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N> INLINE Ints left(Ints a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> INLINE Ints right(Ints a) { return {_mm512_srli_epi32(a.v, N)}; }
INLINE Ints bits(Lanes a) { return {_mm512_castps_si512(a.v)}; }
INLINE Lanes floats(Ints a) { return {_mm512_castsi512_ps(a.v)}; }
INLINE Lanes convert(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }

INLINE Mask less(Lanes a, Lanes b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
INLINE Mask equal(Lanes a, Lanes b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
INLINE Mask is_nan(Lanes a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }

INLINE float tree_sum(Lanes a) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE float tree_max(Lanes a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE void store_high(uint16_t* p, Ints a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(a.v, 16)));
}

INLINE Ints even_bytes(Ints a) { return {_mm512_srai_epi16(_mm512_slli_epi16(a.v, 8), 8)}; }
INLINE Ints odd_bytes(Ints a) { return {_mm512_srai_epi16(a.v, 8)}; }
INLINE Ints dot_words(Ints a, Ints b) { return {_mm512_madd_epi16(a.v, b.v)}; }
INLINE Ints multiply_words(Ints a, Ints b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
INLINE Ints subtract_bytes(Ints a, Ints b) { return {_mm512_sub_epi8(a.v, b.v)}; }
INLINE Ints times(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
INLINE Ints load_table(const int8_t* p) { return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
INLINE Ints look_up(Ints table, Ints at) { return {_mm512_shuffle_epi8(table.v, at.v)}; }
INLINE void store_bytes(int8_t* p, Ints a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v)); }
INLINE Ints widen_bytes(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
INLINE Ints widen_words(const uint16_t* p) { return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
INLINE Lanes widen_fp16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
#ifdef __AVX512VNNI__
#define BATON_BYTE_DOTS
// Four products of an unsigned and a signed byte per lane, added to c without saturation.
INLINE Ints dot_bytes(Ints c, Ints positive, Ints s) { return {_mm512_dpbusd_epi32(c.v, positive.v, s.v)}; }
#endif

// Row i's lane j becomes row j's lane i: within quarters of a register, then whole quarters.
INLINE void transpose(Ints (&v)[16]) {
    __m512i t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) t[i] = _mm512_unpacklo_epi32(v[i].v, v[i + 1].v), t[i + 1] = _mm512_unpackhi_epi32(v[i].v, v[i + 1].v);
#pragma GCC unroll 4
    for (int g = 0; g < 16; g += 4) {
        u[g] = _mm512_unpacklo_epi64(t[g], t[g + 2]), u[g + 1] = _mm512_unpackhi_epi64(t[g], t[g + 2]);
        u[g + 2] = _mm512_unpacklo_epi64(t[g + 1], t[g + 3]), u[g + 3] = _mm512_unpackhi_epi64(t[g + 1], t[g + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512i a = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x44), b = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x44);
        v[c].v = _mm512_shuffle_i32x4(a, b, 0x88), v[4 + c].v = _mm512_shuffle_i32x4(a, b, 0xDD);
        const __m512i d = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xEE), e = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xEE);
        v[8 + c].v = _mm512_shuffle_i32x4(d, e, 0x88), v[12 + c].v = _mm512_shuffle_i32x4(d, e, 0xDD);
    }
}

INLINE Words words(uint64_t x) { return {_mm512_set1_epi64(static_cast<long long>(x))}; }
INLINE Words load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
INLINE void store_words(void* p, Words a) { _mm512_storeu_si512(p, a.v); }
INLINE void stream_words(void* p, Words a) { _mm512_stream_si512(static_cast<__m512i*>(p), a.v); }
INLINE void stream_end() { _mm_sfence(); }
INLINE Words operator+(Words a, Words b) { return {_mm512_add_epi64(a.v, b.v)}; }
INLINE Words operator*(Words a, Words b) { return {_mm512_mullo_epi64(a.v, b.v)}; }
INLINE Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
INLINE Words operator|(Words a, Words b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N> INLINE Words right(Words a) { return {_mm512_srli_epi64(a.v, N)}; }
INLINE void fetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
INLINE void fetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

#ifdef __AVX512BF16__
// Rounds to bf16, nearest even, in one instruction. It turns denormal numbers into zero, so pass only normal ones.
INLINE void store_nearest(uint16_t* p, Lanes a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.v)); }
// The upper halves of a's lanes, then of b's, two to a lane.
INLINE Ints join_high(Ints a, Ints b) {
    __m512i odd = _mm512_set1_epi32(0x00020000);  // word 2i + 1 of the 64 in both
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    odd = _mm512_add_epi32(_mm512_add_epi32(odd, _mm512_set1_epi32(0x00010001)), _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x00040004)));
    return {_mm512_permutex2var_epi16(a.v, odd, b.v)};
}
INLINE Lanes dot(Lanes c, Ints a, Ints b) { return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)}; }
#endif
}  // namespace baton::BODY
