// Sixteen fp32 lanes as two AVX2 registers. Same operations, same bits as lanes_plain.h.
#pragma once
#include <immintrin.h>
#include <cstdint>
#define INLINE static inline __attribute__((always_inline))

namespace baton::BODY {
constexpr int kTileRows = 6, kTileVectors = 1;

struct Lanes { __m256 a, b; };
struct Ints { __m256i a, b; };
struct Mask { __m256 a, b; };
struct Words { __m256i a, b; };

INLINE Mask first(long n) {
    const __m256i count = _mm256_set1_epi32(n > 16 ? 16 : static_cast<int>(n));
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))),
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)))};
}
INLINE Lanes select(Mask m, Lanes x, Lanes y) { return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)}; }
INLINE Ints select(Mask m, Ints x, Ints y) {
    return {_mm256_blendv_epi8(y.a, x.a, _mm256_castps_si256(m.a)), _mm256_blendv_epi8(y.b, x.b, _mm256_castps_si256(m.b))};
}
INLINE uint32_t to_bits(Mask m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.a)) | static_cast<uint32_t>(_mm256_movemask_ps(m.b)) << 8;
}

INLINE Lanes set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE Lanes load_first(const float* p, long n, float fill) {
    const Mask m = first(n);
    return select(m, Lanes{_mm256_maskload_ps(p, _mm256_castps_si256(m.a)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b))}, set(fill));
}
INLINE void store(float* p, Lanes x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
INLINE void store_first(float* p, long n, Lanes x) {
    const Mask m = first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
INLINE Lanes operator+(Lanes x, Lanes y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INLINE Lanes operator-(Lanes x, Lanes y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INLINE Lanes operator*(Lanes x, Lanes y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INLINE Lanes operator/(Lanes x, Lanes y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INLINE Lanes fma(Lanes x, Lanes y, Lanes z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INLINE Lanes sqrt(Lanes x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
INLINE Lanes max(Lanes x, Lanes y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INLINE Lanes min(Lanes x, Lanes y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INLINE Lanes swap_pairs(Lanes x) { return {_mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1)}; }

INLINE Ints ints(uint32_t x) { const __m256i v = _mm256_set1_epi32(static_cast<int>(x)); return {v, v}; }
INLINE Ints load(const uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
INLINE void store(uint32_t* p, Ints x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
INLINE Ints operator+(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
INLINE Ints operator-(Ints x, Ints y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
INLINE Ints operator&(Ints x, Ints y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
INLINE Ints operator|(Ints x, Ints y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int N> INLINE Ints left(Ints x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N> INLINE Ints right(Ints x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
INLINE Ints bits(Lanes x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
INLINE Lanes floats(Ints x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
INLINE Lanes convert(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

INLINE Mask less(Lanes x, Lanes y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
INLINE Mask equal(Lanes x, Lanes y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)}; }
INLINE Mask is_nan(Lanes x) { return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)}; }

INLINE float tree_sum(Lanes x) {
    const __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE float tree_max(Lanes x) {
    const __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
INLINE void store_high(uint16_t* p, Ints x) {
    const __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xD8));
}

INLINE Ints even_bytes(Ints x) { return {_mm256_srai_epi16(_mm256_slli_epi16(x.a, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(x.b, 8), 8)}; }
INLINE Ints odd_bytes(Ints x) { return {_mm256_srai_epi16(x.a, 8), _mm256_srai_epi16(x.b, 8)}; }
INLINE Ints dot_words(Ints x, Ints y) { return {_mm256_madd_epi16(x.a, y.a), _mm256_madd_epi16(x.b, y.b)}; }
INLINE Ints multiply_words(Ints x, Ints y) { return {_mm256_mullo_epi16(x.a, y.a), _mm256_mullo_epi16(x.b, y.b)}; }
INLINE Ints subtract_bytes(Ints x, Ints y) { return {_mm256_sub_epi8(x.a, y.a), _mm256_sub_epi8(x.b, y.b)}; }
INLINE Ints times(Ints x, Ints y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
INLINE Ints load_table(const int8_t* p) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {both, both};
}
INLINE Ints look_up(Ints table, Ints at) { return {_mm256_shuffle_epi8(table.a, at.a), _mm256_shuffle_epi8(table.b, at.b)}; }
// The lowest byte of each lane. Packing saturates, so what lies above the byte goes first.
INLINE void store_bytes(int8_t* p, Ints x) {
    const Ints low = x & ints(0xFFu);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low.a, low.b), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
INLINE Ints widen_bytes(const int8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
INLINE Ints widen_words(const uint16_t* p) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
INLINE Lanes widen_fp16(const uint16_t* p) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}

// Row i's lane j becomes row j's lane i.
INLINE void transpose(Ints (&v)[16]) {
    alignas(64) uint32_t from[16][16], to[16][16];
    for (int i = 0; i < 16; ++i) store(from[i], v[i]);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[j][i] = from[i][j];
    for (int i = 0; i < 16; ++i) v[i] = load(to[i]);
}

INLINE Words words(uint64_t x) { const __m256i v = _mm256_set1_epi64x(static_cast<long long>(x)); return {v, v}; }
INLINE Words load_words(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
INLINE void store_words(void* p, Words x) {
    auto* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.a);
    _mm256_storeu_si256(q + 1, x.b);
}
INLINE void stream_words(void* p, Words x) {
    auto* q = static_cast<__m256i*>(p);
    _mm256_stream_si256(q, x.a);
    _mm256_stream_si256(q + 1, x.b);
}
INLINE void stream_end() { _mm_sfence(); }
INLINE __m256i multiply64(__m256i x, __m256i y) {
    const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), y), _mm256_mul_epu32(x, _mm256_srli_epi64(y, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(x, y), _mm256_slli_epi64(cross, 32));
}
INLINE Words operator+(Words x, Words y) { return {_mm256_add_epi64(x.a, y.a), _mm256_add_epi64(x.b, y.b)}; }
INLINE Words operator*(Words x, Words y) { return {multiply64(x.a, y.a), multiply64(x.b, y.b)}; }
INLINE Words operator^(Words x, Words y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
INLINE Words operator|(Words x, Words y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int N> INLINE Words right(Words x) { return {_mm256_srli_epi64(x.a, N), _mm256_srli_epi64(x.b, N)}; }
INLINE void fetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
INLINE void fetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
}  // namespace baton::BODY
