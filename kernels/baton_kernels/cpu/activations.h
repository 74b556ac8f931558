// Activations of integer products: every block of a row (a segment, or a group) gets one scale and becomes int8.
// scale = max|x| / 127 and q = rint(x * (127 / max|x|)), to nearest even, within +-127. A block of nothing but zeros and of
// numbers below 2^-100 is zero; one with a NaN or an infinity has the scale NaN, which makes every output NaN.
#pragma once

namespace baton::BODY {

// Elements i..i+15 of a row of the call, in the order of the matrix's inputs; zero beyond k. The row begins with element `first`.
INLINE Lanes element(const ProductCall& call, const float* row, long first, long i) {
    const long n = call.k - i;
    if (n <= 0) return set(0.0f);
    if (!call.order) return load_first(row + i - first, n, 0.0f);
    alignas(64) float at[16];
    for (long j = 0; j < 16; ++j) at[j] = j < n ? row[call.order[i + j]] : 0.0f;
    return load(at);
}

struct BlockScale {
    float scale, inverse;
};

INLINE BlockScale block_scale(const ProductCall& call, const float* row, long first, long from, long to) {
    Lanes most = set(0.0f), wrong = set(0.0f);
    for (long i = from; i < to; i += 16) {
        const Lanes x = element(call, row, first, i);
        most = max(magnitude(x), most);
        wrong = wrong + (x - x);  // NaN for NaN and infinity, else 0
    }
    if (to_bits(is_nan(wrong))) return {tree_sum(wrong), 0.0f};
    const float m = tree_max(most);
    if (m < 0x1p-100f) return {0.0f, 0.0f};
    return {m / 127.0f, 127.0f / m};
}

// Scales of one block of all rows of a tile. Where more than three rows have nothing but numbers in it, lanes find them side by side.
struct BlockScales {
    alignas(64) float scale[16], inverse[16];

    template <class Rows>
    void find(const ProductCall& call, const Rows& row_at, long rows, long first, long from, long to) {
        constexpr long kFew = 3;
        Ints most[16];
        Lanes wrong = set(0.0f);
        for (long r = 0; r < 16 && rows > kFew; ++r) {
            Lanes m = set(0.0f);
            for (long i = from; i < to && r < rows; i += 16) {
                const Lanes x = element(call, row_at[r], first, i);
                m = max(magnitude(x), m);
                wrong = wrong + (x - x);
            }
            most[r] = bits(m);
        }
        if (rows > kFew && !to_bits(is_nan(wrong))) {
            transpose(most);
            Lanes m = floats(most[0]);
            for (long j = 1; j < 16; ++j) m = max(floats(most[j]), m);
            const Mask none = less(m, set(0x1p-100f));
            store(scale, select(none, set(0.0f), m / set(127.0f)));
            store(inverse, select(none, set(0.0f), set(127.0f) / m));
            return;
        }
        for (long r = 0; r < 16; ++r) {
            const BlockScale s = r < rows ? block_scale(call, row_at[r], first, from, to) : BlockScale{0.0f, 0.0f};
            scale[r] = s.scale, inverse[r] = s.inverse;
        }
    }
};

// Writes 64 elements of R rows as the inner steps read them: [word][R], where four int8 are a word, or two words of int16;
// tiles read [R][word].
// count(j, sums) gets the sum of the four elements of word j of each row.
template <class Count>
INLINE void put_quads(Ints (&rows)[16], long R, uint32_t* to, Count count) {
#if defined(BATON_TILES_ONLY)
    for (long r = 0; r < R; ++r) store(to + 16 * r, rows[r]);
    transpose(rows);
    const Ints ones = ints(0x00010001u);
    for (long j = 0; j < 16; ++j) count(j, dot_words(ones, even_bytes(rows[j])) + dot_words(ones, odd_bytes(rows[j])));
#elif defined(BATON_BYTE_DOTS)
    const Ints ones = ints(0x01010101u);
    if (R == 1) {
        alignas(64) uint32_t sums[16];
        store(to, rows[0]);
        store(sums, dot_bytes(ints(0), ones, rows[0]));
        for (long j = 0; j < 16; ++j) count(j, ints(sums[j]));
        return;
    }
    transpose(rows);
    for (long j = 0; j < 16; ++j) {
        store_first(reinterpret_cast<float*>(to + j * R), R, floats(rows[j]));
        count(j, dot_bytes(ints(0), ones, rows[j]));
    }
#else
    const Ints ones = ints(0x00010001u);
    Ints odd[16];
    for (long r = 0; r < 16; ++r) odd[r] = odd_bytes(rows[r]), rows[r] = even_bytes(rows[r]);
    transpose(rows);
    transpose(odd);
    for (long j = 0; j < 16; ++j) {
        store_first(reinterpret_cast<float*>(to + 2 * j * R), R, floats(rows[j]));
        store_first(reinterpret_cast<float*>(to + (2 * j + 1) * R), R, floats(odd[j]));
        count(j, dot_words(ones, rows[j]) + dot_words(ones, odd[j]));
    }
#endif
}

// Writes the columns from .. end of one tile of R rows, their blocks' scales as [block][R], and the sums and begins of each group as
// [group][R]. row_at(r): row r of the tile, beginning with column `first`.
template <class RowAt>
INLINE void pack_columns(const ProductCall& call, long t, long from, long end, long first, RowAt row_at) {
    const long R = call.tile_rows, kp = call.kp, block = call.x_block, group = call.group, rows = least(R, call.rows - t * R);
    auto* to = reinterpret_cast<uint32_t*>(call.packed_x) + (t * kp + from) / 4 * kQuadWords * R;
    float* scales = call.x_scales + (t * kp + from) / block * R;
    const float* row_of_tile[16];
    for (long r = 0; r < rows; ++r) row_of_tile[r] = row_at(r);
    BlockScales found;
    const long before = (t * kp + from) / group * R;
    int32_t *sums = call.x_sums + before, *begins = call.x_begins + before;
    const Ints too_much = ints(static_cast<uint32_t>(-too_large(*call.form, kByteExcess)));
    const Lanes magic = set(12582912.0f);  // its last place is 1, so a sum with it is rounded to an integer
    alignas(64) uint32_t bytes[16][16] = {};
    Ints words[16], sum = ints(0);
    long left_of_block = 0, left_of_group = group;  // no division per element: they cost more than all else
    for (long i = from; i < end; i += 64, to += 16 * kQuadWords * R) {
        for (long j = i; j < i + 64; j += 16, left_of_block -= 16) {
            if (left_of_block == 0) {
                found.find(call, row_of_tile, rows, first, j, j + block);
                store_first(scales, R, load(found.scale));
                scales += R, left_of_block = block;
            }
            for (long r = 0; r < rows; ++r) {
                const float inverse = found.inverse[r];
                const Lanes v = inverse != 0.0f ? element(call, row_of_tile[r], first, j) * set(inverse) + magic : magic;
                const Ints rounded = bits(max(set(-127.0f) + magic, min(set(127.0f) + magic, v))) - bits(magic);
                store_bytes(reinterpret_cast<int8_t*>(bytes[r]) + j - i, rounded);
            }
        }
        for (long r = 0; r < 16; ++r) words[r] = load(bytes[r]);
        put_quads(words, R, to, [&](long, Ints four) {
            sum = sum + four;
            if (left_of_group -= 4) return;
            left_of_group = group;
            store_first(reinterpret_cast<float*>(sums), R, floats(sum));
            store_first(reinterpret_cast<float*>(begins), R, floats(times(sum, too_much)));
            sums += R, begins += R;
            sum = ints(0);
        });
    }
}

static void pack_bytes(const ProductCall& call, long t) {
    pack_columns(call, t, 0, call.kp, 0, [&](long r) { return row_of(call, t * call.tile_rows + r); });
}
}  // namespace baton::BODY
