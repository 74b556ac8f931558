// Products of int8 and int4 weights. Sums of integers are exact, so only the written order of the fp32 operations behind
// them decides bits: a segment is float(sum) * scale of the row's segment; segments are added as a balanced tree; the
// column's scale comes last. Grouped forms add float(sum) * scale of the row's group, times the column's, group by group
// in ascending order, each fused; then the group's minimum times the row's sum, fused as well.
#pragma once

namespace baton::BODY {

// A unit's work: its panels and tiles (product.h), and where the sums of a half, a panel and a tile stand in scratch.
struct IntegerUnit : Unit {
    const Form& form;
    const Sections at;
    const char* panels_at;

    IntegerUnit(const ProductCall& call, long unit, float* scratch)
        : Unit(call, call.kp, unit, scratch), form(*call.form), at(sections(form)), panels_at(static_cast<const char*>(call.weights)) {}

    const char* panel(long half, long p) const { return panels_at + (half * panels + p) * at.bytes; }
    const char* weights(long half, long p, long k) const { return panel(half, p) + k * kPanel / (has_nibbles(form) ? 2 : 1); }
    // Level 0 holds the sums of the current segment, level 1 and the following the partial sums of the tree.
    float* level(long number, long half, long p, long t) const {
        return acc(half, p, t) + number * halves * chunk_panels * block_tiles * R * kPanel;
    }
};

template <class T> INLINE const T* section(const char* panel, long offset) { return reinterpret_cast<const T*>(panel + offset); }

INLINE Lanes column_scales(const Form& f, const char* at, long first) {
    if (f.scale_type == kScaleFp32) return load(reinterpret_cast<const float*>(at) + first);
    const auto* halves = reinterpret_cast<const uint16_t*>(at) + first;
    return f.scale_type == kScaleFp16 ? widen_fp16(halves) : floats(left<16>(widen_words(halves)));
}

// Adds up the groups [g0, g1) of R rows and C vectors of columns. int4: integers, in `acc` as bits; grouped: fp32.
template <int R, int C, class Group>
static __attribute__((noinline)) void group_tile(const ProductCall& call, const IntegerUnit& u, const char* panel, long c0, long t, long g0, long g1,
                                                 float* acc_at, bool fresh) {
    const Form& f = u.form;
    const bool whole = f.scheme == kInt4;  // int4: sums of integers over all groups
    const long steps = f.group / (4 * Group::kQuads), blocks = u.kp / call.x_block;
    const auto* x = reinterpret_cast<const uint32_t*>(call.packed_x) + (t * u.kp + g0 * f.group) / 4 * kQuadWords * R;
    const auto* w = reinterpret_cast<const uint32_t*>(panel + g0 * f.group * kPanel / (has_nibbles(f) ? 2 : 1)) + c0 * 16;
    const float* x_scales = call.x_scales + t * blocks * R;
    const int32_t* x_sums = call.x_sums + t * u.at.groups * R;
    const Ints table = flip_signs(load_table(f.table));
    for (long g = g0; g < g1; ++g) {
        Lanes acc[R][C];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) acc[r][c] = set(0.0f);
        for (long s = 0; s < steps; ++s) {
            fetch_far(w + 2048);
            Ints raw[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) raw[c] = load(w + 16 * c);
#pragma GCC unroll 2
            for (int quad = 0; quad < Group::kQuads; ++quad) {
                Ints v[C];
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) v[c] = Group::take(raw[c], quad, table);
                add_quads<R, C, 1, R>(acc, x, v);
                x += kQuadWords * R;
            }
            w += kPanel;
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            const long column = g * kPanel + 16 * (c0 + c);
            const int32_t middle = Group::kMiddle ? Group::kMiddle : f.middle;
            Ints zero = ints(static_cast<uint32_t>(middle)), factor = ints(0);
            Lanes scale = set(0.0f), minimum = set(0.0f);
            const bool zeros = whole || f.offset == kZero;
            if (zeros) zero = zero + widen_bytes(section<int8_t>(panel, u.at.offsets) + column);
            if (whole) factor = widen_bytes(section<int8_t>(panel, u.at.factors) + column);
            if (!whole) scale = column_scales(f, panel + u.at.scales, column);
            if (f.offset == kMinimum) minimum = column_scales(f, panel + u.at.offsets, column);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                float* to = acc_at + r * kPanel + 16 * (c0 + c);
                const int32_t x_sum = x_sums[g * R + r];
                const Ints sum = bits(acc[r][c]) - (zeros ? times(zero, ints(static_cast<uint32_t>(x_sum))) : ints(static_cast<uint32_t>(middle * x_sum)));
                if (whole) {
                    const Ints before = fresh && g == g0 ? ints(0) : bits(load(to));
                    store(to, floats(before + times(factor, sum)));
                    continue;
                }
                const Lanes row_scale = set(x_scales[g * R + r]);
                Lanes total = fma(convert(sum) * row_scale, scale, fresh && g == g0 ? set(0.0f) : load(to));
                if (f.offset == kMinimum) total = fma(set(static_cast<float>(x_sum)) * row_scale, minimum, total);
                store(to, total);
            }
        }
    }
}

template <int R, class Group>
INLINE void group_panel(const ProductCall& call, const IntegerUnit& u, const char* panel, long t, long g0, long g1, float* acc, bool fresh) {
    constexpr int C = R <= 2 ? 2 : kTileVectors;
    for (long c = 0; c < 2; c += C) group_tile<R, C, Group>(call, u, panel, c, t, g0, g1, acc, fresh);
}

template <class Group>
static void group_rows(const ProductCall& call, const IntegerUnit& u, const char* panel, long t, long g0, long g1, float* acc, bool fresh) {
    switch (u.R) {
        case 1: return group_panel<1, Group>(call, u, panel, t, g0, g1, acc, fresh);
        case 2: return group_panel<2, Group>(call, u, panel, t, g0, g1, acc, fresh);
        case 4: return group_panel<4, Group>(call, u, panel, t, g0, g1, acc, fresh);
        default: break;
    }
    if constexpr (kTileRows >= 6)
        if (u.R == 6) return group_panel<6, Group>(call, u, panel, t, g0, g1, acc, fresh);
    if constexpr (kTileRows >= 12) {
        if (u.R == 8) return group_panel<8, Group>(call, u, panel, t, g0, g1, acc, fresh);
        if (u.R == 10) return group_panel<10, Group>(call, u, panel, t, g0, g1, acc, fresh);
        if (u.R == 11) return group_panel<11, Group>(call, u, panel, t, g0, g1, acc, fresh);
        if (u.R == 12) return group_panel<12, Group>(call, u, panel, t, g0, g1, acc, fresh);
    }
}

// int4 weights of k0 .. k1 of a panel as bytes: (nibble - zero) * factor + 128.
static void widen_nibbles(const IntegerUnit& u, const char* panel, long k0, long k1, uint32_t* wide) {
    const long group = u.form.group;
    for (long k = k0; k < k1; k += 8)
        for (long c = 0; c < 2; ++c) {
            const long column = k / group * kPanel + 16 * c;
            const Ints zero = spread_bytes(section<int8_t>(panel, u.at.offsets) + column), factor = spread_bytes(section<int8_t>(panel, u.at.factors) + column);
            const Ints w = load(reinterpret_cast<const uint32_t*>(panel + k * kPanel / 2) + 16 * c);
            uint32_t* to = wide + (k - k0) / 4 * kPanel + 16 * c;
            store(to, scaled_bytes(low_nibbles(w), zero, factor));
            store(to + kPanel, scaled_bytes(high_nibbles(w), zero, factor));
        }
}

// Turns the sums of a segment into fp32 and adds them to the tree.
static void end_segment(const ProductCall& call, const IntegerUnit& u, long half, long p, long t, long segment) {
    const long blocks = u.kp / call.x_block, groups = u.kp / call.group, share = groups / u.at.segments;
    const bool whole = !is_grouped(u.form), bytes = u.form.scheme == kInt8 || call.widen;
    for (long r = 0; r < u.R; ++r) {
        int32_t x_sum = 0;
        for (long g = segment * share; bytes && g < (segment + 1) * share; ++g) x_sum += call.x_sums[(t * groups + g) * u.R + r];
        const Ints too_much = ints(static_cast<uint32_t>(kShift * x_sum));
        for (long c = 0; c < 2; ++c) {
            const long i = r * kPanel + 16 * c;
            Lanes v = load(u.acc(half, p, t) + i);
            if (whole) {
                v = convert(bits(v) - too_much) * set(call.x_scales[(t * blocks + segment) * u.R + r]);
            }
            long level = 1;
            for (; segment >> (level - 1) & 1; ++level) v = load(u.level(level, half, p, t) + i) + v;
            store(u.level(level, half, p, t) + i, v);
        }
    }
}

// Writes a panel of a tile's outputs: the column's scale, the gate, bias and residual.
static void write_out(const ProductCall& call, const IntegerUnit& u, long t, long p) {
    long top = 1;
    while (u.at.segments >> top) ++top;
    const bool whole = !is_grouped(u.form);
    const long row0 = t * u.R, rows = least(u.R, call.rows - row0);
    const auto value = [&](long half, long r, long c) {
        const Lanes v = load(u.level(top, half, p, t) + r * kPanel + 16 * c);
        return whole ? v * load(section<float>(u.panel(half, p), u.at.scales) + 16 * c) : v;
    };
    for (long c = 0; c < 2 && p * kPanel + 16 * c < call.n; ++c) {
        const long at = p * kPanel + 16 * c, n = call.n - at;
        const Lanes bias = call.bias ? load_first(call.bias + at, n, 0.0f) : set(0.0f);
        for (long r = 0; r < rows; ++r) {
            Lanes v = call.gated ? silu(value(0, r, c)) * value(1, r, c) : value(0, r, c);
            const long to = (row0 + r) * call.out_row + at;
            if (call.bias) v = v + bias;
            if (call.residual) v = v + load_first(call.residual + to, n, 0.0f);
            store_first(call.out + to, n, v);
        }
    }
}

static void product_integer(const ProductCall& call, long unit, float* scratch) {
    const IntegerUnit u(call, unit, scratch);
    const Form& f = u.form;
    const long length = u.kp / u.at.segments, tiles = u.t1 - u.t0, levels = call.levels;
    auto* wide = reinterpret_cast<uint32_t*>(u.level(levels, 0, u.p0, u.t0));
    const auto* x = reinterpret_cast<const uint32_t*>(call.packed_x);
    for (long segment = 0; segment < u.at.segments; ++segment)
        for (long half = 0; half < u.halves; ++half)
            for (long p = u.p0; p < u.p1; ++p) {
                const char* panel = u.panel(half, p);
                for (long k0 = segment * length; k0 < (segment + 1) * length; k0 += call.depth) {
                    const long k1 = least(k0 + call.depth, (segment + 1) * length);
                    const bool fresh = k0 == segment * length;
                    if (f.scheme == kInt8 || call.widen) {
                        const auto* w = reinterpret_cast<const uint32_t*>(u.weights(half, p, k0));
                        if (call.widen) widen_nibbles(u, panel, k0, k1, wide);
                        const long bytes = (k1 - k0) * kPanel / (call.widen ? 2 : 1), steps = (k1 - k0) / 4;
                        const char* next = reinterpret_cast<const char*>(w) + bytes;  // also where the next panel begins, but for scales
                        for (long t = u.t0; t < u.t1; ++t) {
                            const uint32_t* rows = x + (t * u.kp + k0) / 4 * kQuadWords * u.R;
                            if (tiles == 1 && !call.widen)
                                lone_tile<Quads>(u.R, rows, w, steps, u.acc(half, p, t), fresh, next);
                            else
                                panel_rows<Quads>(u.R, rows, call.widen ? wide : w, steps, u.acc(half, p, t), fresh, shared_ahead(next, bytes, steps, t - u.t0, tiles));
                        }
                        continue;
                    }
                    const long g0 = k0 / f.group, g1 = k1 / f.group;
                    for (long t = u.t0; t < u.t1; ++t) {
                        if (!has_nibbles(f))
                            group_rows<GroupBytes>(call, u, panel, t, g0, g1, u.acc(half, p, t), fresh);
                        else if (f.tabled)
                            group_rows<GroupTable>(call, u, panel, t, g0, g1, u.acc(half, p, t), fresh);
                        else
                            group_rows<GroupNibbles>(call, u, panel, t, g0, g1, u.acc(half, p, t), fresh);
                    }
                }
                for (long t = u.t0; t < u.t1; ++t) end_segment(call, u, half, p, t, segment);
            }
    for (long t = u.t0; t < u.t1; ++t)
        for (long p = u.p0; p < u.p1; ++p) write_out(call, u, t, p);
}
}  // namespace baton::BODY
