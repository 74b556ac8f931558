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
    const char* weights(long half, long p, long k) const { return panel(half, p) + weights_at(form, at, k); }
    // Level 0 holds the sums of the current segment, level 1 and the following the partial sums of the tree, if there is one.
    float* level(long number, long half, long p, long t) const {
        return acc(half, p, t) + number * halves * chunk_panels * block_tiles * R * kPanel;
    }
};

constexpr long kNearBytes = 6144;       // so far ahead a single tile prefetches groups
constexpr long kPairNearBytes = 16384;  // ... and the first of two, which take turns on short stretches

template <class T> INLINE const T* section(const char* panel, long offset) { return reinterpret_cast<const T*>(panel + offset); }

INLINE Lanes column_scales(const Form& f, const char* at, long first) {
    if (f.scale_type == kScaleFp32) return load(reinterpret_cast<const float*>(at) + first);
    const auto* halves = reinterpret_cast<const uint16_t*>(at) + first;
    return f.scale_type == kScaleFp16 ? widen_fp16(halves) : floats(left<16>(widen_words(halves)));
}

// What follows the integer sum of a group: a scale; before it a zero, or after it a minimum; or a small integer factor.
enum class Ends { kScale, kZero, kMinimum, kFactor };

// Adds up the groups [g0, g1) of R rows and C vectors of columns. Totals live in registers beside the sums of a group;
// those of int4 are integers, as bits. A sum begins with what its unsigned weights have too much.
template <int R, int C, class Group, Ends kEnds>
static __attribute__((noinline)) void group_tile(const ProductCall& call, const IntegerUnit& u, const char* panel, long c0, long t, long g0, long g1,
                                                 float* acc_at, bool fresh, Ahead ahead) {
    const Form& f = u.form;
    const long steps = f.group / (4 * Group::kQuads), blocks = u.kp / call.x_block;
    const auto* x = reinterpret_cast<const uint32_t*>(call.packed_x) + (t * u.kp + g0 * f.group) / 4 * kQuadWords * R;
    const float* x_scales = call.x_scales + (t * blocks + (kEnds == Ends::kFactor ? 0 : g0)) * R;
    const int32_t* x_sums = call.x_sums + (t * u.at.groups + g0) * R;
    const int32_t* begins = call.x_begins + (t * u.at.groups + g0) * R;
    const Ints table = flip_signs(load_table(f.table));
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

// int4 weights of k0 .. k1 of a panel as bytes: (nibble - zero) * factor + 128.
static void widen_nibbles(const IntegerUnit& u, const char* panel, long k0, long k1, uint32_t* wide) {
    for (long k = k0; k < k1; k += 8)
        for (long c = 0; c < 2; ++c) {
            const char* group = panel + k / u.at.k * u.at.stride;
            const Ints zero = spread_bytes(section<int8_t>(group, u.at.offsets) + 16 * c), factor = spread_bytes(section<int8_t>(group, u.at.factors) + 16 * c);
            const Ints w = load(reinterpret_cast<const uint32_t*>(panel + weights_at(u.form, u.at, k)) + 16 * c);
            uint32_t* to = wide + (k - k0) / 4 * kPanel + 16 * c;
            store(to, scaled_bytes(low_nibbles(w), zero, factor));
            store(to + kPanel, scaled_bytes(high_nibbles(w), zero, factor));
        }
}

// Turns the sums of a segment into fp32 and adds them to the tree.
static void end_segment(const ProductCall& call, const IntegerUnit& u, long half, long p, long t, long segment) {
    const long blocks = u.kp / call.x_block, groups = u.kp / call.group, share = groups / u.at.segments;
    const bool whole = !is_grouped(u.form), bytes = u.form.scheme == kInt8 || call.widen;
    if (!whole && u.at.segments == 1) return;
    for (long r = 0; r < u.R; ++r) {
        int32_t x_sum = 0;
        for (long g = segment * share; bytes && g < (segment + 1) * share; ++g) x_sum += call.x_sums[(t * groups + g) * u.R + r];
        const Ints too_much = ints(static_cast<uint32_t>(kShift * x_sum));
        for (long c = 0; c < 2; ++c) {
            const long i = r * kPanel + 16 * c;
            Lanes v = load(u.acc(half, p, t) + i);
            if (whole) v = convert(bits(v) - too_much) * set(call.x_scales[(t * blocks + segment) * u.R + r]);
            long level = 0;
            if (u.at.segments > 1)
                for (level = 1; segment >> (level - 1) & 1; ++level) v = load(u.level(level, half, p, t) + i) + v;
            store(u.level(level, half, p, t) + i, v);
        }
    }
}

// Writes a panel of a tile's outputs: the column's scale, the gate, bias and residual.
static void write_out(const ProductCall& call, const IntegerUnit& u, long t, long p) {
    long top = 0;  // the level of the whole sum
    if (u.at.segments > 1)
        for (top = 1; u.at.segments >> top; ++top) {}
    const bool whole = !is_grouped(u.form);
    const long row0 = t * u.R, rows = least(u.R, call.rows - row0);
    const auto value = [&](long half, long r, long c) {
        const Lanes v = load(u.level(top, half, p, t) + r * kPanel + 16 * c);
        return whole ? v * load(section<float>(u.panel(half, p), u.at.columns) + 16 * c) : v;
    };
    for (long c = 0; c < 2 && p * kPanel + 16 * c < call.n; ++c) {
        const long at = p * kPanel + 16 * c, n = call.n - at;
        const Lanes bias = call.bias ? load_first(call.bias + at, n, 0.0f) : set(0.0f);
        for (long r = 0; r < rows; ++r) {
            Lanes v = call.gated ? gated(value(0, r, c), value(1, r, c), call.activation) : value(0, r, c);
            const long to = (row0 + r) * call.out_row + at;
            if (call.bias) v = v + bias;
            if (call.residual) v = v + load_first(call.residual + to, n, 0.0f);
            store_first(call.out + to, n, v);
        }
    }
}

// Where the thread reads on after a panel: in the next one of the unit or, most likely, of the next unit. Null: nowhere.
INLINE const char* panel_after(const IntegerUnit& u, long half, long p, const char* after) {
    if (++p == u.p1 && ++half < u.halves) p = u.p0;
    return p >= u.panels && after ? after : u.panel(half % u.halves, p < u.panels ? p : u.p0);
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
    const long length = u.kp / u.at.segments;
    const bool lone = u.t1 - u.t0 == 1;  // a single tile reads a panel as it lies, several a segment of one panel after the other
    auto* wide = reinterpret_cast<uint32_t*>(u.level(call.levels, 0, u.p0, u.t0));
    const auto add_segment = [&](long segment, long half, long p) {
        const long from = segment * length, to = from + length;
        for (long k = from; k < to; k += call.depth) {
            const long end = least(k + call.depth, to);
            const char* next = end < (lone ? u.kp : to) ? u.weights(half, p, end) : panel_after(u, half, p, call.after) + weights_at(u.form, u.at, lone ? 0 : from);
            add_stretch(call, u, half, p, k, end, k == from, next, wide);
        }
        for (long t = u.t0; t < u.t1; ++t) end_segment(call, u, half, p, t, segment);
    };
    if (lone) {
        for (long half = 0; half < u.halves; ++half)
            for (long p = u.p0; p < u.p1; ++p)
                for (long segment = 0; segment < u.at.segments; ++segment) add_segment(segment, half, p);
    } else {
        for (long segment = 0; segment < u.at.segments; ++segment)
            for (long half = 0; half < u.halves; ++half)
                for (long p = u.p0; p < u.p1; ++p) add_segment(segment, half, p);
    }
    for (long t = u.t0; t < u.t1; ++t)
        for (long p = u.p0; p < u.p1; ++p) write_out(call, u, t, p);
}
}  // namespace baton::BODY
