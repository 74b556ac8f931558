// See processor.h.
#pragma once
#include <cstdint>
#include <cstring>

namespace baton {
using FloatMode = uint64_t;

inline FloatMode float_mode() {
    FloatMode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
inline void set_float_mode(FloatMode mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode)); }
// The mode that rounds to nearest and treats denormals as zeros, as operands and as results.
inline FloatMode flushing(FloatMode mode) { return (mode & ~(FloatMode{3} << 22)) | FloatMode{1} << 24; }

inline void wait_briefly() { __asm__ volatile("yield" ::: "memory"); }
inline void fetch_soon(const char* p) { __builtin_prefetch(p, 0, 2); }  // into the second-level cache

inline float widen_half(uint16_t half) {
    __fp16 value;
    std::memcpy(&value, &half, 2);
    return static_cast<float>(value);
}
}  // namespace baton
