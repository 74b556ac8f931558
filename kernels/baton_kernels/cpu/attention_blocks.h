// Paged attention, the same path for prefill and decode rows. A unit is some consecutive rows of one sequence times the
// query heads that share one KV head. Blocks of 32 slots in ascending order; each row keeps its running maximum, sum
// and output and rescales them once per block. Slots beyond a row's limit are selected away, never multiplied. Every 512
// slots a segment ends: rows fold it into their total and begin anew, so that segments may be computed apart.
#pragma once

namespace baton::BODY {

#ifdef __AVX512BF16__
using PairKind = Dots;
#else
using PairKind = Pairs;
#endif

// Scratch of one unit, carved out of one piece.
struct Bench {
    float *queries, *scores, *weights, *sums, *tops, *scales, *outputs, *patch, *keys, *values;
    float *total_sums, *total_tops, *totals;  // of the segments before
    explicit Bench(float* at) {
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
    }
};

// Where the two vectors of sixteen slots of a block lie.
struct Places {
    const char *k[2], *v[2];
};

INLINE Places find(const AttentionCall& call, Path path, long sequence, long kv_head, long block) {
    const long bytes = call.page_tokens * call.dim * element_bytes(path);
    const long last = (call.starts[sequence] + call.counts[sequence] - 1) / call.page_tokens;
    Places t;
    for (int h = 0; h < 2; ++h) {
        const long slot = block * kBlock + 16 * h, page = slot / call.page_tokens, inside = slot % call.page_tokens;
        const long known = page <= last ? page : 0;  // beyond: loaded, never used
        const char* base = call.pool + call.tables[sequence * call.max_pages + known] * call.page_stride + call.layer_offset;
        t.k[h] = base + kv_head * bytes + inside * 4;
        t.v[h] = base + (call.kv_heads + kv_head) * bytes + inside * call.dim * element_bytes(path);
    }
    return t;
}

// scores[rows][32] = q . K over the dim; the two vectors of slots lie `apart`, perhaps in two pages.
template <class Kind>
static void score(long rows, const typename Kind::X* q, const typename Kind::W* k, long row, long apart, long steps, float* scores) {
    if constexpr (kTileVectors >= 2)
        tall<kTileRows, 2, Kind, kQueryStride>(rows, q, k, row, apart, steps, scores, kBlock, true, nullptr);
    else
        for (int h = 0; h < 2; ++h)
            tall<kTileRows, 1, Kind, kQueryStride>(rows, q, k + h * apart, row, apart, steps, scores + 16 * h, kBlock, true, nullptr);
}

// outputs[rows][dim] = outputs * scale + probabilities . V over `steps` steps.
template <class Kind>
static void gather(long rows, const typename Kind::X* p, const typename Kind::W* v, long row, long dim, long steps, float* outputs,
                   const float* scale) {
    long d = 0;
    if constexpr (kTileVectors >= 2) {
        for (; d + 64 <= dim; d += 64) tall<6, 4, Kind, kBlock>(rows, p, v + d, row, 16, steps, outputs + d, dim, false, scale);
        for (; d + 32 <= dim; d += 32) tall<12, 2, Kind, kBlock>(rows, p, v + d, row, 16, steps, outputs + d, dim, false, scale);
    }
    for (; d < dim; d += 16) tall<kTileRows, 1, Kind, kBlock>(rows, p, v + d, row, 16, steps, outputs + d, dim, false, scale);
}

// One softmax step of rows whose scores are in place: new maxima, rescaling factors, probabilities as the path wants them.
static void soften(const Bench& b, Path path, long row, long rows, long valid, float scale) {
    const Lanes none = set(-kInfinity), factor = set(scale);
    const Mask low = first(valid), high = first(valid > 16 ? valid - 16 : 0);
    for (long r = row; r < row + rows; ++r) {
        float* s = b.scores + r * kBlock;
        const Lanes s0 = select(low, load(s) * factor, none), s1 = select(high, load(s + 16) * factor, none);
        store(s, s0);
        store(s + 16, s1);
        const float top = tree_max(max(s0, s1)), before = b.tops[r];
        b.tops[r] = top > before ? top : before;
        b.scales[r] = before - b.tops[r];
    }
    for (long r = row; r < row + rows; r += 16)
        store_first(b.scales + r, row + rows - r, exp(load_first(b.scales + r, row + rows - r, 0.0f)));
    for (long r = row; r < row + rows; ++r) {
        const float* s = b.scores + r * kBlock;
        const Lanes top = set(b.tops[r]);
        const Lanes e0 = exp(load(s) - top), e1 = exp(load(s + 16) - top);
        b.sums[r] = b.sums[r] * b.scales[r] + tree_sum(e0 + e1);
        float* w = b.weights + r * kBlock;
        if (path == kFp32) {
            store(w, e0);
            store(w + 16, e1);
        } else if (path == kAmx) {
            store_high(reinterpret_cast<uint16_t*>(w), round_bits(e0));
            store_high(reinterpret_cast<uint16_t*>(w) + 16, round_bits(e1));
        } else {
#ifdef __AVX512BF16__
            store_high(reinterpret_cast<uint16_t*>(w), round_bits(e0));
            store_high(reinterpret_cast<uint16_t*>(w) + 16, round_bits(e1));
#else
            store(w, swap_pairs(floats(round_bits(e0))));
            store(w + 16, swap_pairs(floats(round_bits(e1))));
#endif
        }
    }
}

// Probabilities times V for the first `valid` slots of a block. With an odd count of pairs' slots the last odd one is
// replaced by zero through a patched copy.
template <class Kind>
static void blend(const AttentionCall& call, const Bench& b, long row, long rows, const Places& at, long valid) {
    using X = typename Kind::X;
    using W = typename Kind::W;
    constexpr long width = Kind::kPerStep;            // x elements per step
    constexpr long slots = sizeof(W) == 4 && !__is_same(W, float) ? 2 : 1;
    const float* scale = b.scales + row;
    const long joined = at.v[1] == at.v[0] + 16 * call.dim * static_cast<long>(sizeof(W)) / slots ? 2 : 1;  // in one page
    for (long h = 0; h < 2 && valid > 0; h += joined, valid -= 16 * joined) {
        const long here = least(valid, 16 * joined), whole = here / slots;
        const X* p = reinterpret_cast<const X*>(b.weights + row * kBlock) + h * (16 / slots) * width;
        const W* v = reinterpret_cast<const W*>(at.v[h]);
        float* out = b.outputs + row * call.dim;
        gather<Kind>(rows, p, v, call.dim, call.dim, whole, out, scale);
        scale = nullptr;
        if (whole * slots == here) continue;
        if constexpr (slots == 2) {
            W* patch = reinterpret_cast<W*>(b.patch);
            for (long d = 0; d < call.dim; d += 16) store(patch + d, load(v + whole * call.dim + d) & ints(0xFFFFu));
            gather<Kind>(rows, p + whole * width, patch, call.dim, call.dim, 1, out, nullptr);
        }
    }
}

// Both tiles of a block widened to fp32 in chain order, for units of many rows.
INLINE void widen_block(const AttentionCall& call, const Bench& b, const Places& at) {
    for (int h = 0; h < 2; ++h) {
        const auto* k = reinterpret_cast<const uint32_t*>(at.k[h]);
        for (long d = 0; d < call.dim; d += 2) {
            const Ints pair = load(k + d / 2 * call.page_tokens);
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
