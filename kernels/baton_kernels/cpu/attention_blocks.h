// Paged attention, the same path for prefill and decode rows. A unit is some consecutive rows of one sequence times the
// query heads that share one KV head. Blocks of 32 slots in ascending order; each row keeps its running maximum, sum
// and output and rescales them once per block. Slots that a row does not see, because they lie behind its own or before its
// window, are selected away, never multiplied. Every 512 slots a segment ends: rows fold it into their total and begin
// anew, so that segments may be computed apart. Blocks and segments begin at multiples of their length, whatever the window.
#pragma once

namespace baton::BODY {

#ifdef __AVX512BF16__
using PairKind = Dots;
#else
using PairKind = Pairs;
#endif

constexpr long kFewQueries = 8;  // with at most so many queries memory limits a block, which is then walked in narrow strips that prefetch the next
constexpr long kStretch = 16;  // elements of a score that have a chain of their own where stretches do

// Scratch of one unit, carved out of one piece.
struct Bench {
    float *queries, *scores, *weights, *sums, *tops, *scales, *outputs, *patch, *keys, *values;
    float *total_sums, *total_tops, *totals;  // results of the segments before this one
    float *coded_keys, *coded_values, *key_scales, *value_scales;  // what a block holds whose page has codes
    bool coded;
    Bench(float* at, Kv kv) : coded(kv != kKvOwn) {
        const auto take = [&](long n) { float* p = at; at += n; return p; };
        queries = take(kQueryRows * kQueryStride);
        scores = take(kQueryRows * kBlock);
        weights = take(kQueryRows * kBlock);
        sums = take(kMaxQueries);
        tops = take(kMaxQueries);
        scales = take(kMaxQueries);
        outputs = take(kQueryRows * kMaxDim);
        patch = take(2 * kMaxDim);
        keys = take(kMaxDim * kBlock);
        values = take(kBlock * kMaxDim);
        total_sums = take(kMaxQueries);
        total_tops = take(kMaxQueries);
        totals = take(kMaxQueries * kMaxDim);
        coded_keys = take(kMaxDim * kBlock);
        coded_values = take(kBlock * kMaxDim);
        key_scales = take(kBlock);
        value_scales = take(kBlock);
    }
};

// What the rows of a unit see of one block, by their local index. Rows [done, begun) see something of it, [full, left) all
// of it; those before `full` do not see its last slots, and those from `left` on not its first ones. In a window shorter
// than a block, rows lack slots on both sides.
struct Sight {
    long done, full, left, begun;
    long ahead;   // slot of the unit's first row, counted from the block's first slot
    long window;  // 0: none

    Sight(long first_slot, long rows, long begin, long within) : ahead(first_slot - begin), window(within) {
        const auto rows_up_to = [&](long slot) { return least(rows, most(0, slot + 1 - ahead)); };  // slot counted from the block's first
        done = rows_up_to(-1);
        full = rows_up_to(kBlock - 2);
        left = window ? rows_up_to(window - 1) : rows;
        begun = window ? rows_up_to(window + kBlock - 2) : rows;
    }
    long unseen(long row) const { return most(0, first_seen(ahead + row, window)); }  // slots at the block's beginning
    long valid(long row) const { return least(kBlock, ahead + row + 1); }             // slots up to the row's own
};

// Addresses of the two vectors of sixteen slots of a block.
struct Places {
    const char *k[2], *v[2];
    long k_row;                                 // slots between two rows of k
    const uint16_t *k_scales[2], *v_scales[2];  // scales of codes
};

// Bytes that two elements of a key take, with codes or on the paths of bf16.
static inline long pair_bytes(Kv kv) { return kv == kKvOwn ? 4 : kv == kKvInt4 ? 1 : 2; }

INLINE Places find(const AttentionCall& call, Path path, long sequence, long kv_head, long block) {
    const long bytes = head_bytes(path, call.kv, call.page_tokens, call.dim);
    const long row = call.kv == kKvOwn ? call.dim * element_bytes(path) : code_bytes(call.kv, call.dim);  // bytes of one token's elements
    const long last = (call.starts[sequence] + call.counts[sequence] - 1) / call.page_tokens;
    const long first_page = first_seen(call.starts[sequence], call.window) / call.page_tokens;
    Places t;
    t.k_row = call.page_tokens;
    for (int h = 0; h < 2; ++h) {
        const long slot = block * kBlock + 16 * h, page = slot / call.page_tokens, inside = slot % call.page_tokens;
        const long known = page > last ? last : most(page, first_page);  // slots of other pages: loaded, never used
        const char* base = call.pool + call.tables[sequence * call.max_pages + known] * call.page_stride + call.layer_offset;
        const char *k = base + kv_head * bytes, *v = k + call.kv_heads * bytes;
        t.k[h] = k + inside * pair_bytes(call.kv);
        t.v[h] = v + inside * row;
        t.k_scales[h] = reinterpret_cast<const uint16_t*>(k + call.page_tokens * row) + inside;
        t.v_scales[h] = reinterpret_cast<const uint16_t*>(v + call.page_tokens * row) + inside;
    }
    return t;
}

// Sixteen pairs of codes, the even ones in the lowest bits of `even`, as the path's own elements; in fp32 the odd ones go
// `apart` from the even ones. Only the first n pairs are wanted.
template <Kv kv>
INLINE void put_pairs(Path path, Ints even, Ints odd, long n, uint32_t* to, long apart) {
    const Ints first = bits(number_of<kv>(even)), second = bits(number_of<kv>(odd));
    const auto put = [&](uint32_t* at, Ints x) {
        if (n >= 16) return store(at, x);
        store_first(reinterpret_cast<float*>(at), n, floats(x));
    };
    if (path != kFp32) return put(to, right<16>(first) | second);
    put(to, first), put(to + apart, second);
}

// The codes of sixteen slots: keys [dim / 2][slots], and values of eight pairs of slots.
template <Kv kv>
static void decode_half(const AttentionCall& call, Path path, const Places& at, int h, uint32_t* keys, uint32_t* values) {
    const long dim = call.dim, words = path == kFp32 ? 2 : 1;
    for (long d = 0; d < dim / 2; ++d, keys += kBlock * words) {
        const char* from = at.k[h] + d * at.k_row * pair_bytes(kv);
        const Ints two = kv == kKvInt4 ? widen_bytes(reinterpret_cast<const int8_t*>(from)) : widen_words(reinterpret_cast<const uint16_t*>(from));
        put_pairs<kv>(path, two, right<kv == kKvInt4 ? 4 : 8>(two), 16, keys, kBlock);
    }
    const long half = kv == kKvInt4 ? dim / 2 : dim;  // words of two slots; loads behind the last one end among the scales
    for (long s = 0; s < 8; ++s, values += dim * words)
        for (long d = 0; d < half; d += 16) {
            const Ints two = widen_words(reinterpret_cast<const uint16_t*>(at.v[h]) + s * half + d);
            put_pairs<kv>(path, two, right<8>(two), half - d, values + d, dim);
            if constexpr (kv == kKvInt4) put_pairs<kv>(path, right<4>(two), right<12>(two), half - d, values + half + d, dim);
        }
}

// A block's codes as the path's own keys and values, in the bench, and their scales.
static Places decode_block(const AttentionCall& call, Path path, const Bench& b, const Places& at) {
    const long dim = call.dim, words = path == kFp32 ? 2 : 1;
    auto *keys = reinterpret_cast<uint32_t*>(b.coded_keys), *values = reinterpret_cast<uint32_t*>(b.coded_values);
    const auto decode = call.kv == kKvInt8 ? decode_half<kKvInt8> : call.kv == kKvFp8 ? decode_half<kKvFp8> : decode_half<kKvInt4>;
    for (int h = 0; h < 2; ++h) {
        decode(call, path, at, h, keys + 16 * h, values + 8 * h * dim * words);
        store(b.key_scales + 16 * h, floats(left<16>(widen_words(at.k_scales[h]))));
        store(b.value_scales + 16 * h, floats(left<16>(widen_words(at.v_scales[h]))));
    }
    const auto *k = reinterpret_cast<const char*>(keys), *v = reinterpret_cast<const char*>(values);
    return {{k, k + 64}, {v, v + 8 * dim * 4 * words}, kBlock, {}, {}};
}

// scores[rows][32] = q . K over the dim; the two vectors of slots lie `apart`, perhaps in two pages.
template <class Kind>
static void score(long rows, const typename Kind::X* q, const typename Kind::W* k, long row, long apart, long steps, float* scores, Ahead ahead) {
    if constexpr (kTileVectors >= 2)
        tall<kTileRows, 2, Kind, kQueryStride>(rows, q, k, row, apart, steps, scores, kBlock, true, nullptr, ahead);
    else
        for (int h = 0; h < 2; ++h)
            tall<kTileRows, 1, Kind, kQueryStride>(rows, q, k + h * apart, row, apart, steps, scores + 16 * h, kBlock, true, nullptr, ahead);
}

// outputs[rows][dim] = outputs * scale + probabilities . V over `steps` steps. `next` is what will lie where v lies.
template <class Kind>
static void gather(long rows, const typename Kind::X* p, const typename Kind::W* v, long row, long dim, long steps, float* outputs,
                   const float* scale, const char* next) {
    long d = 0;
    const auto ahead = [&] { return next ? Ahead{next + d * 4, row * 4, 64} : Ahead{}; };
    if constexpr (kTileVectors >= 2) {
        if (rows > kFewQueries)
            for (; d + 64 <= dim; d += 64) tall<6, 4, Kind, kBlock>(rows, p, v + d, row, 16, steps, outputs + d, dim, false, scale);
        for (; d + 32 <= dim; d += 32) tall<12, 2, Kind, kBlock>(rows, p, v + d, row, 16, steps, outputs + d, dim, false, scale, ahead());
    }
    for (; d < dim; d += 16) tall<kTileRows, 1, Kind, kBlock>(rows, p, v + d, row, 16, steps, outputs + d, dim, false, scale, ahead());
}

// Packs sixteen probabilities for the path's products. None is denormal: exp gives zero below the least normal number.
INLINE void store_probabilities(Path path, float* row, long first, Lanes e) {
    [[maybe_unused]] auto* halves = reinterpret_cast<uint16_t*>(row) + first;
#ifdef __AVX512BF16__
    (void)path;
    store_nearest(halves, e);
#else
    if (path == kFp32) return store(row + first, e);
    if (path == kAmx) return store_high(halves, round_bits(e));
    store(row + first, swap_pairs(floats(round_bits(e))));
#endif
}

// One softmax step of rows whose scores are in place: new maxima, rescaling factors, probabilities packed for the path.
// Where keys and values are codes, scores take the scales of the keys, and probabilities those of the values, after their sum.
// Where scores have been capped, their scales are in them.
template <bool kWhole, bool kCoded, bool kCapped>
static void soften_rows(const Bench& b, Path path, long row, long rows, long unseen, long valid, float scale) {
    const Lanes none = set(-kInfinity), factor = set(scale);
    const Mask low = first(valid), high = first(most(0, valid - 16)), low_unseen = first(unseen), high_unseen = first(most(0, unseen - 16));
    const auto seen = [&](long at, Lanes x, Lanes otherwise) {
        return select(at ? high_unseen : low_unseen, otherwise, select(at ? high : low, x, otherwise));
    };
    const auto scaled = [&](long r, long at) {
        Lanes s = load(b.scores + r * kBlock + at);
        if constexpr (kCoded && !kCapped) s = s * load(b.key_scales + at);
        if constexpr (!kCapped) s = s * factor;
        return kWhole ? s : seen(at, s, none);
    };
    for (long r = row; r < row + rows; ++r) {
        const float top = tree_max(max(scaled(r, 0), scaled(r, 16))), before = b.tops[r];
        b.tops[r] = top > before ? top : before;
        b.scales[r] = before - b.tops[r];
    }
    for (long r = row; r < row + rows; r += 16)
        store_first(b.scales + r, row + rows - r, exp(load_first(b.scales + r, row + rows - r, 0.0f)));
    for (long r = row; r < row + rows; ++r) {
        const Lanes top = set(b.tops[r]);
        Lanes e0 = exp(scaled(r, 0) - top), e1 = exp(scaled(r, 16) - top);
        b.sums[r] = b.sums[r] * b.scales[r] + tree_sum(e0 + e1);
        if constexpr (kCoded) {  // the scale of a slot that the row does not see is not known
            e0 = e0 * seen(0, load(b.value_scales), set(0.0f));
            e1 = e1 * seen(16, load(b.value_scales + 16), set(0.0f));
        }
        store_probabilities(path, b.weights + r * kBlock, 0, e0);
        store_probabilities(path, b.weights + r * kBlock, 16, e1);
    }
}

// Scales the rows' scores and caps them, in place.
static void cap_scores(const Bench& b, long row, long rows, float scale, float cap) {
    for (long r = row; r < row + rows; ++r)
        for (long at = 0; at < kBlock; at += 16) {
            Lanes s = load(b.scores + r * kBlock + at);
            if (b.coded) s = s * load(b.key_scales + at);
            store(b.scores + r * kBlock + at, capped(s * set(scale), set(cap)));
        }
}

template <bool kCapped>
static void soften_block(const Bench& b, Path path, long row, long rows, long unseen, long valid, float scale) {
    const bool whole = unseen <= 0 && valid >= kBlock;
    if (b.coded) return whole ? soften_rows<true, true, kCapped>(b, path, row, rows, 0, kBlock, scale) : soften_rows<false, true, kCapped>(b, path, row, rows, unseen, valid, scale);
    whole ? soften_rows<true, false, kCapped>(b, path, row, rows, 0, kBlock, scale) : soften_rows<false, false, kCapped>(b, path, row, rows, unseen, valid, scale);
}

static void soften(const AttentionCall& call, const Bench& b, Path path, long row, long rows, long unseen, long valid) {
    if (call.cap == 0.0f) return soften_block<false>(b, path, row, rows, unseen, valid, call.scale);
    cap_scores(b, row, rows, call.scale, call.cap);
    soften_block<true>(b, path, row, rows, unseen, valid, call.scale);
}

// Probabilities times V for slots [unseen, valid) of a block. Where they begin or end inside a pair of slots, the pair's
// other slot is replaced by zero through a patched copy.
template <class Kind>
static void blend(const AttentionCall& call, const Bench& b, long row, long rows, const Places& at, const Places* next, long unseen, long valid) {
    using X = typename Kind::X;
    using W = typename Kind::W;
    constexpr long width = Kind::kPerStep;            // x elements per step
    constexpr long slots = sizeof(W) == 4 && !__is_same(W, float) ? 2 : 1;
    const float* scale = b.scales + row;
    const long joined = at.v[1] == at.v[0] + 16 * call.dim * static_cast<long>(sizeof(W)) / slots ? 2 : 1;  // in one page
    const auto patched = [&](const X* p, const W* v, float* out, long pair, uint32_t kept) {
        if constexpr (slots == 2) {
            W* patch = reinterpret_cast<W*>(b.patch);
            for (long d = 0; d < call.dim; d += 16) store(patch + d, load(v + pair * call.dim + d) & ints(kept));
            gather<Kind>(rows, p + pair * width, patch, call.dim, call.dim, 1, out, scale, nullptr);
            scale = nullptr;
        }
    };
    for (long h = 0; h < 2; h += joined) {
        long begin = most(0, unseen - 16 * h);
        const long end = least(valid - 16 * h, 16 * joined);
        if (begin >= end) continue;
        const X* p = reinterpret_cast<const X*>(b.weights + row * kBlock) + h * (16 / slots) * width;
        const W* v = reinterpret_cast<const W*>(at.v[h]);
        float* out = b.outputs + row * call.dim;
        if (begin % slots) patched(p, v, out, begin++ / slots, 0xFFFF0000u);
        const long first = begin / slots, whole = end / slots - first;
        if (whole > 0) {
            gather<Kind>(rows, p + first * width, v + first * call.dim, call.dim, call.dim, whole, out, scale, next ? next->v[h] : nullptr);
            scale = nullptr;
        }
        if (end % slots && end > begin) patched(p, v, out, end / slots, 0xFFFFu);
    }
}

// Both tiles of a block widened to fp32 in chain order, for units of many rows.
INLINE void widen_block(const AttentionCall& call, const Bench& b, const Places& at) {
    for (int h = 0; h < 2; ++h) {
        const auto* k = reinterpret_cast<const uint32_t*>(at.k[h]);
        for (long d = 0; d < call.dim; d += 2) {
            const Ints pair = load(k + d / 2 * at.k_row);
            store(b.keys + d * kBlock + 16 * h, floats(pair & ints(0xFFFF0000u)));
            store(b.keys + (d + 1) * kBlock + 16 * h, floats(left<16>(pair)));
        }
        const auto* v = reinterpret_cast<const uint32_t*>(at.v[h]);
        for (long s = 0; s < 16; s += 2)
            for (long d = 0; d < call.dim; d += 16) {
                const Ints pair = load(v + s / 2 * call.dim + d);
                store(b.values + (16 * h + s) * call.dim + d, floats(pair & ints(0xFFFF0000u)));
                store(b.values + (16 * h + s + 1) * call.dim + d, floats(left<16>(pair)));
            }
    }
}
}  // namespace baton::BODY
