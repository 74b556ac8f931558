// Integer products on matrix tiles. Weights of int8, and int4 that were widened to bytes, are summed in tiles over a whole segment. Grouped
// forms leave the tiles after every group, whose sums are multiplied by its scales and added to totals. Their nibbles, and for many rows
// their bytes, become signed bytes first, with which neither a nibble's zero nor what unsigned weights have too much is left to subtract.
#pragma once

namespace baton::BODY {
constexpr long kNearLines = 8192;  // so far ahead few rows prefetch weights

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

// Adds the groups g0 .. g1 of a panel to the totals of T tiles of R rows. Stores of tiles cost as much as all else together, and totals
// go to the first-level cache and back: so two groups are multiplied before their sums end, and each load serves two products or more.
// kSigned: bytes are the integers, else they are 128 too large.
template <int T, int R, Ends kEnds, bool kSigned>
static __attribute__((noinline)) void group_tiles(Tiles& tiles, const ProductCall& call, const IntegerUnit& u, GroupWeights w, long t, long g0, long g1, float* acc,
                                                  bool fresh, Ahead ahead) {
    constexpr long kTogether = 2;
    const Form& f = u.form;
    const long deep = least(f.group, 64), x_next = u.kp * kTile;
    const char* x = call.packed_x + t * x_next;
    alignas(64) uint32_t sums[2 * T][kTogether][16 * kTile];
    if (!ahead.at) ahead.at = w.groups;
    for (long g = g0; g < g1; g += kTogether, fresh = false) {
        const long together = least(kTogether, g1 - g);
        const char* groups = w.groups;
        for (long b = 0; b < together; ++b, w.bytes += w.apart, w.groups += u.at.stride) {
            for (long line = 0; line < ahead.stride; line += 64, ahead.at += 64) fetch_far(ahead.at);
            tiles.template zero<0>(), tiles.template zero<1>();
            if constexpr (T == 2) tiles.template zero<2>(), tiles.template zero<3>();
            for (long k = 0; k < f.group; k += deep) {
                const long at = (g + b) * f.group + k;
                const char *rows = x + at / 64 * 64 * kTile + at % 64, *columns = w.bytes + k * kPanel;
                tiles.template load<6>(columns, 128);
                tiles.template load<4>(rows, 64);
                group_dot<kSigned, 0, 4, 6>(tiles);
                tiles.template load<7>(columns + 64, 128);
                group_dot<kSigned, 1, 4, 7>(tiles);
                if constexpr (T == 2) {
                    tiles.template load<5>(rows + x_next, 64);
                    group_dot<kSigned, 2, 5, 6>(tiles);
                    group_dot<kSigned, 3, 5, 7>(tiles);
                }
            }
            tiles.template store<0>(sums[0][b], 64), tiles.template store<1>(sums[1][b], 64);
            if constexpr (T == 2) tiles.template store<2>(sums[2][b], 64), tiles.template store<3>(sums[3][b], 64);
        }
        for (long i = 0; i < 2 * T; ++i) {
            const long first = ((t + i / 2) * u.at.groups + g) * kTile, column = 16 * (i % 2);
            const GroupRows rows = {call.x_scales + first, call.x_sums + first, call.x_begins + first};
            float* to = acc + i / 2 * kTile * kPanel + column;
            if (together == kTogether)
                end_groups<R, kTogether, kEnds, kSigned>(u, sums[i], groups, column, rows, to, fresh);
            else
                end_groups<R, 1, kEnds, kSigned>(u, sums[i], groups, column, rows, to, fresh);
        }
    }
}

template <int T, int R>
INLINE auto group_function(const Form& f, bool is_signed) {
    const bool zero = f.offset == kZero, minimum = f.offset == kMinimum;
    if (is_signed) return minimum ? group_tiles<T, R, Ends::kMinimum, true> : zero && !has_nibbles(f) ? group_tiles<T, R, Ends::kZero, true> : group_tiles<T, R, Ends::kScale, true>;
    return minimum ? group_tiles<T, R, Ends::kMinimum, false> : zero ? group_tiles<T, R, Ends::kZero, false> : group_tiles<T, R, Ends::kScale, false>;
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
    const bool few = u.t1 - u.t0 <= 2, narrow = call.rows <= 8, nibbles = has_nibbles(f);
    const long bytes = weights_at(f, u.at, k1) - weights_at(f, u.at, k0);
    uint32_t* wide = u.wide(call);
    const long near = few ? kNearLines : 0;  // bytes are fetched while they are multiplied
    if (f.scheme == kInt4) widen_nibbles(u, panel, k0, k1, wide, near);
    if (f.scheme == kInt4Groups) widen_signed(u, panel, k0, k1, wide, near);
    if (!is_grouped(f)) {
        const char* w = nibbles ? reinterpret_cast<const char*>(wide) : weights;
        const long steps = (k1 - k0) / 64, share = round_up(bytes / ((u.t1 - u.t0 + 1) / 2), 64);
        for (long t = u.t0; t < u.t1; t += 2) {
            if (!few)
                for (const char* end = next + share; next < end; next += 64) fetch_far(next);
            const char* x = call.packed_x + (t * u.kp + k0) * kTile;
            if (t + 1 < u.t1)
                panel_tiles<2, ByteTiles>(tiles, x, u.kp * kTile, w, steps, u.acc(half, p, t), fresh, few && !nibbles);
            else
                panel_tiles<1, ByteTiles>(tiles, x, 0, w, steps, u.acc(half, p, t), fresh, few && !nibbles);
        }
        return;
    }
    const bool flipped = !few && !nibbles, is_signed = flipped || nibbles;
    if (flipped) flip_bytes(u, panel, k0, k1, wide);
    const long g0 = k0 / f.group, g1 = k1 / f.group;
    const GroupWeights w = {is_signed ? reinterpret_cast<const char*>(wide) : weights, weights, is_signed ? f.group * kPanel : u.at.stride};
    const auto one = narrow ? group_function<1, 8>(f, is_signed) : group_function<1, 16>(f, is_signed), two = group_function<2, 16>(f, is_signed);
    for (long t = u.t0; t < u.t1; t += 2) {
        Ahead ahead;
        if (few && !nibbles) ahead = {weights + kNearLines, u.at.stride};
        if (!few) ahead = shared_ahead(next, bytes, g1 - g0, (t - u.t0) / 2, (u.t1 - u.t0 + 1) / 2);
        (t + 1 < u.t1 ? two : one)(tiles, call, u, w, t, g0, g1, u.acc(half, p, t), fresh, ahead);
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
