// Helpers of the C++ tests: CHECK that counts failures, fixed random numbers, exact-size heap buffers (so that the
// address sanitizer sees every overrun), and running something under every body that this machine has.
#pragma once
#include <xmmintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "../../../kernels/baton_kernels/cpu/api.h"
#include "../../../kernels/baton_kernels/cpu/form.h"

inline int failures = 0;
inline const char* current = "";

#define CHECK(condition, ...)                                                      \
    do {                                                                           \
        if (!(condition)) {                                                        \
            if (++failures <= 20) {                                                \
                std::printf("%s:%d [%s] %s: ", __FILE__, __LINE__, current, #condition); \
                std::printf(__VA_ARGS__);                                          \
                std::printf("\n");                                                 \
            }                                                                      \
        }                                                                          \
    } while (0)

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Random {
    uint64_t state = 1;
    uint64_t next() {
        uint64_t z = (state += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f - 0.5f; }
    // From everyday numbers down to denormals, so that flushing to zero matters.
    float wild() {
        const auto power = static_cast<int>(next() % 8);
        return std::ldexp(uniform(), power == 0 ? -70 : power == 1 ? -125 : power - 4);
    }
    std::vector<float> many(size_t n, bool extreme = false) {
        std::vector<float> out(n);
        for (auto& v : out) v = extreme ? wild() : uniform();
        return out;
    }
};

inline float to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = (bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline bool same(float a, float b) { return std::memcmp(&a, &b, 4) == 0; }

template <class Function>
void under_every_body(Function function) {
    static const char* const names[] = {"plain", "avx2", "avx512", "avx512bf16", "amx", "avx512vnni", "tiles"};
    for (int body = 0; body < 7; ++body) {
        if (!baton_usable(body)) continue;
        current = names[body];
        baton_choose(body);
        for (int threads : {1, 3}) {
            baton_set_threads(threads, nullptr);
            function();
        }
    }
    baton_choose(-1);
    baton_set_threads(1, nullptr);
    current = "";
}

// A dense weight [n][k], packed for a product path.
inline std::vector<uint8_t> packed_weight(int path, const float* w, long n, long k) {
    baton::Form form{};
    form.n = n, form.k = k, form.scheme = path, form.segments = 1;
    CHECK(!baton_describe(&form), "form");
    std::vector<uint8_t> packed(static_cast<size_t>(form.bytes), 0xFF);
    CHECK(!baton_pack(&form, 0, w, packed.data()), "pack");
    return packed;
}

// Sets the floating-point mode of the kernels (denormals are zero) on this thread while it lives.
struct Flushed {
    unsigned saved = _mm_getcsr();
    Flushed() { _mm_setcsr(saved | 0x8040u); }
    ~Flushed() { _mm_setcsr(saved); }
};

// One output of a tile path, in the manual's order: per 32 of k two chains from zero over the even and the odd elements,
// whose sum is added to the output. Zero beyond k.
inline float tile_chain(const float* x, const float* w, long k, float acc) {
    for (long begin = 0; begin < k; begin += 32) {
        float even = 0.0f, odd = 0.0f;
        for (long i = begin; i < begin + 32; i += 2) {
            even = std::fmaf(i < k ? to_bf16(x[i]) : 0.0f, i < k ? to_bf16(w[i]) : 0.0f, even);
            odd = std::fmaf(i + 1 < k ? to_bf16(x[i + 1]) : 0.0f, i + 1 < k ? to_bf16(w[i + 1]) : 0.0f, odd);
        }
        acc = acc + (even + odd);
    }
    return acc;
}

// The chain of one output: fp32 ascending, pairs odd element first over bf16 operands, padded to even, or tiles.
inline float chain(int path, const float* x, const float* w, long k, float acc = 0.0f) {
    if (path == 2) return tile_chain(x, w, k, acc);
    if (path == 0) {
        for (long i = 0; i < k; ++i) acc = std::fmaf(w[i], x[i], acc);
        return acc;
    }
    for (long i = 0; i < k; i += 2) {
        const float wo = i + 1 < k ? to_bf16(w[i + 1]) : 0.0f, xo = i + 1 < k ? to_bf16(x[i + 1]) : 0.0f;
        acc = std::fmaf(wo, xo, acc);
        acc = std::fmaf(to_bf16(w[i]), to_bf16(x[i]), acc);
    }
    return acc;
}
