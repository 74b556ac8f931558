// The inner loops of integer products without tiles: R rows by one or two vectors of columns, whose sums live in registers.
// A step multiplies four bytes of weights of each of sixteen columns by four int8 of a row, and adds to an int32.
#pragma once

namespace baton::BODY {
constexpr long kGroupRows = kTileRows < 6 ? kTileRows : 6;  // rows whose sums and totals have room in registers together

#ifdef BATON_BYTE_DOTS
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

// A kind of `tile` (tile.h): bytes of weights, whose sums run over a whole segment.
struct Quads {
    using X = uint32_t;
    using W = uint32_t;
    static constexpr int kPerStep = kQuadWords, kElements = 1;
    template <int R, int C, int XR, int XK>
    INLINE void step(Lanes (&acc)[R][C], const X* x, const W* w, long apart) {
        Ints v[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) v[c] = multiplied(load(w + c * apart));
        add_quads<R, C, XR, XK>(acc, x, v);
    }
};

// Weights of a group: each reads `kQuads` times four k per step from a vector of words per sixteen columns, as bytes
// that are too large (form.h says by how much).
struct GroupBytes {
    static constexpr int kQuads = 1;
    INLINE Ints take(Ints w, int, Ints) { return multiplied(w); }
};
struct GroupNibbles {
    static constexpr int kQuads = 2;
    INLINE Ints take(Ints w, int quad, Ints) { return quad ? high_nibbles(w) : low_nibbles(w); }
};
struct GroupTable {
    static constexpr int kQuads = 2;
    INLINE Ints take(Ints w, int quad, Ints table) { return look_up(table, quad ? high_nibbles(w) : low_nibbles(w)); }
};

constexpr long kNearBytes = 6144;       // so far ahead a single tile prefetches groups
constexpr long kPairNearBytes = 16384;  // ... and the first of two, which take turns on short stretches

// Adds up the groups [g0, g1) of R rows and C vectors of columns. Totals live in registers beside the sums of a group;
// those of int4 are integers, as bits. A sum begins with what its weights have too much.
template <int R, int C, class Group, Ends kEnds>
static __attribute__((noinline)) void group_tile(const ProductCall& call, const IntegerUnit& u, const char* panel, long c0, long t, long g0, long g1,
                                                 float* acc_at, bool fresh, Ahead ahead) {
    const Form& f = u.form;
    const long steps = f.group / (4 * Group::kQuads), blocks = u.kp / call.x_block;
    const auto* x = reinterpret_cast<const uint32_t*>(call.packed_x) + (t * u.kp + g0 * f.group) / 4 * kQuadWords * R;
    const float* x_scales = call.x_scales + (t * blocks + (kEnds == Ends::kFactor ? 0 : g0)) * R;
    const int32_t* x_sums = call.x_sums + (t * u.at.groups + g0) * R;
    const int32_t* begins = call.x_begins + (t * u.at.groups + g0) * R;
    const Ints table = multiplied(flip_signs(load_table(f.table)));
    const char* group = panel + g0 * u.at.stride;
    Lanes total[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) total[r][c] = fresh ? set(0.0f) : load(acc_at + r * kPanel + 16 * (c0 + c));
    if (!ahead.at) ahead.at = group;
    for (long g = g0; g < g1; ++g, group += u.at.stride, x_scales += R, x_sums += R, begins += R) {
        const auto* w = reinterpret_cast<const uint32_t*>(group) + c0 * 16;
        Lanes sum[R][C];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) sum[r][c] = floats(ints(static_cast<uint32_t>(begins[r])));
        for (long s = 0; s < steps; ++s) {
            fetch_far(ahead.at);
            fetch_far(ahead.at + ahead.second);
            ahead.at += ahead.stride;
            Ints raw[C];
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) raw[c] = load(w + 16 * c);
#pragma GCC unroll 2
            for (int quad = 0; quad < Group::kQuads; ++quad) {
                Ints v[C];
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) v[c] = Group::take(raw[c], quad, table);
                add_quads<R, C, 1, R>(sum, x, v);
                x += kQuadWords * R;
            }
            w += kPanel;
        }
        if (ahead.second)  // what belongs to the weights
            for (long i = u.at.scales; i < u.at.stride; i += 64, ahead.at += 64) fetch_far(ahead.at);
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            const long column = 16 * (c0 + c);
            Lanes scale = set(0.0f), minimum = set(0.0f);
            Ints zero = ints(0), factor = ints(0);
            if (kEnds != Ends::kFactor) scale = column_scales(f, group + u.at.scales, column);
            if (kEnds == Ends::kMinimum) minimum = column_scales(f, group + u.at.offsets, column);
            if (kEnds == Ends::kZero || kEnds == Ends::kFactor) zero = widen_bytes(section<int8_t>(group, u.at.offsets) + column);
            if (kEnds == Ends::kFactor) factor = widen_bytes(section<int8_t>(group, u.at.factors) + column);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                Ints all = bits(sum[r][c]);
                if (kEnds == Ends::kZero || kEnds == Ends::kFactor) all = all - times(zero, ints(static_cast<uint32_t>(x_sums[r])));
                if (kEnds == Ends::kFactor) {
                    total[r][c] = floats(bits(total[r][c]) + times(factor, all));
                    continue;
                }
                const Lanes row_scale = set(x_scales[r]);
                total[r][c] = fma(convert(all) * row_scale, scale, total[r][c]);
                if (kEnds == Ends::kMinimum) total[r][c] = fma(set(static_cast<float>(x_sums[r])) * row_scale, minimum, total[r][c]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) store(acc_at + r * kPanel + 16 * (c0 + c), total[r][c]);
}

template <int R, class Group, Ends kEnds>
INLINE void group_panel(const ProductCall& call, const IntegerUnit& u, const char* panel, long t, long g0, long g1, float* acc, bool fresh, Ahead ahead) {
    constexpr int C = R <= 2 ? 2 : kTileVectors;
    for (long c = 0; c < 2; c += C, ahead = {}) group_tile<R, C, Group, kEnds>(call, u, panel, c, t, g0, g1, acc, fresh, ahead);
}

template <class Group, Ends kEnds>
static void group_rows(const ProductCall& call, const IntegerUnit& u, const char* panel, long t, long g0, long g1, float* acc, bool fresh, Ahead ahead) {
    switch (u.R) {
        case 1: return group_panel<1, Group, kEnds>(call, u, panel, t, g0, g1, acc, fresh, ahead);
        case 2: return group_panel<2, Group, kEnds>(call, u, panel, t, g0, g1, acc, fresh, ahead);
        case 4: return group_panel<4, Group, kEnds>(call, u, panel, t, g0, g1, acc, fresh, ahead);
        default: break;
    }
    if constexpr (kGroupRows >= 6)
        if (u.R == 6) return group_panel<6, Group, kEnds>(call, u, panel, t, g0, g1, acc, fresh, ahead);
}

// Adds the products of the inputs k0 .. k1 of a panel to the sums of the unit's rows. `next` is read after them.
static void add_stretch(const ProductCall& call, const IntegerUnit& u, long half, long p, long k0, long k1, bool fresh, const char* next, uint32_t* wide) {
    const Form& f = u.form;
    const char* panel = u.panel(half, p);
    const long tiles = u.t1 - u.t0, bytes = weights_at(f, u.at, k1) - weights_at(f, u.at, k0);
    if (f.scheme == kInt8 || call.widen) {
        const auto* x = reinterpret_cast<const uint32_t*>(call.packed_x);
        const auto* w = reinterpret_cast<const uint32_t*>(u.weights(half, p, k0));
        if (call.widen) widen_nibbles(u, panel, k0, k1, wide);
        const long steps = (k1 - k0) / 4;
        for (long t = u.t0; t < u.t1; ++t) {
            const uint32_t* rows = x + (t * u.kp + k0) / 4 * kQuadWords * u.R;
            if (tiles == 1 && !call.widen)
                lone_tile<Quads>(u.R, rows, w, steps, u.acc(half, p, t), fresh, next);
            else
                panel_rows<Quads>(u.R, rows, call.widen ? wide : w, steps, u.acc(half, p, t), fresh, shared_ahead(next, bytes, steps, t - u.t0, tiles));
        }
        return;
    }
    const auto add = [&](long t, long g0, long g1, bool begins, Ahead ahead) {
        const auto rows = [&](auto function) { function(call, u, panel, t, g0, g1, u.acc(half, p, t), begins, ahead); };
        const bool zero = f.offset == kZero, minimum = f.offset == kMinimum;
        if (f.scheme == kInt4) return rows(group_rows<GroupNibbles, Ends::kFactor>);
        if (!has_nibbles(f)) return rows(zero ? group_rows<GroupBytes, Ends::kZero> : minimum ? group_rows<GroupBytes, Ends::kMinimum> : group_rows<GroupBytes, Ends::kScale>);
        if (f.tabled) return rows(minimum ? group_rows<GroupTable, Ends::kMinimum> : group_rows<GroupTable, Ends::kScale>);
        rows(zero ? group_rows<GroupNibbles, Ends::kZero> : minimum ? group_rows<GroupNibbles, Ends::kMinimum> : group_rows<GroupNibbles, Ends::kScale>);
    };
    const long g0 = k0 / f.group, g1 = k1 / f.group;
    if (tiles == 1) {  // as lone_tile
        const long near = least(g1 - g0, kNearBytes / u.at.stride), split = g1 - near;
        if (g0 < split) add(u.t0, g0, split, fresh, {panel + (g0 + near) * u.at.stride, 128, 64});
        return add(u.t0, split, g1, fresh && g0 == split, {next, 128, 64});
    }
    const long steps = (g1 - g0) * weight_bytes(f, f.group) / 128;
    const Ahead near = {panel + g0 * u.at.stride + kPairNearBytes, 128, 64};
    for (long t = u.t0; t < u.t1; ++t)
        add(t, g0, g1, fresh, tiles > 2 ? shared_ahead(next, bytes, steps, t - u.t0, tiles) : t == u.t0 ? near : Ahead{});
}

static void product_integer(const ProductCall& call, long unit, float* scratch) {
    const IntegerUnit u(call, unit, scratch);
    integer_unit(call, u, u.t1 - u.t0 == 1, [&](long half, long p, long k0, long k1, bool fresh, const char* next) {
        add_stretch(call, u, half, p, k0, k1, fresh, next, u.wide(call));
    });
    write_out(call, u);
}
}  // namespace baton::BODY
