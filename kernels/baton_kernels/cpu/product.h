// Matrix product on packed weights. A unit is some row tiles times some panels; it walks k in ascending stretches, keeps
// every output's chain in scratch between them, and ends with bias, residual or the SwiGLU gate.
// Chain order: for pairs, packed fp32 activations (and widened weights) lie odd element first, then even.
#pragma once

namespace baton::BODY {

template <int R, class Kind>
INLINE void panel_tile(const typename Kind::X* x, const typename Kind::W* w, long steps, float* acc, bool fresh, Ahead ahead) {
    constexpr int C = R == 1 ? 2 : kTileVectors;
    for (int c = 0; c < 2; c += C)
        tile<R, C, Kind, 1, R>(x, w + 16 * c, kPanel, 16, steps, acc + 16 * c, kPanel, fresh, nullptr, ahead);
}

template <class Kind>
static void panel_rows(long rows, const typename Kind::X* x, const typename Kind::W* w, long steps, float* acc, bool fresh, Ahead ahead) {
    switch (rows) {
        case 1: return panel_tile<1, Kind>(x, w, steps, acc, fresh, ahead);
        case 2: return panel_tile<2, Kind>(x, w, steps, acc, fresh, ahead);
        case 4: return panel_tile<4, Kind>(x, w, steps, acc, fresh, ahead);
        default: break;
    }
    if constexpr (kTileRows >= 6)
        if (rows == 6) return panel_tile<6, Kind>(x, w, steps, acc, fresh, ahead);
    if constexpr (kTileRows >= 12) {
        if (rows == 8) return panel_tile<8, Kind>(x, w, steps, acc, fresh, ahead);
        if (rows == 10) return panel_tile<10, Kind>(x, w, steps, acc, fresh, ahead);
        if (rows == 11) return panel_tile<11, Kind>(x, w, steps, acc, fresh, ahead);
        if (rows == 12) return panel_tile<12, Kind>(x, w, steps, acc, fresh, ahead);
    }
}

INLINE void widen_panel(const uint32_t* w, long pairs, float* wide) {
    for (long p = 0; p < pairs; ++p)
        for (int c = 0; c < 2; ++c) {
            const Ints pair = load(w + p * kPanel + 16 * c);
            store(wide + (2 * p) * kPanel + 16 * c, floats(pair & ints(0xFFFF0000u)));
            store(wide + (2 * p + 1) * kPanel + 16 * c, floats(left<16>(pair)));
        }
}

// Writes one tile of x as [k][tile_rows], rounded to bf16 and in chain order for pairs.
static void pack_rows(const ProductCall& call, Path path, long t) {
    if (path == kAmx) return pack_tiles(call, t);
    const long R = call.tile_rows, k = call.k, kp = padded_depth(path, k);
    // all rows of a stretch of k before the next one, so that what is written stays in the first-level cache
    for (long i = 0; i < kp; i += 16)
        for (long r = 0; r < R; ++r) {
            const long row = t * R + r;
            const Lanes v = row < call.rows ? load_first(call.x + row * k + i, k - i, 0.0f) : set(0.0f);
#ifdef __AVX512BF16__
            alignas(32) uint16_t halves[16];
            store_high(halves, round_bits(v));
            uint32_t* to = reinterpret_cast<uint32_t*>(call.packed_x) + (t * kp + i) / 2 * R + r;
            for (long j = 0; j < 8 && i + 2 * j < kp; ++j)
                to[j * R] = static_cast<uint32_t>(halves[2 * j]) | static_cast<uint32_t>(halves[2 * j + 1]) << 16;
#else
            alignas(64) float part[16];
            store(part, path == kPairs ? swap_pairs(floats(round_bits(v))) : v);
            float* to = reinterpret_cast<float*>(call.packed_x) + (t * kp + i) * R + r;
            for (long j = 0; j < 16 && i + j < kp; ++j) to[j * R] = part[j];
#endif
        }
}

static void finish(const ProductCall& call, long row, long column, const float* acc, const float* up) {
    const long left_over = call.n - column;
    float* out = call.out + row * call.n + column;
    for (int c = 0; c < 2; ++c) {
        const long n = left_over - 16 * c;
        if (n <= 0) return;
        Lanes v = load(acc + 16 * c);
        if (up) v = silu(v) * load(up + 16 * c);
        if (call.tiles_out) {  // column is a multiple of 32, as are the columns of a row of tiles
            auto* tiles = reinterpret_cast<uint16_t*>(call.tiles_out) + row / kTile * kTile * call.n + column / 32 * 512;
            store_high(tiles + row % kTile * 32 + 16 * c, round_bits(v));
            continue;
        }
        if (call.bias) v = v + load_first(call.bias + column + 16 * c, n, 0.0f);
        if (call.residual) v = v + load_first(call.residual + row * call.n + column + 16 * c, n, 0.0f);
        store_first(out + 16 * c, n, v);
    }
}

// What one unit covers, and where its outputs' chains stand in scratch.
struct Unit {
    long R, kp, panels, p0, p1, t0, t1, halves, chunk_panels, block_tiles;
    float* scratch;

    Unit(const ProductCall& call, Path path, long unit, float* at) {
        R = call.tile_rows, kp = padded_depth(path, call.k), halves = call.gated ? 2 : 1, scratch = at;
        panels = round_up(call.n, kPanel) / kPanel, chunk_panels = call.chunk_panels, block_tiles = call.block_tiles;
        p0 = unit % call.chunks * chunk_panels, p1 = least(p0 + chunk_panels, panels);
        t0 = unit / call.chunks * block_tiles, t1 = least(t0 + block_tiles, call.tiles);
    }
    float* acc(long half, long p, long t) const {
        return scratch + ((half * chunk_panels + p - p0) * block_tiles + t - t0) * R * kPanel;
    }
    float* beyond() const { return scratch + halves * chunk_panels * block_tiles * R * kPanel; }
};

// The stretch of weights that is multiplied after this one; behind the unit's last comes the next unit's first.
INLINE const char* following(const ProductCall& call, Path path, const Unit& u, long k0, long half, long p) {
    if (++p == u.p1) {
        p = u.p0;
        if (++half == u.halves) half = 0, k0 += call.depth;
        if (k0 >= u.kp) k0 = 0, p = u.p1 < u.panels ? u.p1 : 0;
    }
    return static_cast<const char*>(call.weights) + ((half * u.panels + p) * u.kp + k0) * kPanel * element_bytes(path);
}

// A lone tile meets each weight once and asks for what comes some KiB later; tiles that share a stretch share out the next.
INLINE Ahead ahead_of(const char* weights, long bytes, long steps, const char* next, long rows, long tile, long tiles) {
    if (tiles == 1) return {weights + (rows == 1 ? 4096 : 8192), bytes / steps, 64};
    const long stride = (bytes + steps * tiles - 1) / (steps * tiles);
    return {next + tile * steps * stride, stride, 0};
}

static void product_chains(const ProductCall& call, Path path, const Unit& u) {
    const long R = u.R, kp = u.kp, tiles = u.t1 - u.t0;
    float* wide = u.beyond();
    for (long k0 = 0; k0 < kp; k0 += call.depth) {
        const long k1 = least(k0 + call.depth, kp), bytes = (k1 - k0) * kPanel * element_bytes(path);
        for (long half = 0; half < u.halves; ++half)
            for (long p = u.p0; p < u.p1; ++p) {
                const long panel = half * u.panels + p;  // gated: n is a multiple of the panel
                const char* stretch = static_cast<const char*>(call.weights) + (panel * kp + k0) * kPanel * element_bytes(path);
                const char* next = following(call, path, u, k0, half, p);
                const auto each = [&](auto kind, auto* weights, long steps) {
                    using Kind = decltype(kind);
                    const auto* x = reinterpret_cast<const typename Kind::X*>(call.packed_x);
                    for (long t = u.t0; t < u.t1; ++t)
                        panel_rows<Kind>(R, x + (t * kp + k0) / Kind::kElements * R, weights, steps, u.acc(half, p, t), k0 == 0,
                                         ahead_of(stretch, bytes, steps, next, R, t - u.t0, tiles));
                };
#ifdef __AVX512BF16__
                each(Dots(), reinterpret_cast<const uint32_t*>(stretch), (k1 - k0) / 2);
                (void)wide;
#else
                if (path == kFp32) {
                    each(Chain(), reinterpret_cast<const float*>(stretch), k1 - k0);
                } else if (call.widen) {
                    widen_panel(reinterpret_cast<const uint32_t*>(stretch), (k1 - k0) / 2, wide);
                    each(Chain(), wide, k1 - k0);
                } else {
                    each(Pairs(), reinterpret_cast<const uint32_t*>(stretch), (k1 - k0) / 2);
                }
#endif
            }
    }
}

static void product_tiles(const ProductCall& call, const Unit& u) {
    Tiles tiles;
    const auto* x = reinterpret_cast<const uint16_t*>(call.packed_x);
    const auto* weights = static_cast<const uint16_t*>(call.weights);
    const bool few = u.t1 - u.t0 <= 2;
    for (long k0 = 0; k0 < u.kp; k0 += call.depth) {
        const long steps = (least(k0 + call.depth, u.kp) - k0) / 32;
        for (long half = 0; half < u.halves; ++half)
            for (long p = u.p0; p < u.p1; ++p) {
                const auto* w = weights + ((half * u.panels + p) * u.kp + k0) * kPanel;
                const char* next = following(call, kAmx, u, k0, half, p);
                const long share = round_up(steps * 2048 / ((u.t1 - u.t0 + 1) / 2), 64);
                for (long t = u.t0; t < u.t1; t += 2) {
                    if (!few)
                        for (const char* end = next + share; next < end; next += 64) fetch_far(next);
                    const auto* xt = x + (t * u.kp + k0) * kTile;
                    if (t + 1 < u.t1)
                        panel_tiles<2>(tiles, xt, u.kp * kTile, w, steps, u.acc(half, p, t), k0 == 0, few);
                    else
                        panel_tiles<1>(tiles, xt, 0, w, steps, u.acc(half, p, t), k0 == 0, few);
                }
            }
    }
}

static void product(const ProductCall& call, Path path, long unit, float* scratch) {
    const Unit u(call, path, unit, scratch);
    if (path == kAmx)
        product_tiles(call, u);
    else
        product_chains(call, path, u);
    for (long t = u.t0; t < u.t1; ++t)
        for (long r = 0; r < u.R && t * u.R + r < call.rows; ++r)
            for (long p = u.p0; p < u.p1; ++p)
                finish(call, t * u.R + r, p * kPanel, u.acc(0, p, t) + r * kPanel, call.gated ? u.acc(1, p, t) + r * kPanel : nullptr);
}

// SwiGLU for widths whose halves do not begin at a panel: both [rows][2n] -> out [rows][n].
static void gate(const float* both, float* out, long rows, long n) {
    for (long r = 0; r < rows; ++r)
        for (long i = 0; i < n; i += 16) {
            const Lanes g = load_first(both + r * 2 * n + i, n - i, 0.0f), up = load_first(both + (r * 2 + 1) * n + i, n - i, 0.0f);
            store_first(out + r * n + i, n - i, silu(g) * up);
        }
}
}  // namespace baton::BODY
