// The inner steps of integer products: four unsigned bytes of weights of each of sixteen columns times four int8 of a row,
// added to an int32. Exact on every body, so the order of k does not matter. Sums live in Lanes as their bits.
#pragma once

namespace baton::BODY {
constexpr long kGroupRows = kTileRows < 6 ? kTileRows : 6;  // rows whose sums and totals have room in registers together

INLINE Ints low_nibbles(Ints w) { return w & ints(0x0F0F0F0Fu); }
INLINE Ints high_nibbles(Ints w) { return right<4>(w) & ints(0x0F0F0F0Fu); }

#ifdef __AVX512VNNI__
constexpr long kQuadWords = 1;  // words of packed activations per four k

template <int R, int C, int XR, int XK>
INLINE void add_quads(Lanes (&acc)[R][C], const uint32_t* x, const Ints (&w)[C]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Ints b = ints(x[r * XR]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = floats(dot_bytes(bits(acc[r][c]), w[c], b));
    }
}
#else
// Products of words, two at a time: first the even bytes of the four, then the odd ones.
constexpr long kQuadWords = 2;

template <int R, int C, int XR, int XK>
INLINE void add_quads(Lanes (&acc)[R][C], const uint32_t* x, const Ints (&w)[C]) {
    const Ints low = ints(0x00FF00FFu);
    Ints even[C], odd[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) even[c] = w[c] & low, odd[c] = right<8>(w[c]) & low;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Ints b = ints(x[r * XR]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = floats(bits(acc[r][c]) + dot_words(even[c], b));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Ints b = ints(x[r * XR + XK]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = floats(bits(acc[r][c]) + dot_words(odd[c], b));
    }
}
#endif

INLINE Ints flip_signs(Ints a) { return (a | ints(0x80808080u)) - (a & ints(0x80808080u)); }  // int8 to int8 + 128, and back

// The bytes of `nibbles` minus those of `zero`, times those of `factor`, which fit int8; plus 128.
INLINE Ints scaled_bytes(Ints nibbles, Ints zero, Ints factor) {
    const Ints d = subtract_bytes(nibbles, zero), low = ints(0x00FF00FFu);
    return flip_signs((multiply_words(even_bytes(d), even_bytes(factor)) & low) | left<8>(multiply_words(odd_bytes(d), odd_bytes(factor)) & low));
}

// A byte for each lane, in all four bytes of it.
INLINE Ints spread_bytes(const int8_t* p) { return times(widen_bytes(p) & ints(0xFFu), ints(0x01010101u)); }

// A kind of `tile` (tile.h): bytes of weights, whose sums run over a whole segment.
struct Quads {
    using X = uint32_t;
    using W = uint32_t;
    static constexpr int kPerStep = kQuadWords, kElements = 1;
    template <int R, int C, int XR, int XK>
    INLINE void step(Lanes (&acc)[R][C], const X* x, const W* w, long apart) {
        Ints v[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) v[c] = load(w + c * apart);
        add_quads<R, C, XR, XK>(acc, x, v);
    }
};

// Weights of a group: each reads `kQuads` times four k per step from a vector of words per sixteen columns, as unsigned
// bytes that are too large (form.h says by how much).
struct GroupBytes {
    static constexpr int kQuads = 1;
    INLINE Ints take(Ints w, int, Ints) { return w; }
};
struct GroupNibbles {
    static constexpr int kQuads = 2;
    INLINE Ints take(Ints w, int quad, Ints) { return quad ? high_nibbles(w) : low_nibbles(w); }
};
struct GroupTable {
    static constexpr int kQuads = 2;
    INLINE Ints take(Ints w, int quad, Ints table) { return look_up(table, quad ? high_nibbles(w) : low_nibbles(w)); }
};
}  // namespace baton::BODY
