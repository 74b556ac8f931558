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
    // Room for the widened weights of a stretch.
    uint32_t* wide(const ProductCall& call) const { return reinterpret_cast<uint32_t*>(level(call.levels, 0, p0, t0)); }
};

template <class T> INLINE const T* section(const char* panel, long offset) { return reinterpret_cast<const T*>(panel + offset); }

INLINE Lanes column_scales(const Form& f, const char* at, long first) {
    if (f.scale_type == kScaleFp32) return load(reinterpret_cast<const float*>(at) + first);
    const auto* halves = reinterpret_cast<const uint16_t*>(at) + first;
    return f.scale_type == kScaleFp16 ? widen_fp16(halves) : floats(left<16>(widen_words(halves)));
}

// What follows the integer sum of a group: a scale; before it a zero, or after it a minimum; or a small integer factor.
enum class Ends { kScale, kZero, kMinimum, kFactor };

// Calls `put` with the nibbles of the groups k0 .. k1 of a panel, sixteen columns and four k at a time, and the place of their bytes in
// `wide`. `of_group` returns what `put` needs to know of a group and its columns. Weights are fetched `near` bytes early, unless it is 0.
template <class OfGroup, class Put>
INLINE void each_nibbles(const IntegerUnit& u, const char* panel, long k0, long k1, uint32_t* wide, long near, OfGroup of_group, Put put) {
    for (long k = k0; k < k1; k += u.at.k) {
        const char* group = panel + k / u.at.k * u.at.stride;
        for (long line = u.at.scales; near && line < u.at.stride; line += 64) fetch_far(group + near + line);
        for (long c = 0; c < 2; ++c) {
            const auto known = of_group(group, 16 * c);
            const auto* w = reinterpret_cast<const uint32_t*>(group) + 16 * c;
            uint32_t* to = wide + (k - k0) / 4 * kPanel + 16 * c;
            for (long i = 0; i < u.at.k; i += 8, w += kPanel, to += 2 * kPanel) {
                const Ints both = load(w);
                if (near) fetch_far(reinterpret_cast<const char*>(w) + near);
                store(to, put(low_nibbles(both), known));
                store(to + kPanel, put(high_nibbles(both), known));
            }
        }
    }
}

// int4 weights of k0 .. k1 of a panel as bytes: (nibble - zero) * factor + 128.
static void widen_nibbles(const IntegerUnit& u, const char* panel, long k0, long k1, uint32_t* wide, long near = 0) {
    const auto of_group = [&](const char* group, long column) {
        const Ints zero = widen_bytes(section<int8_t>(group, u.at.offsets) + column), factor = widen_bytes(section<int8_t>(group, u.at.factors) + column);
        return ScaledBytes(zero, factor);
    };
    each_nibbles(u, panel, k0, k1, wide, near, of_group, [](Ints nibbles, const ScaledBytes& scaled) { return scaled(nibbles); });
}

// What the sums of a segment have too much, where weights are bytes that are 128 too large: 128 times the sum of each row.
static void excess_of(const ProductCall& call, const IntegerUnit& u, long t, long segment, uint32_t* excess) {
    const long groups = u.kp / call.group, share = groups / u.at.segments;
    const int32_t* sums = call.x_sums + (t * groups + segment * share) * u.R;
    Ints all = ints(0);
    for (long g = 0; g < share; ++g) all = all + bits(load_first(reinterpret_cast<const float*>(sums + g * u.R), u.R, 0.0f));
    store(excess, times(all, ints(static_cast<uint32_t>(kByteExcess))));
}

// Turns the sums of a segment into fp32 and adds them to the tree.
static void end_segment(const ProductCall& call, const IntegerUnit& u, long half, long p, long t, long segment) {
    const long blocks = u.kp / call.x_block;
    const bool whole = !is_grouped(u.form);
    if (!whole && u.at.segments == 1) return;
    alignas(64) uint32_t excess[16] = {};
    if (whole && (u.form.scheme == kInt8 || call.widen)) excess_of(call, u, t, segment, excess);
    long level = 0;
    if (u.at.segments > 1)
        for (level = 1; segment >> (level - 1) & 1; ++level) {}
    const float* scales = call.x_scales + (t * blocks + segment) * u.R;
    const float* sums = u.acc(half, p, t);
    const long apart = u.level(1, half, p, t) - sums;
    float* to = u.level(level, half, p, t);
    for (long r = 0; r < u.R; ++r)
        for (long i = r * kPanel; i < (r + 1) * kPanel; i += 16) {
            Lanes v = load(sums + i);
            if (whole) v = convert(bits(v) - ints(excess[r])) * set(scales[r]);
            for (long before = 1; before < level; ++before) v = load(sums + before * apart + i) + v;
            store(to + i, v);
        }
}

// The outputs of a unit, as its chains leave them: the column's scale, and the gate.
struct Outputs {
    const ProductCall& call;
    const IntegerUnit& u;
    long top = 0;  // the level of the whole sum
    bool whole;

    Outputs(const ProductCall& made, const IntegerUnit& unit) : call(made), u(unit), whole(!is_grouped(unit.form)) {
        if (u.at.segments > 1)
            for (top = 1; u.at.segments >> top; ++top) {}
    }
    Lanes half(long number, long t, long p, long r, long c) const {
        const Lanes v = load(u.level(top, number, p, t) + r * kPanel + 16 * c);
        return whole ? v * load(section<float>(u.panel(number, p), u.at.columns) + 16 * c) : v;
    }
    Lanes operator()(long t, long p, long r, long c) const {
        return call.gated ? gated(half(0, t, p, r, c), half(1, t, p, r, c), call.activation) : half(0, t, p, r, c);
    }
};

// Writes a panel of a tile's outputs, with bias and residual.
static void write_panel(const ProductCall& call, const IntegerUnit& u, const Outputs& outputs, long t, long p) {
    const long row0 = t * u.R, rows = least(u.R, call.rows - row0);
    for (long c = 0; c < 2 && p * kPanel + 16 * c < call.n; ++c) {
        const long at = p * kPanel + 16 * c, n = call.n - at;
        const Lanes bias = call.bias ? load_first(call.bias + at, n, 0.0f) : set(0.0f);
        for (long r = 0; r < rows; ++r) {
            Lanes v = outputs(t, p, r, c);
            const long to = (row0 + r) * call.out_row + at;
            if (call.bias) v = v + bias;
            if (call.residual) v = v + load_first(call.residual + to, n, 0.0f);
            store_first(call.out + to, n, v);
        }
    }
}

static void write_out(const ProductCall& call, const IntegerUnit& u) {
    const Outputs outputs(call, u);
    for (long t = u.t0; t < u.t1; ++t)
        for (long p = u.p0; p < u.p1; ++p) write_panel(call, u, outputs, t, p);
}

// Where the thread reads on after a panel: in the next one of the unit or, most likely, of the next unit, or in the call after this one.
INLINE const char* panel_after(const IntegerUnit& u, long half, long p, const char* after) {
    if (++p == u.p1 && ++half < u.halves) p = u.p0;
    return p >= u.panels && after ? after : u.panel(half % u.halves, p < u.panels ? p : u.p0);
}

// Computes the outputs of a unit in scratch: `add` adds the products of the inputs k0 .. k1 of a panel to the sums of all its rows, and may prefetch
// `next`, the weights that are read after them. With `lone` a panel is read as it lies, else a segment of one panel after the other.
template <class Add>
INLINE void integer_unit(const ProductCall& call, const IntegerUnit& u, bool lone, Add add) {
    const long length = u.kp / u.at.segments;
    const auto add_segment = [&](long segment, long half, long p) {
        const long from = segment * length, to = from + length;
        for (long k = from; k < to; k += call.depth) {
            const long end = least(k + call.depth, to);
            const char* next = end < (lone ? u.kp : to) ? u.weights(half, p, end) : panel_after(u, half, p, call.after) + weights_at(u.form, u.at, lone ? 0 : from);
            add(half, p, k, end, k == from, next);
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
}
}  // namespace baton::BODY
