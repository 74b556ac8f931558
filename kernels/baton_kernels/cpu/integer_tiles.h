// Integer products on matrix tiles. Weights of int8, and int4 that were widened to bytes, are summed in tiles over a whole segment. Grouped
// forms leave the tiles after every group, whose sums are multiplied by its scales and added to totals. Their nibbles, and for many rows
// their bytes, become signed bytes first, with which neither a nibble's zero nor what unsigned weights have too much is left to subtract.
#pragma once

namespace baton::BODY {
constexpr long kNearLines = 8192;  // so far ahead few rows fetch nibbles, and a lone tile bytes in groups

struct ByteTiles {
    static constexpr long kStride = 128, kSecond = 64;
    template <int C, int A, int B> INLINE void dot(Tiles& tiles) { tiles.template dot_unsigned<C, A, B>(); }
};

// Nibbles of a grouped form as the signed bytes for which they stand.
static void widen_signed(const IntegerUnit& u, const char* panel, long k0, long k1, uint32_t* wide, long near) {
    const Ints table = load_table(u.form.table);
    if (u.form.tabled) return each_nibbles(u, panel, k0, k1, wide, near, [](const char*, long) { return 0; }, [&](Ints nibbles, int) { return look_up(table, nibbles); });
    const auto zero = [&](const char* group, long column) {
        return u.form.offset == kZero ? spread_bytes(section<int8_t>(group, u.at.offsets) + column) : ints(static_cast<uint32_t>(u.form.middle) * 0x01010101u);
    };
    each_nibbles(u, panel, k0, k1, wide, near, zero, [](Ints nibbles, Ints zeros) { return subtract_bytes(nibbles, zeros); });
}

// The weights of a stretch of groups: bytes [k / 4][32][4], and what belongs to their groups.
struct GroupWeights {
    const char *bytes, *groups;
    long apart;  // distance of the bytes of two groups
};

// What belongs to the rows of a tile, from some group on: [groups][16].
struct GroupRows {
    const float* scales;
    const int32_t *sums, *begins;
};

template <bool kSigned, int C, int A, int B>
INLINE void group_dot(Tiles& tiles) {
    if constexpr (kSigned)
        tiles.template dot_signed<C, A, B>();
    else
        tiles.template dot_unsigned<C, A, B>();
}

// Multiplies the integer sums of B groups of R rows by sixteen columns with what belongs to them, and adds them to the totals.
template <int R, int B, Ends kEnds, bool kSigned>
INLINE void end_groups(const IntegerUnit& u, const uint32_t (*sums)[16 * kTile], const char* group, long column, GroupRows rows, float* acc, bool fresh) {
    const Form& f = u.form;
    Lanes total[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) total[r] = fresh ? set(0.0f) : load(acc + r * kPanel);
#pragma GCC unroll 2
    for (int b = 0; b < B; ++b, group += u.at.stride) {
        const Lanes scale = column_scales(f, group + u.at.scales, column);
        Lanes minimum = set(0.0f);
        Ints zero = ints(0);
        if constexpr (kEnds == Ends::kMinimum) minimum = column_scales(f, group + u.at.offsets, column);
        if constexpr (kEnds == Ends::kZero) zero = widen_bytes(section<int8_t>(group, u.at.offsets) + column);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const int i = b * static_cast<int>(kTile) + r;
            Ints all = load(sums[b] + 16 * r);
            if constexpr (!kSigned) all = all + ints(static_cast<uint32_t>(rows.begins[i]));
            if constexpr (kEnds == Ends::kZero) all = all - times(zero, ints(static_cast<uint32_t>(rows.sums[i])));
            const Lanes row_scale = set(rows.scales[i]);
            total[r] = fma(convert(all) * row_scale, scale, total[r]);
            if constexpr (kEnds == Ends::kMinimum) total[r] = fma(set(static_cast<float>(rows.sums[i])) * row_scale, minimum, total[r]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store(acc + r * kPanel, total[r]);
}

// Adds the groups g0 .. g1 of a panel to the totals of a tile of R rows. Totals go to the first-level cache and back: so two groups are
// multiplied before their sums end. kSigned: bytes are the integers, else they are 128 too large.
template <int R, Ends kEnds, bool kSigned>
static __attribute__((noinline)) void group_tiles(Tiles& tiles, const ProductCall& call, const IntegerUnit& u, GroupWeights w, long t, long g0, long g1, float* acc,
                                                  bool fresh, Ahead ahead) {
    constexpr long kTogether = 2;
    const Form& f = u.form;
    const long deep = least(f.group, 64);
    const char* x = call.packed_x + t * u.kp * kTile;
    alignas(64) uint32_t sums[2][kTogether][16 * kTile];
    if (!ahead.at) ahead.at = w.groups;
    for (long g = g0; g < g1; g += kTogether, fresh = false) {
        const long together = least(kTogether, g1 - g);
        const char* groups = w.groups;
        for (long b = 0; b < together; ++b, w.bytes += w.apart, w.groups += u.at.stride) {
            for (long line = 0; line < ahead.stride; line += 64) fetch_far(ahead.at + line);
            ahead.at += ahead.stride;
            tiles.template zero<0>(), tiles.template zero<1>();
            for (long k = 0; k < f.group; k += deep) {
                const long at = (g + b) * f.group + k;
                const char* columns = w.bytes + k * kPanel;
                const char* rows = x + at / 64 * 64 * kTile + at % 64;
                for (long line = 0; line < 1024; line += 64) fetch(rows + 2048 + line);
                tiles.template load<2>(rows, 64);
                tiles.template load<3>(columns, 128);
                group_dot<kSigned, 0, 2, 3>(tiles);
                tiles.template drop<3>();
                tiles.template load<3>(columns + 64, 128);
                group_dot<kSigned, 1, 2, 3>(tiles);
                tiles.template drop<2>(), tiles.template drop<3>();
            }
            tiles.template store<0>(sums[0][b], 64), tiles.template drop<0>();
            tiles.template store<1>(sums[1][b], 64), tiles.template drop<1>();
        }
        const long first = (t * u.at.groups + g) * kTile;
        const GroupRows rows = {call.x_scales + first, call.x_sums + first, call.x_begins + first};
        for (long c = 0; c < 2; ++c)
            if (together == kTogether)
                end_groups<R, kTogether, kEnds, kSigned>(u, sums[c], groups, 16 * c, rows, acc + 16 * c, fresh);
            else
                end_groups<R, 1, kEnds, kSigned>(u, sums[c], groups, 16 * c, rows, acc + 16 * c, fresh);
    }
}

template <int R>
INLINE auto group_function(const Form& f, bool is_signed) {
    const bool zero = f.offset == kZero, minimum = f.offset == kMinimum;
    if (is_signed) return minimum ? group_tiles<R, Ends::kMinimum, true> : zero && !has_nibbles(f) ? group_tiles<R, Ends::kZero, true> : group_tiles<R, Ends::kScale, true>;
    return minimum ? group_tiles<R, Ends::kMinimum, false> : zero ? group_tiles<R, Ends::kZero, false> : group_tiles<R, Ends::kScale, false>;
}

// Bytes of a grouped form as the integers for which they stand.
static void flip_bytes(const IntegerUnit& u, const char* panel, long k0, long k1, uint32_t* wide) {
    for (long k = k0; k < k1; k += u.form.group) {
        const auto* w = reinterpret_cast<const uint32_t*>(panel + k / u.form.group * u.at.stride);
        for (long i = 0; i < u.form.group * kPanel / 4; i += 16, wide += 16) store(wide, flip_signs(load(w + i)));
    }
}

// Continues the sums of all tiles of rows over the inputs k0 .. k1 of a panel.
static void add_tiles(Tiles& tiles, const ProductCall& call, const IntegerUnit& u, long half, long p, long k0, long k1, bool fresh, const char* next) {
    const Form& f = u.form;
    const char *panel = u.panel(half, p), *weights = panel + weights_at(f, u.at, k0);
    const long shares = u.t1 - u.t0;
    const bool few = shares <= 2, nibbles = has_nibbles(f);
    const long bytes = weights_at(f, u.at, k1) - weights_at(f, u.at, k0);
    uint32_t* wide = u.wide(call);
    const long near = few ? kNearLines : 0;  // bytes are fetched while they are multiplied
    if (f.scheme == kInt4) widen_nibbles(u, panel, k0, k1, wide, near);
    if (f.scheme == kInt4Groups) widen_signed(u, panel, k0, k1, wide, near);
    if (!is_grouped(f)) {
        const char* w = nibbles ? reinterpret_cast<const char*>(wide) : weights;
        const long steps = (k1 - k0) / 64;
        for (long t = u.t0; t < u.t1; ++t) {
            const Ahead ahead = few && nibbles ? Ahead{} : shares == 1 ? near_ahead(w) : shared_ahead(next, bytes, steps, t - u.t0, shares);
            panel_tiles<ByteTiles>(tiles, call.packed_x + (t * u.kp + k0) * kTile, w, steps, u.acc(half, p, t), fresh, ahead);
        }
        return;
    }
    const bool flipped = !few && !nibbles, is_signed = flipped || nibbles;
    if (flipped) flip_bytes(u, panel, k0, k1, wide);
    const long g0 = k0 / f.group, g1 = k1 / f.group;
    const GroupWeights w = {is_signed ? reinterpret_cast<const char*>(wide) : weights, weights, is_signed ? f.group * kPanel : u.at.stride};
    const auto add = call.rows <= 8 ? group_function<8>(f, is_signed) : group_function<16>(f, is_signed);
    for (long t = u.t0; t < u.t1; ++t) {
        const Ahead lone = {weights + kNearLines, u.at.stride};
        const Ahead ahead = few && nibbles ? Ahead{} : shares == 1 ? lone : shared_ahead(next, bytes, g1 - g0, t - u.t0, shares);
        add(tiles, call, u, w, t, g0, g1, u.acc(half, p, t), fresh, ahead);
    }
}

// Packs the outputs as rows of the product that reads them, 64 columns at a time.
static void hand_on(const ProductCall& call, const IntegerUnit& u) {
    const Outputs outputs(call, u);
    alignas(64) float rows[kTile][kDeep];
    for (long t = u.t0; t < u.t1; ++t)
        for (long p = u.p0; p < u.p1; p += kDeep / kPanel) {
            for (long r = 0; r < kTile; ++r)
                for (long i = 0; i < kDeep; i += 16) store(rows[r] + i, outputs(t, p + i / kPanel, r, i % kPanel / 16));
            pack_columns(*call.into, t, p * kPanel, p * kPanel + kDeep, p * kPanel, [&](long r) { return rows[r]; });
        }
}

static void product_integer(const ProductCall& call, long unit, float* scratch) {
    const IntegerUnit u(call, unit, scratch);
    const bool grouped = is_grouped(u.form);
    Tiles tiles(grouped && call.rows <= 8 ? 8 : kTile, grouped ? least(u.form.group, 64) : 64);
    integer_unit(call, u, u.t1 - u.t0 <= 2, [&](long half, long p, long k0, long k1, bool fresh, const char* next) {
        add_tiles(tiles, call, u, half, p, k0, k1, fresh, next);
    });
    call.into ? hand_on(call, u) : write_out(call, u);
}
}  // namespace baton::BODY
