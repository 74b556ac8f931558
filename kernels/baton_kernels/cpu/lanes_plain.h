// Sixteen fp32 lanes as an array and loops: the body that every machine runs and every other body must equal bit for bit.
// A lane is an output column (or a slot, or a dim), so the vector width of the machine does not change a result.
#pragma once
#include <cstdint>
#include <cstring>
#define INLINE static inline __attribute__((always_inline))

namespace baton::BODY {
constexpr int kTileRows = 4, kTileVectors = 1;

struct Lanes { alignas(64) float v[16]; };
struct Ints { alignas(64) uint32_t v[16]; };
struct Mask { alignas(64) uint32_t v[16]; };
struct Words { alignas(64) uint64_t v[8]; };
#define EACH for (int i = 0; i < 16; ++i)

INLINE Lanes set(float x) { Lanes r; EACH r.v[i] = x; return r; }
INLINE Lanes load(const float* p) { Lanes r; EACH r.v[i] = p[i]; return r; }
INLINE Lanes load_first(const float* p, long n, float fill) { Lanes r; EACH r.v[i] = i < n ? p[i] : fill; return r; }
INLINE void store(float* p, Lanes a) { EACH p[i] = a.v[i]; }
INLINE void store_first(float* p, long n, Lanes a) { for (int i = 0; i < 16 && i < n; ++i) p[i] = a.v[i]; }
INLINE Lanes operator+(Lanes a, Lanes b) { EACH a.v[i] += b.v[i]; return a; }
INLINE Lanes operator-(Lanes a, Lanes b) { EACH a.v[i] -= b.v[i]; return a; }
INLINE Lanes operator*(Lanes a, Lanes b) { EACH a.v[i] *= b.v[i]; return a; }
INLINE Lanes operator/(Lanes a, Lanes b) { EACH a.v[i] /= b.v[i]; return a; }
INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return c; }
INLINE Lanes sqrt(Lanes a) { EACH a.v[i] = __builtin_sqrtf(a.v[i]); return a; }
// Like the instructions, returns the second operand if one of the two is NaN.
INLINE Lanes max(Lanes a, Lanes b) { EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE Lanes min(Lanes a, Lanes b) { EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE Lanes swap_pairs(Lanes a) { Lanes r; EACH r.v[i] = a.v[i ^ 1]; return r; }

INLINE Ints ints(uint32_t x) { Ints r; EACH r.v[i] = x; return r; }
INLINE Ints load(const uint32_t* p) { Ints r; EACH r.v[i] = p[i]; return r; }
INLINE void store(uint32_t* p, Ints a) { EACH p[i] = a.v[i]; }
INLINE Ints operator+(Ints a, Ints b) { EACH a.v[i] += b.v[i]; return a; }
INLINE Ints operator-(Ints a, Ints b) { EACH a.v[i] -= b.v[i]; return a; }
INLINE Ints operator&(Ints a, Ints b) { EACH a.v[i] &= b.v[i]; return a; }
INLINE Ints operator|(Ints a, Ints b) { EACH a.v[i] |= b.v[i]; return a; }
template <int N> INLINE Ints left(Ints a) { EACH a.v[i] <<= N; return a; }
template <int N> INLINE Ints right(Ints a) { EACH a.v[i] >>= N; return a; }
INLINE Ints bits(Lanes a) { Ints r; std::memcpy(r.v, a.v, 64); return r; }
INLINE Lanes floats(Ints a) { Lanes r; std::memcpy(r.v, a.v, 64); return r; }
INLINE Lanes convert(Ints a) { Lanes r; EACH r.v[i] = static_cast<float>(static_cast<int32_t>(a.v[i])); return r; }

INLINE Mask less(Lanes a, Lanes b) { Mask r; EACH r.v[i] = a.v[i] < b.v[i]; return r; }
INLINE Mask equal(Lanes a, Lanes b) { Mask r; EACH r.v[i] = a.v[i] == b.v[i]; return r; }
INLINE Mask is_nan(Lanes a) { Mask r; EACH r.v[i] = !(a.v[i] == a.v[i]); return r; }
INLINE Mask first(long n) { Mask r; EACH r.v[i] = i < n; return r; }
INLINE Lanes select(Mask m, Lanes a, Lanes b) { EACH a.v[i] = m.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE Ints select(Mask m, Ints a, Ints b) { EACH a.v[i] = m.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE uint32_t to_bits(Mask m) { uint32_t r = 0; EACH r |= m.v[i] << i; return r; }

// One fixed tree: lane i meets i + 8, then i + 4, i + 2, i + 1.
INLINE float tree_sum(Lanes a) {
    for (int half = 8; half; half /= 2) for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    return a.v[0];
}
INLINE float tree_max(Lanes a) {
    for (int half = 8; half; half /= 2) for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}
INLINE void store_high(uint16_t* p, Ints a) { EACH p[i] = static_cast<uint16_t>(a.v[i] >> 16); }

// Bytes and words inside the lanes: the even or odd bytes of each lane as two signed words, products of words by pairs, and
// a table of sixteen bytes.
INLINE int32_t low_word(uint32_t x) { return static_cast<int16_t>(x & 0xFFFFu); }
INLINE int32_t high_word(uint32_t x) { return static_cast<int16_t>(x >> 16); }
INLINE uint32_t pair_of(int32_t low, int32_t high) { return (static_cast<uint32_t>(low) & 0xFFFFu) | static_cast<uint32_t>(high) << 16; }
INLINE Ints even_bytes(Ints a) { EACH a.v[i] = pair_of(static_cast<int8_t>(a.v[i]), static_cast<int8_t>(a.v[i] >> 16)); return a; }
INLINE Ints odd_bytes(Ints a) { EACH a.v[i] = pair_of(static_cast<int8_t>(a.v[i] >> 8), static_cast<int8_t>(a.v[i] >> 24)); return a; }
INLINE Ints dot_words(Ints a, Ints b) {
    EACH a.v[i] = static_cast<uint32_t>(low_word(a.v[i]) * low_word(b.v[i]) + high_word(a.v[i]) * high_word(b.v[i]));
    return a;
}
INLINE Ints multiply_words(Ints a, Ints b) {
    EACH a.v[i] = pair_of(low_word(a.v[i]) * low_word(b.v[i]), high_word(a.v[i]) * high_word(b.v[i]));
    return a;
}
INLINE Ints subtract_bytes(Ints a, Ints b) {
    EACH a.v[i] = ((a.v[i] | 0x80808080u) - (b.v[i] & 0x7F7F7F7Fu)) ^ ((a.v[i] ^ ~b.v[i]) & 0x80808080u);
    return a;
}
INLINE Ints times(Ints a, Ints b) { EACH a.v[i] *= b.v[i]; return a; }
INLINE Ints load_table(const int8_t* p) { Ints r; for (int i = 0; i < 64; ++i) std::memcpy(reinterpret_cast<char*>(r.v) + i, p + i % 16, 1); return r; }
INLINE Ints look_up(Ints table, Ints at) {
    Ints r;
    const auto *t = reinterpret_cast<const uint8_t*>(table.v), *from = reinterpret_cast<const uint8_t*>(at.v);
    for (int i = 0; i < 64; ++i) reinterpret_cast<uint8_t*>(r.v)[i] = t[from[i] & 15];
    return r;
}
INLINE void store_bytes(int8_t* p, Ints a) { EACH p[i] = static_cast<int8_t>(a.v[i]); }
INLINE Ints widen_bytes(const int8_t* p) { Ints r; EACH r.v[i] = static_cast<uint32_t>(static_cast<int32_t>(p[i])); return r; }
INLINE Ints widen_words(const uint16_t* p) { Ints r; EACH r.v[i] = p[i]; return r; }
INLINE Lanes widen_fp16(const uint16_t* p) {
    Lanes r;
    EACH {
        const uint32_t sign = static_cast<uint32_t>(p[i] & 0x8000u) << 16, rest = p[i] & 0x7FFFu;
        uint32_t word = rest << 13;  // as if the exponent had fp32's bias, which is 112 higher
        if (rest >= 0x7C00u) word += 224u << 23;  // infinity and NaN
        else if (rest >= 0x0400u) word += 112u << 23;
        else { const float small = static_cast<float>(rest) * 0x1p-24f; std::memcpy(&word, &small, 4); }
        word |= sign;
        std::memcpy(r.v + i, &word, 4);
    }
    return r;
}

// Row i's lane j becomes row j's lane i.
INLINE void transpose(Ints (&v)[16]) {
    alignas(64) uint32_t from[16][16], to[16][16];
    for (int i = 0; i < 16; ++i) store(from[i], v[i]);
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[j][i] = from[i][j];
    for (int i = 0; i < 16; ++i) v[i] = load(to[i]);
}

INLINE Words words(uint64_t x) { Words r; for (auto& w : r.v) w = x; return r; }
INLINE Words load_words(const void* p) { Words r; std::memcpy(r.v, p, 64); return r; }
INLINE void store_words(void* p, Words a) { std::memcpy(p, a.v, 64); }
INLINE void stream_words(void* p, Words a) { std::memcpy(p, a.v, 64); }
INLINE void stream_end() { __atomic_thread_fence(__ATOMIC_RELEASE); }
INLINE Words operator+(Words a, Words b) { for (int i = 0; i < 8; ++i) a.v[i] += b.v[i]; return a; }
INLINE Words operator*(Words a, Words b) { for (int i = 0; i < 8; ++i) a.v[i] *= b.v[i]; return a; }
INLINE Words operator^(Words a, Words b) { for (int i = 0; i < 8; ++i) a.v[i] ^= b.v[i]; return a; }
INLINE Words operator|(Words a, Words b) { for (int i = 0; i < 8; ++i) a.v[i] |= b.v[i]; return a; }
template <int N> INLINE Words right(Words a) { for (auto& w : a.v) w >>= N; return a; }
INLINE void fetch(const void*) {}
INLINE void fetch_far(const void*) {}
#undef EACH
}  // namespace baton::BODY
