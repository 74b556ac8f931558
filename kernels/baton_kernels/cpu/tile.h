// The inner loop of every product: R rows by C vectors of sixteen outputs, each output one chain of fused multiply-adds
// that lives in a register. Products, attention scores and probabilities times V are all this loop with other strides.
// Pairs are walked odd element first; an x kept as fp32 already lies in that order (see chain order in product.h).
#pragma once

namespace baton::BODY {

// A kind's X is the type of packed activations; each X holds kElements of the chain, and a step takes kPerStep of them.
// fp32 weights, one element of the chain per step.
struct Chain {
    using X = float;
    using W = float;
    static constexpr int kPerStep = 1, kElements = 1;
    template <int R, int C, int XR, int XK>
    INLINE void step(Lanes (&acc)[R][C], const X* x, const W* w, long apart) {
        Lanes v[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) v[c] = load(w + c * apart);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Lanes b = set(x[r * XR]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) acc[r][c] = fma(v[c], b, acc[r][c]);
        }
    }
};

// bf16 weights in pairs (even element in the low half), widened here; x as fp32, two elements per step.
struct Pairs {
    using X = float;
    using W = uint32_t;
    static constexpr int kPerStep = 2, kElements = 1;
    template <int R, int C, int XR, int XK>
    INLINE void step(Lanes (&acc)[R][C], const X* x, const W* w, long apart) {
        Lanes odd[C], even[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            const Ints pair = load(w + c * apart);
            odd[c] = floats(pair & ints(0xFFFF0000u));
            even[c] = floats(left<16>(pair));
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Lanes b = set(x[r * XR]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) acc[r][c] = fma(odd[c], b, acc[r][c]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Lanes b = set(x[r * XR + XK]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) acc[r][c] = fma(even[c], b, acc[r][c]);
        }
    }
};

#ifdef __AVX512BF16__
// bf16 weights in pairs, x as pairs too: one instruction per pair.
struct Dots {
    using X = uint32_t;
    using W = uint32_t;
    static constexpr int kPerStep = 1, kElements = 2;
    template <int R, int C, int XR, int XK>
    INLINE void step(Lanes (&acc)[R][C], const X* x, const W* w, long apart) {
        Ints v[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) v[c] = load(w + c * apart);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Ints b = ints(x[r * XR]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) acc[r][c] = dot(acc[r][c], v[c], b);
        }
    }
};
#endif

// The weights, keys or values that a tile prefetches into the second-level cache while it computes, a line or two per step.
// Prefetched all at once, they would fill the queue in which loads wait.
struct Ahead {
    const char* at = nullptr;
    long stride = 0;  // bytes per step
    long second = 0;  // distance of the second line in bytes; 0: one line per step
};

// acc[r * acc_row + 16 * c] continues its chain over `steps` steps. The chain starts at zero (fresh), at what acc holds
// (scale null), or at acc times scale[r]. x element (r, k) lies at x[r * XR + k * XK]; a step's weights lie `row` apart
// from the next step's, and the C vectors `apart` from each other.
template <int R, int C, class Kind, int XR, int XK>
static __attribute__((noinline)) void tile(const typename Kind::X* x, const typename Kind::W* w, long row, long apart, long steps,
                                           float* acc_at, long acc_row, bool fresh, const float* scale, Ahead ahead = {}) {
    if (!ahead.at) ahead.at = reinterpret_cast<const char*>(w);  // nothing to prefetch: name weights that are cached already
    Lanes acc[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = set(0.0f);
    if (!fresh) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) acc[r][c] = load(acc_at + r * acc_row + 16 * c);
        if (scale) {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) acc[r][c] = acc[r][c] * set(scale[r]);
        }
    }
    for (long k = 0; k < steps; ++k) {
        fetch_far(ahead.at);
        fetch_far(ahead.at + ahead.second);
        ahead.at += ahead.stride;
        Kind::template step<R, C, XR, XK>(acc, x, w, apart);
        x += Kind::kPerStep * XK;
        w += row;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) store(acc_at + r * acc_row + 16 * c, acc[r][c]);
}

template <int N>
struct Size {
    static constexpr int value = N;
};

// `rows` rows by C vectors in tiles of at most kMost rows, for x whose rows lie XR apart.
template <int kMost, int C, class Kind, int XR>
static void tall(long rows, const typename Kind::X* x, const typename Kind::W* w, long row, long apart, long steps, float* acc,
                 long acc_row, bool fresh, const float* scale, Ahead ahead = {}) {
    const auto advance = [&](int n) {
        rows -= n;
        x += static_cast<long>(n) * XR;
        acc += n * acc_row;
        if (scale) scale += n;
    };
    const auto one = [&](auto size) {
        constexpr int R = decltype(size)::value;
        tile<R, C, Kind, XR, 1>(x, w, row, apart, steps, acc, acc_row, fresh, scale, ahead);
        ahead = {};
        advance(R);
    };
    if constexpr (kMost >= 12)
        while (rows >= 12) one(Size<12>());
    if constexpr (kMost >= 7)
        if (rows == 7) return one(Size<7>());  // a common number of heads per KV head, so a decode step often has 7 rows
    if constexpr (kMost >= 6)
        while (rows >= 6) one(Size<6>());
    while (rows >= 4) one(Size<4>());
    if (rows == 3) return one(Size<3>());
    if (rows == 2) return one(Size<2>());
    if (rows == 1) one(Size<1>());
}
}  // namespace baton::BODY
