// What adapters add to a product, for rows that share one: h = A x, then out += B h. Both run in fp32 in one order for
// every output, so a row's bits depend on its input and its adapter alone.
// A: [rank][k], rows padded to 16. The sum over k is one chain of fused multiply-adds for each of sixteen lanes, then the
// fixed tree. B: panels of 32 outputs, [panel][rank][32]. The sum over the rank is one ascending chain from zero.
#pragma once

namespace baton::BODY {
constexpr int kDeltaRows = kTileRows >= 12 ? 4 : 2;  // rows that share a load of the weights

// Sixteen weights from number i on, widened exactly.
template <bool HALF>
INLINE Lanes delta_weights(const void* from, long i) {
    if constexpr (HALF)
        return floats(left<16>(widen_words(static_cast<const uint16_t*>(from) + i)));
    else
        return load(static_cast<const float*>(from) + i);
}

template <int R, bool HALF>
INLINE void shrink_tile(const DeltaCall& call, const int32_t* rows, long rank, float* to) {
    constexpr int C = kDeltaRanks;
    const long k = call.k, kp = round_up(k, 16);
    const float* x[R];
    Lanes acc[R][C];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
        x[r] = call.x + rows[r] * k;
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = set(0.0f);
    }
    for (long i = 0; i < k; i += 16) {
        Lanes v[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) v[r] = k - i >= 16 ? load(x[r] + i) : load_first(x[r] + i, k - i, 0.0f);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            const Lanes w = delta_weights<HALF>(call.down, (rank + c) * kp + i);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) acc[r][c] = fma(v[r], w, acc[r][c]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) to[r * call.ranks + rank + c] = tree_sum(acc[r][c]);
}

template <int R, bool HALF>
INLINE void expand_tile(const DeltaCall& call, const int32_t* rows, const float* h, long panel) {
    const long rank = call.rank, column = panel * kPanel;
    Lanes acc[R][2];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = set(0.0f);
    for (long j = 0; j < rank; ++j) {
        const long at = (panel * rank + j) * kPanel;
        const Lanes w[2] = {delta_weights<HALF>(call.up, at), delta_weights<HALF>(call.up, at + 16)};
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Lanes v = set(h[r * call.ranks + j] * call.scale);
            acc[r][0] = fma(v, w[0], acc[r][0]), acc[r][1] = fma(v, w[1], acc[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
        for (long c = 0; c < 2 && column + 16 * c < call.columns; ++c) {
            float* to = call.out + rows[r] * call.out_row + column + 16 * c;
            const long n = call.columns - column - 16 * c;
            store_first(to, n, load_first(to, n, 0.0f) + acc[r][c]);
        }
}

template <int N>
struct RowCount {
    static constexpr int value = N;
};

// Calls `one` with as many of the rows at a time as share a load.
template <class Function>
INLINE void by_rows(long count, Function one) {
    long r = 0;
    if constexpr (kDeltaRows >= 4)
        for (; r + 4 <= count; r += 4) one(RowCount<4>(), r);
    for (; r + 2 <= count; r += 2) one(RowCount<2>(), r);
    for (; r < count; ++r) one(RowCount<1>(), r);
}

// Ranks `first` to `last`, which are multiples of kDeltaRanks, of some rows.
static void shrink(const DeltaCall& call, const int32_t* rows, long count, float* hidden, long first, long last) {
    for (long rank = first; rank < last; rank += kDeltaRanks)
        by_rows(count, [&](auto tile, long r) {
            constexpr int R = decltype(tile)::value;
            call.half ? shrink_tile<R, true>(call, rows + r, rank, hidden + r * call.ranks)
                      : shrink_tile<R, false>(call, rows + r, rank, hidden + r * call.ranks);
        });
}

// Panels `first` to `last` of some rows' outputs.
static void expand(const DeltaCall& call, const int32_t* rows, long count, const float* hidden, long first, long last) {
    for (long panel = first; panel < last; ++panel)
        by_rows(count, [&](auto tile, long r) {
            constexpr int R = decltype(tile)::value;
            call.half ? expand_tile<R, true>(call, rows + r, hidden + r * call.ranks, panel)
                      : expand_tile<R, false>(call, rows + r, hidden + r * call.ranks, panel);
        });
}
}  // namespace baton::BODY
