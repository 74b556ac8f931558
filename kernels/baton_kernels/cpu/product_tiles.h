// The amx path's share of a product: activations packed as tiles, and the innermost loop, two by two tiles of outputs.
// An output's chain is one sum per 32 of k in ascending order, kept in its tile; rows of a tile never meet, so rows that
// fill it up with zeros change nothing.
#pragma once

namespace baton::BODY {

// Writes tile t of x as [k / 32][16][32] in bf16, zero beyond the rows and beyond k.
static void pack_tiles(const ProductCall& call, long t) {
    const long k = call.k, kp = padded_depth(kAmx, k);
    auto* to = reinterpret_cast<uint16_t*>(call.packed_x) + t * kTile * kp;
    for (long r = 0; r < kTile; ++r) {
        const long row = t * kTile + r;
        for (long i = 0; i < kp; i += 16) {
            const Lanes v = row < call.rows && i < k ? load_first(row_of(call, row) + i, k - i, 0.0f) : set(0.0f);
            store_high(to + i / 32 * 512 + r * 32 + i % 32, round_bits(v));
        }
    }
}

// A step's weights of a panel, 2 KiB, are two tiles of columns, whose rows lie kStride bytes apart.
struct PairTiles {
    static constexpr long kStride = 64, kSecond = 1024;
    template <int C, int A, int B> INLINE void dot(Tiles& tiles) { tiles.template dot<C, A, B>(); }
};

// Continues R tiles of rows by one panel (two tiles of columns) over `steps` steps of 64 bytes. acc is [R][16][32] and starts
// at zero when fresh; x_next is the distance between the tiles of rows in bytes. Weights are fetched `kAhead` bytes early if `far`.
template <int R, class Kind>
INLINE void panel_tiles(Tiles& tiles, const char* x, long x_next, const char* w, long steps, float* acc, bool fresh, bool far) {
    constexpr long kAccRow = kPanel * 4, kAhead = 8192;
    if (fresh) {
        tiles.template zero<0>();
        tiles.template zero<1>();
        if constexpr (R == 2) tiles.template zero<2>(), tiles.template zero<3>();
    } else {
        tiles.template load<0>(acc, kAccRow);
        tiles.template load<1>(acc + 16, kAccRow);
        if constexpr (R == 2) tiles.template load<2>(acc + 16 * kPanel, kAccRow), tiles.template load<3>(acc + 16 * kPanel + 16, kAccRow);
    }
    for (long s = 0; s < steps; ++s) {
        if (far)
            for (long line = 0; line < 2048; line += 64) fetch(w + kAhead + line);
        tiles.template load<6>(w, Kind::kStride);
        tiles.template load<4>(x, 64);
        Kind::template dot<0, 4, 6>(tiles);
        tiles.template load<7>(w + Kind::kSecond, Kind::kStride);
        Kind::template dot<1, 4, 7>(tiles);
        if constexpr (R == 2) {
            tiles.template load<5>(x + x_next, 64);
            Kind::template dot<2, 5, 6>(tiles);
            Kind::template dot<3, 5, 7>(tiles);
        }
        x += 1024;
        w += 2048;
    }
    tiles.template store<0>(acc, kAccRow);
    tiles.template store<1>(acc + 16, kAccRow);
    if constexpr (R == 2) tiles.template store<2>(acc + 16 * kPanel, kAccRow), tiles.template store<3>(acc + 16 * kPanel + 16, kAccRow);
}
}  // namespace baton::BODY
