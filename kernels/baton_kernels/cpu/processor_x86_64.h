// See processor.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace baton {
using FloatMode = unsigned;

inline FloatMode float_mode() { return _mm_getcsr(); }
inline void set_float_mode(FloatMode mode) { _mm_setcsr(mode); }
// The mode that rounds to nearest and treats denormals as zeros, as operands and as results.
inline FloatMode flushing(FloatMode mode) { return (mode & ~0x6000u) | 0x8040u; }

inline void wait_briefly() { _mm_pause(); }
inline void fetch_soon(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }  // into the second-level cache

#ifdef __F16C__  // dispatch and the pool are compiled for any processor
inline float widen_half(uint16_t half) { return _cvtsh_ss(half); }
#endif
}  // namespace baton
