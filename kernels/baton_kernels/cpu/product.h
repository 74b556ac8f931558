// Matrix product on packed weights. A unit is some row tiles times some panels; it walks k in ascending stretches, keeps
// every output's chain in scratch between them, and ends with bias, residual or the gate of an MLP.
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

#ifdef __AVX512BF16__
constexpr long kWordElements = 2;  // chain elements in a word of packed activations
#else
constexpr long kWordElements = 1;
#endif

INLINE void put_words(Ints (&rows)[16], long R, long words, uint32_t* to) {
    if (R == 1) return store_first(reinterpret_cast<float*>(to), words, floats(rows[0]));
    transpose(rows);
    for (long j = 0; j < words; ++j) store_first(reinterpret_cast<float*>(to + j * R), R, floats(rows[j]));
}

// Up to 32 elements of R rows, rounded to bf16 and in chain order for pairs, as a tile reads them: [word][R]. value(r, c)
// returns the elements of row r from 16 * c on.
template <class Value>
INLINE void put_rows(Path path, long R, long elements, uint32_t* to, Value value) {
    Ints rows[16];
    for (long r = R; r < 16; ++r) rows[r] = ints(0);
#ifdef __AVX512BF16__
    (void)path;
    for (long r = 0; r < R; ++r) rows[r] = join_high(round_bits(value(r, 0)), round_bits(value(r, 1)));
    put_words(rows, R, least(16, elements / 2), to);
#else
    for (long c = 0; 16 * c < elements; ++c) {
        for (long r = 0; r < R; ++r) rows[r] = bits(path == kPairs ? swap_pairs(floats(round_bits(value(r, c)))) : value(r, c));
        put_words(rows, R, least(16, elements - 16 * c), to + 16 * c * R);
    }
#endif
}

#ifndef BATON_QUADS_ONLY
// Writes one tile of x.
static void pack_rows(const ProductCall& call, Path path, long t) {
#ifndef BATON_PAIRS_ONLY
    if (path == kAmx) return pack_tiles(call, t);
#endif
#ifndef BATON_TILES_ONLY
    const long R = call.tile_rows, k = call.k, kp = padded_depth(path, k), rows = least(R, call.rows - t * R);
    // all rows of a stretch of k before the next stretch, so that the written data stays in the first-level cache
    for (long i = 0; i < kp; i += 32)
        put_rows(path, R, least(32, kp - i), reinterpret_cast<uint32_t*>(call.packed_x) + (t * kp + i) / kWordElements * R, [&](long r, long c) {
            const long at = i + 16 * c;
            return r < rows && at < k ? load_first(row_of(call, t * R + r) + at, k - at, 0.0f) : set(0.0f);
        });
#endif
}

#endif

// The tiles and panels of one unit, and the place of its outputs' chains in scratch.
struct Unit {
    long R, kp, panels, p0, p1, t0, t1, halves, chunk_panels, block_tiles;
    float* scratch;

    Unit(const ProductCall& call, long depth, long unit, float* at) {
        R = call.tile_rows, kp = depth, halves = call.gated ? 2 : 1, scratch = at;
        panels = round_up(call.n, kPanel) / kPanel, chunk_panels = call.chunk_panels, block_tiles = call.block_tiles;
        p0 = unit % call.chunks * chunk_panels, p1 = least(p0 + chunk_panels, panels);
        t0 = unit / call.chunks * block_tiles, t1 = least(t0 + block_tiles, call.tiles);
    }
    float* acc(long half, long p, long t) const {
        return scratch + ((half * chunk_panels + p - p0) * block_tiles + t - t0) * R * kPanel;
    }
    float* beyond() const { return scratch + halves * chunk_panels * block_tiles * R * kPanel; }
};

// The stretch of weights that this thread multiplies after this one; after the last stretch of a unit, the first stretch
// of the unit that the thread most likely takes next, which is the next call's behind the last panel. Null: unknown.
INLINE const char* following(const ProductCall& call, Path path, const Unit& u, long k0, long half, long p) {
    if (++p == u.p1) {
        p = u.p0;
        if (++half == u.halves) half = 0, k0 += call.depth;
        if (k0 >= u.kp) k0 = 0, p = u.p1;
        if (p >= u.panels) return call.after;
    }
    return static_cast<const char*>(call.weights) + ((half * u.panels + p) * u.kp + k0) * kPanel * element_bytes(path);
}

// Tiles that share a stretch of weights divide the prefetch of the next one among themselves.
INLINE Ahead shared_ahead(const char* next, long bytes, long steps, long tile, long tiles) {
    const long stride = (bytes + steps * tiles - 1) / (steps * tiles);
    return next ? Ahead{next + tile * steps * stride, stride, 0} : Ahead{};
}

// A single tile uses each weight once: it prefetches the weights some KiB ahead, and at the end the next stretch.
template <class Kind>
INLINE void lone_tile(long rows, const typename Kind::X* x, const typename Kind::W* w, long steps, float* acc, bool fresh, const char* next) {
    constexpr long kStepBytes = kPanel * sizeof(typename Kind::W);
    const long near = rows <= 2 ? 4096 : 8192, last = least(steps, near / kStepBytes), before = steps - last;
    if (before) panel_rows<Kind>(rows, x, w, before, acc, fresh, {reinterpret_cast<const char*>(w) + near, kStepBytes, 64});
    const Ahead ahead = next ? Ahead{next, kStepBytes, 64} : Ahead{};
    panel_rows<Kind>(rows, x + before * Kind::kPerStep * rows, w + before * kPanel, last, acc, fresh && before == 0, ahead);
}

#if !defined(BATON_TILES_ONLY) && !defined(BATON_QUADS_ONLY)
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
                    const auto* rows = reinterpret_cast<const typename Kind::X*>(call.packed_x) + k0 / Kind::kElements * R;
                    if (tiles == 1) return lone_tile<Kind>(R, rows + u.t0 * kp / Kind::kElements * R, weights, steps, u.acc(half, p, u.t0), k0 == 0, next);
                    for (long t = u.t0; t < u.t1; ++t)
                        panel_rows<Kind>(R, rows + t * kp / Kind::kElements * R, weights, steps, u.acc(half, p, t), k0 == 0,
                                         shared_ahead(next, bytes, steps, t - u.t0, tiles));
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

#endif

#if !defined(BATON_PAIRS_ONLY) && !defined(BATON_QUADS_ONLY)
static void product_tiles(const ProductCall& call, const Unit& u) {
    Tiles tiles;
    const auto* weights = static_cast<const char*>(call.weights);
    const long shares = u.t1 - u.t0;
    for (long k0 = 0; k0 < u.kp; k0 += call.depth) {
        const long steps = (least(k0 + call.depth, u.kp) - k0) / 32, bytes = steps * kPanelStep;
        for (long half = 0; half < u.halves; ++half)
            for (long p = u.p0; p < u.p1; ++p) {
                const char* w = weights + ((half * u.panels + p) * u.kp + k0) * kPanel * 2;
                const char* next = following(call, kAmx, u, k0, half, p);
                for (long t = u.t0; t < u.t1; ++t)
                    panel_tiles<PairTiles>(tiles, call.packed_x + (t * u.kp + k0) * kTile * 2, w, steps, u.acc(half, p, t), k0 == 0,
                                           shares == 1 ? near_ahead(w) : shared_ahead(next, bytes, steps, t - u.t0, shares));
            }
    }
}

#endif

#ifndef BATON_QUADS_ONLY
// Finishes one panel of a tile's outputs: bias, residual or gate, then the write.
static void finish(const ProductCall& call, [[maybe_unused]] Path path, const Unit& u, long t, long p) {
    const long column = p * kPanel, row0 = t * u.R, rows = least(u.R, call.rows - row0);
    const float *acc = u.acc(0, p, t), *up = call.gated ? u.acc(1, p, t) : nullptr;
    const auto value = [&](long r, long c) {
        const Lanes v = load(acc + r * kPanel + 16 * c);
        return up ? gated(v, load(up + r * kPanel + 16 * c), call.activation) : v;
    };
#ifndef BATON_TILES_ONLY
    if (call.into && path != kAmx)
        return put_rows(path, u.R, kPanel, reinterpret_cast<uint32_t*>(call.into->packed_x) + (t * call.n + column) / kWordElements * u.R, value);
#endif
    for (long c = 0; c < 2 && column + 16 * c < call.n; ++c) {
        const long at = column + 16 * c, n = call.n - at;
        const Lanes bias = call.bias ? load_first(call.bias + at, n, 0.0f) : set(0.0f);
        for (long r = 0; r < rows; ++r) {
            Lanes v = value(r, c);
            if (call.into) {  // column is a multiple of 32, as are the columns of a row of tiles
                auto* tiles = reinterpret_cast<uint16_t*>(call.into->packed_x) + row0 * call.n + column / 32 * 512;
                store_high(tiles + r * 32 + 16 * c, round_bits(v));
                continue;
            }
            const long to = (row0 + r) * call.out_row + at;
            if (call.bias) v = v + bias;
            if (call.residual) v = v + (n >= 16 ? load(call.residual + to) : load_first(call.residual + to, n, 0.0f));
            if (n >= 16)
                store(call.out + to, v);
            else
                store_first(call.out + to, n, v);
        }
    }
}

static void product(const ProductCall& call, Path path, long unit, float* scratch) {
    const Unit u(call, padded_depth(path, call.k), unit, scratch);
#if defined(BATON_TILES_ONLY)
    product_tiles(call, u);
#elif defined(BATON_PAIRS_ONLY)
    product_chains(call, path, u);
#else
    if (path == kAmx)
        product_tiles(call, u);
    else
        product_chains(call, path, u);
#endif
    for (long t = u.t0; t < u.t1; ++t)
        for (long p = u.p0; p < u.p1; ++p) finish(call, path, u, t, p);
}

#endif

#ifdef BATON_ALL
// The gate for widths whose halves do not begin at a panel: both [rows][2n] -> out [rows][n].
static void gate(const float* both, float* out, long rows, long n, int activation) {
    for (long r = 0; r < rows; ++r)
        for (long i = 0; i < n; i += 16) {
            const Lanes g = load_first(both + r * 2 * n + i, n - i, 0.0f), up = load_first(both + (r * 2 + 1) * n + i, n - i, 0.0f);
            store_first(out + r * n + i, n - i, gated(g, up, activation));
        }
}

static void activate(float* x, long n, int activation) {
    for (long i = 0; i < n; i += 16) store_first(x + i, n - i, activated(load_first(x + i, n - i, 0.0f), activation));
}
#endif
}  // namespace baton::BODY
