// The amx path's share of a product: activations packed as tiles, and the innermost loop, two tiles of outputs.
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

constexpr long kPanelStep = 2048;  // bytes of weights

// What a lone tile of rows, which uses each weight once, fetches meanwhile.
INLINE Ahead near_ahead(const char* w) { return {w + 8192, kPanelStep}; }

// Continues a tile of rows by one panel (two tiles of columns) over `steps` steps of 64 bytes. acc is [16][32] and starts at zero when
// fresh; `ahead` is fetched meanwhile.
template <class Kind>
INLINE void panel_tiles(Tiles& tiles, const char* x, const char* w, long steps, float* acc, bool fresh, Ahead ahead) {
    constexpr long kAccRow = kPanel * 4;
    if (fresh)
        tiles.template zero<0>(), tiles.template zero<1>();
    else
        tiles.template load<0>(acc, kAccRow), tiles.template load<1>(acc + 16, kAccRow);
    for (long s = 0; s < steps; ++s, x += 1024, w += kPanelStep, ahead.at += ahead.stride) {
        for (long line = 0; line < ahead.stride; line += 64) fetch_far(ahead.at + line);
        tiles.template load_past<2>(x, 64);
        tiles.template load<3>(w, Kind::kStride);
        Kind::template dot<0, 2, 3>(tiles);
        tiles.template drop<3>();
        tiles.template load<3>(w + Kind::kSecond, Kind::kStride);
        Kind::template dot<1, 2, 3>(tiles);
        tiles.template drop<2>(), tiles.template drop<3>();
    }
    tiles.template store<0>(acc, kAccRow), tiles.template drop<0>();
    tiles.template store<1>(acc + 16, kAccRow), tiles.template drop<1>();
}
}  // namespace baton::BODY
