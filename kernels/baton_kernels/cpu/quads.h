// What integer products of all bodies share: nibbles, and what becomes of the bytes in which integer weights lie.
#pragma once

namespace baton::BODY {
#if defined(BATON_TILES_ONLY) || defined(BATON_BYTE_DOTS)
constexpr long kQuadWords = 1;  // words of packed activations per four k
#else
constexpr long kQuadWords = 2;
#endif

INLINE Ints low_nibbles(Ints w) { return w & ints(0x0F0F0F0Fu); }
INLINE Ints high_nibbles(Ints w) { return right<4>(w) & ints(0x0F0F0F0Fu); }

INLINE Ints flip_signs(Ints a) { return subtract_bytes(a, ints(0x80808080u)); }  // int8 to int8 + 128, and back

// Bytes of weights lie as int8 + 128. What a body multiplies them as, and how much that is more than the int8.
#ifdef BATON_SIGNED_DOTS
constexpr int32_t kByteExcess = 0;
INLINE Ints multiplied(Ints w) { return flip_signs(w); }
#else
constexpr int32_t kByteExcess = kShift;
INLINE Ints multiplied(Ints w) { return w; }
#endif

// (nibble - zero) * factor + 128 of four nibbles in each lane, where zero and factor belong to the lane. A nibble times a factor is
// below 256, because the result fits a byte for all nibbles (products.py checks it): so one product of words makes two of bytes.
struct ScaledBytes {
    Ints factors, shift;

    ScaledBytes(Ints zero, Ints factor)
        : factors(times(factor, ints(0x00010001u))), shift(times((times(zero, factor) - ints(128)) & ints(0xFFu), ints(0x01010101u))) {}
    Ints operator()(Ints nibbles) const { return subtract_bytes(multiply_words(nibbles, factors), shift); }
};

// A byte for each lane, in all four bytes of it.
INLINE Ints spread_bytes(const int8_t* p) { return times(widen_bytes(p) & ints(0xFFu), ints(0x01010101u)); }
}  // namespace baton::BODY
