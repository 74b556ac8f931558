// Integer products on matrix tiles. Weights of int8, and int4 that were widened to bytes, are summed in tiles over a whole segment. Grouped
// forms leave the tiles after every group, whose sums are multiplied by its scales and added to totals in registers; their nibbles
// become signed bytes first, with which neither a zero nor what unsigned weights have too much is left to subtract.
#pragma once

namespace baton::BODY {
constexpr long kNearLines = 8192;  // so far ahead few rows prefetch weights

struct ByteTiles {
    static constexpr long kStride = 128, kSecond = 64;
    template <int C, int A, int B> INLINE void dot(Tiles& tiles) { tiles.template dot_unsigned<C, A, B>(); }
};

// Nibbles of a grouped form as the signed bytes for which they stand.
static void widen_signed(const IntegerUnit& u, const char* panel, long k0, long k1, uint32_t* wide) {
    const Ints table = load_table(u.form.table);
    if (u.form.tabled) return each_nibbles(u, panel, k0, k1, wide, [](const char*, long) { return 0; }, [&](Ints nibbles, int) { return look_up(table, nibbles); });
    const auto zero = [&](const char* group, long column) {
        return u.form.offset == kZero ? spread_bytes(section<int8_t>(group, u.at.offsets) + column) : ints(static_cast<uint32_t>(u.form.middle) * 0x01010101u);
    };
    each_nibbles(u, panel, k0, k1, wide, zero, [](Ints nibbles, Ints zeros) { return subtract_bytes(nibbles, zeros); });
}

// The weights of a stretch of groups: bytes [k / 4][32][4], and what belongs to their groups.
struct GroupWeights {
    const char *bytes, *groups;
    long apart;  // distance of the bytes of two groups
};

// Adds the groups g0 .. g1 of sixteen columns to the totals of R rows. kSigned: bytes are the integers, else they are 128 too large.
template <int R, Ends kEnds, bool kSigned>
static __attribute__((noinline)) void group_columns(Tiles& tiles, const ProductCall& call, const IntegerUnit& u, GroupWeights w, long column, long t, long g0, long g1,
                                                    float* acc, bool fresh, Ahead ahead) {
    const Form& f = u.form;
    const long deep = least(f.group, 64);
    const float* x_scales = call.x_scales + (t * u.at.groups + g0) * kTile;
    const int32_t *x_sums = call.x_sums + (t * u.at.groups + g0) * kTile, *begins = call.x_begins + (t * u.at.groups + g0) * kTile;
    const char* x = call.packed_x + t * u.kp * kTile;
    alignas(64) uint32_t sums[16 * kTile];
    Lanes total[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) total[r] = fresh ? set(0.0f) : load(acc + r * kPanel);
    if (!ahead.at) ahead.at = w.groups;
    for (long g = g0; g < g1; ++g, w.bytes += w.apart, w.groups += u.at.stride, x_scales += kTile, x_sums += kTile, begins += kTile) {
        for (long line = 0; line < ahead.stride; line += 64, ahead.at += 64) fetch_far(ahead.at);
        tiles.template zero<0>();
        for (long k = 0; k < f.group; k += deep) {
            const long at = g * f.group + k;
            tiles.template load<4>(x + at / 64 * 64 * kTile + at % 64, 64);
            tiles.template load<6>(w.bytes + k * kPanel + 4 * column, 128);
            if constexpr (kSigned)
                tiles.template dot_signed<0, 4, 6>();
            else
                tiles.template dot_unsigned<0, 4, 6>();
        }
        tiles.template store<0>(sums, 64);
        const Lanes scale = column_scales(f, w.groups + u.at.scales, column);
        Lanes minimum = set(0.0f);
        Ints zero = ints(0);
        if constexpr (kEnds == Ends::kMinimum) minimum = column_scales(f, w.groups + u.at.offsets, column);
        if constexpr (kEnds == Ends::kZero) zero = widen_bytes(section<int8_t>(w.groups, u.at.offsets) + column);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            Ints all = load(sums + 16 * r);
            if constexpr (!kSigned) all = all + ints(static_cast<uint32_t>(begins[r]));
            if constexpr (kEnds == Ends::kZero) all = all - times(zero, ints(static_cast<uint32_t>(x_sums[r])));
            const Lanes row_scale = set(x_scales[r]);
            total[r] = fma(convert(all) * row_scale, scale, total[r]);
            if constexpr (kEnds == Ends::kMinimum) total[r] = fma(set(static_cast<float>(x_sums[r])) * row_scale, minimum, total[r]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store(acc + r * kPanel, total[r]);
}

// Continues the sums of all tiles of rows over the inputs k0 .. k1 of a panel.
static void add_tiles(Tiles& tiles, const ProductCall& call, const IntegerUnit& u, long half, long p, long k0, long k1, bool fresh, const char* next) {
    const Form& f = u.form;
    const char *panel = u.panel(half, p), *weights = panel + weights_at(f, u.at, k0);
    const bool few = u.t1 - u.t0 <= 2, narrow = call.rows <= 8, nibbles = has_nibbles(f);
    const long bytes = weights_at(f, u.at, k1) - weights_at(f, u.at, k0);
    uint32_t* wide = u.wide(call);
    if (few && nibbles)  // the rest prefetches while it multiplies
        for (long line = 0; line < bytes; line += 64) fetch_far(weights + kNearLines + line);
    if (f.scheme == kInt4) widen_nibbles(u, panel, k0, k1, wide);
    if (f.scheme == kInt4Groups) widen_signed(u, panel, k0, k1, wide);
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
    const long g0 = k0 / f.group, g1 = k1 / f.group;
    const GroupWeights w = {nibbles ? reinterpret_cast<const char*>(wide) : weights, weights, nibbles ? f.group * kPanel : u.at.stride};
    const bool zero = f.offset == kZero, minimum = f.offset == kMinimum;
    for (long t = u.t0; t < u.t1; ++t)
        for (long c = 0; c < 2; ++c) {
            Ahead ahead;
            if (few && !nibbles && t == u.t0 && c == 0) ahead = {weights + kNearLines, u.at.stride};
            if (!few && c == 0) ahead = shared_ahead(next, bytes, g1 - g0, t - u.t0, u.t1 - u.t0);
            const auto columns = [&](auto function) { function(tiles, call, u, w, 16 * c, t, g0, g1, u.acc(half, p, t) + 16 * c, fresh, ahead); };
            if (nibbles && minimum) columns(narrow ? group_columns<8, Ends::kMinimum, true> : group_columns<16, Ends::kMinimum, true>);
            else if (nibbles) columns(narrow ? group_columns<8, Ends::kScale, true> : group_columns<16, Ends::kScale, true>);
            else if (minimum) columns(narrow ? group_columns<8, Ends::kMinimum, false> : group_columns<16, Ends::kMinimum, false>);
            else if (zero) columns(narrow ? group_columns<8, Ends::kZero, false> : group_columns<16, Ends::kZero, false>);
            else columns(narrow ? group_columns<8, Ends::kScale, false> : group_columns<16, Ends::kScale, false>);
        }
}

static void product_integer(const ProductCall& call, long unit, float* scratch) {
    const IntegerUnit u(call, unit, scratch);
    const bool grouped = is_grouped(u.form);
    Tiles tiles(grouped && call.rows <= 8 ? 8 : kTile, grouped ? least(u.form.group, 64) : 64);
    integer_unit(call, u, u.t1 - u.t0 <= 2, [&](long half, long p, long k0, long k1, bool fresh, const char* next) {
        add_tiles(tiles, call, u, half, p, k0, k1, fresh, next);
    });
}
}  // namespace baton::BODY
