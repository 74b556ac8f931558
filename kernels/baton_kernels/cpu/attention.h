// Paged attention of one unit: queries loaded, blocks walked by chains or by tiles, segments folded, outputs divided.
#pragma once

namespace baton::BODY {

static void load_query(const AttentionCall& call, Path path, const float* q, float* to) {
    for (long d = 0; d < call.dim; d += 16) {
        const Lanes v = load(q + d);
        if (path == kFp32) {
            store(to + d, v);
        } else if (path == kAmx) {
            store_high(reinterpret_cast<uint16_t*>(to) + d, round_bits(v));
            if (d + 16 == call.dim) store_high(reinterpret_cast<uint16_t*>(to) + d + 16, ints(0));
        } else {
#ifdef __AVX512BF16__
            store_high(reinterpret_cast<uint16_t*>(to) + d, round_bits(v));
#else
            store(to + d, swap_pairs(floats(round_bits(v))));
#endif
        }
    }
}

// Folds the current segment of queries [from, to) into their totals and begins the next.
static void fold(const AttentionCall& call, const Bench& b, long from, long to) {
    alignas(64) float before[16], now[16];
    for (long q = from; q < to; q += 16) {
        const long n = least(16, to - q);
        const Lanes old = load_first(b.total_tops + q, n, 0.0f), fresh = load_first(b.tops + q, n, 0.0f), top = max(old, fresh);
        const Lanes was = exp(old - top), is = exp(fresh - top);
        store(before, was);
        store(now, is);
        store_first(b.total_sums + q, n, fma(load_first(b.sums + q, n, 0.0f), is, load_first(b.total_sums + q, n, 0.0f) * was));
        store_first(b.total_tops + q, n, top);
        for (long i = 0; i < n; ++i) {
            float *total = b.totals + (q + i) * call.dim, *part = b.outputs + (q + i) * call.dim;
            for (long d = 0; d < call.dim; d += 16) {
                store(total + d, fma(load(part + d), set(now[i]), load(total + d) * set(before[i])));
                store(part + d, set(0.0f));
            }
        }
    }
    for (long q = from; q < to; ++q) b.tops[q] = -kInfinity, b.sums[q] = 0.0f;
}

// A row's output, with the head's sink in the sum that divides it. The sink joins once, when all slots are in the sum, so
// no block, segment, chunk or window decides where.
static void divide_beside(Lanes sink, Lanes top, Lanes sum, const float* from, long dim, float* out) {
    const Lanes most = max(top, sink), share = exp(top - most), all = sum * share + exp(sink - most);
    for (long d = 0; d < dim; d += 16) store(out + d, load(from + d) * share / all);
}

static void clear(const AttentionCall& call, float* tops, float* sums, float* outputs, long queries) {
    for (long i = 0; i < queries; ++i) tops[i] = -kInfinity, sums[i] = 0.0f;
    for (long i = 0; i < queries * call.dim; i += 16) store(outputs + i, set(0.0f));
}

// Scores of queries [from, from + many) with a block's slots. Over a latent, elements are many and large beside their sum,
// and a chain rounds as often as it has elements: so each stretch has a chain of its own, which is added to those before.
// The bench's place of these rows' probabilities, which are not known yet, holds it meanwhile.
template <class Kind>
static void score_block(const AttentionCall& call, Path path, const Bench& b, const Places& at, long from, long many, Ahead ahead) {
    const auto* q = reinterpret_cast<const typename Kind::X*>(b.queries) + from * kQueryStride;
    const auto* k = reinterpret_cast<const typename Kind::W*>(at.k[0]);
    const long apart = (at.k[1] - at.k[0]) / 4;
    float *scores = b.scores + from * kBlock, *chain = b.weights + from * kBlock;
    if constexpr (__is_same(Kind, Chain))
        if (call.stretches) {
            for (long d = 0; d < call.dim; d += kStretch) {
                score<Kind>(many, q + d, k + d * at.k_row, at.k_row, apart, kStretch, d ? chain : scores, ahead);
                if (ahead.at) ahead.at += kStretch * ahead.stride;
                for (long i = 0; d && i < many * kBlock; i += 16) store(scores + i, load(scores + i) + load(chain + i));
            }
            return;
        }
    score<Kind>(many, q, k, at.k_row, apart, path == kPairs ? call.dim / 2 : call.dim, scores, ahead);
}

// Attends queries [from, from + many) to a block of which they see all slots.
template <class Kind>
static void block_whole(const AttentionCall& call, Path path, const Bench& b, const Places& at, const Places* next, long from, long many) {
    score_block<Kind>(call, path, b, at, from, many, next ? Ahead{next->k[0], next->k_row * 4, next->k[1] - next->k[0]} : Ahead{});
    soften(call, b, path, from, many, 0, kBlock);
    blend<Kind>(call, b, from, many, at, next, 0, kBlock);
}

// Attends rows [from, to) to a block of which each sees another part. They are scored together over the whole block, and the
// softmax step drops the slots that a row does not see.
template <class Kind>
static void block_parts(const AttentionCall& call, Path path, const Bench& b, const Places& at, const Sight& sight, long group, long from, long to) {
    if (to <= from) return;
    score_block<Kind>(call, path, b, at, from * group, (to - from) * group, {});
    for (long i = from; i < to; ++i) {
        soften(call, b, path, i * group, group, sight.unseen(i), sight.valid(i));
        blend<Kind>(call, b, i * group, group, at, nullptr, sight.unseen(i), sight.valid(i));
    }
}

// One block by chains. The rows that see all of it go through it in strips, whose scores and probabilities stay in the
// first-level cache.
template <class Kind>
static void block_rows(const AttentionCall& call, Path path, const Bench& b, const Places& at, const Places* next, const Sight& sight, long group) {
    constexpr long kStrip = 12;
    const long from = sight.full * group, end = most(sight.full, sight.left) * group;
    block_parts<Kind>(call, path, b, at, sight, group, sight.done, sight.full);
    block_parts<Kind>(call, path, b, at, sight, group, most(sight.full, sight.left), sight.begun);
#ifndef __AVX512BF16__
    if (path == kPairs && end - from >= 3 * kTileRows) {
        widen_block(call, b, at);
        for (long i = from; i < end; i += kStrip) {
            const long many = least(kStrip, end - i);
            score<Chain>(many, b.queries + i * kQueryStride, b.keys, kBlock, 16, call.dim, b.scores + i * kBlock, {});
            soften(call, b, path, i, many, 0, kBlock);
            gather<Chain>(many, b.weights + i * kBlock, b.values, call.dim, call.dim, kBlock, b.outputs + i * call.dim, b.scales + i, nullptr);
        }
        return;
    }
#endif
    for (long i = from; i < end; i += kStrip) block_whole<Kind>(call, path, b, at, i == from ? next : nullptr, i, least(kStrip, end - i));
}

#ifndef BATON_TILES_ONLY
static void block_chains(const AttentionCall& call, Path path, const Bench& b, const Places& at, const Places* next, const Sight& sight, long group) {
#ifndef __AVX512BF16__
    if (path == kFp32) return block_rows<Chain>(call, path, b, at, next, sight, group);
#endif
    block_rows<PairKind>(call, path, b, at, next, sight, group);
}
#endif

// With few rows the thread waits for memory, and pages lie anywhere, so it prefetches the next block during this one.
INLINE void fetch_block(const AttentionCall& call, const Places& at) {
    const long pair = pair_bytes(call.kv), bytes = 8 * call.dim * pair;
    for (long k = 0; k < call.dim / 2; ++k)  // in ascending order, which the hardware prefetcher recognizes
        for (int h = 0; h < 2; ++h) fetch(at.k[h] + k * at.k_row * pair);
    for (int h = 0; h < 2; ++h)
        for (long i = 0; i < bytes; i += 64) fetch(at.v[h] + i);
}

// The first block of which some row of a unit sees something.
INLINE long first_block(const AttentionCall& call, long unit) {
    const int32_t* at = call.units + unit / call.kv_heads * 2;
    return first_seen(call.starts[at[0]] + at[1], call.window) / kBlock;
}

// Walks the blocks of a unit in ascending order. After the last one it prefetches the first block of the unit that this
// thread most likely takes next.
template <class Block>
INLINE void walk(const AttentionCall& call, Path path, const Bench& b, long unit, long first_slot, long rows, Block block_of) {
    const long sequence = call.units[unit / call.kv_heads * 2], kv_head = unit % call.kv_heads, after = unit + call.threads;
    const long group = call.heads / call.kv_heads, last_block = (first_slot + rows - 1) / kBlock;
    const bool few = rows * group <= 2 * kTile;
    for (long block = first_block(call, unit); block <= last_block; ++block) {
        const long begin = block * kBlock;
        const Sight sight(first_slot, rows, begin, call.window);
        if (begin > 0 && begin % kSegment == 0) {  // rows that see nothing before this block have nothing to fold
            const long passed = call.window ? least(rows, most(0, begin + call.window - 1 - first_slot)) : rows;
            fold(call, b, sight.done * group, passed * group);
        }
        const bool last = block == last_block, known = few && (!last || after < call.unit_count * call.kv_heads);
        Places next;
        if (known)
            next = last ? find(call, path, call.units[after / call.kv_heads * 2], after % call.kv_heads, first_block(call, after))
                        : find(call, path, sequence, kv_head, block + 1);
        Places at = find(call, path, sequence, kv_head, block);
        if (call.kv != kKvOwn) {
            if (known) fetch_block(call, next);
            at = decode_block(call, path, b, at);
        }
        block_of(at, known && call.kv == kKvOwn ? &next : nullptr, sight);
    }
}

static void attention(const AttentionCall& call, Path path, long unit, float* scratch) {
    const Bench b(scratch, call.kv);
    const long kv_head = unit % call.kv_heads, group = call.heads / call.kv_heads, dim = call.dim;
    const long sequence = call.units[unit / call.kv_heads * 2], local = call.units[unit / call.kv_heads * 2 + 1];
    const long rows = least(call.tile_rows, call.counts[sequence] - local), first_slot = call.starts[sequence] + local;
    const long row0 = call.first_row[sequence] + local, queries = rows * group;
    for (long i = 0; i < queries; ++i)
        load_query(call, path, call.q + ((row0 + i / group) * call.heads + kv_head * group + i % group) * dim, b.queries + i * kQueryStride);
    clear(call, b.tops, b.sums, b.outputs, queries);
    const bool parts = first_slot + rows > kSegment;
    if (parts) clear(call, b.total_tops, b.total_sums, b.totals, queries);
#ifndef BATON_PAIRS_ONLY
    if (path == kAmx) {
        Tiles tiles;
        walk(call, path, b, unit, first_slot, rows, [&](const Places& at, const Places* next, const Sight& sight) {
            if (next) fetch_block(call, *next);
            block_tiles(tiles, call, b, at, sight, rows, group);
        });
    }
#endif
#ifndef BATON_TILES_ONLY
    if (path != kAmx) {
        walk(call, path, b, unit, first_slot, rows, [&](const Places& at, const Places* next, const Sight& sight) {
            block_chains(call, path, b, at, next, sight, group);
        });
    }
#endif
    for (long i = 0; i < queries; ++i) {
        const long slot = first_slot + i / group;
        const bool folded = first_seen(slot, call.window) / kSegment < slot / kSegment;
        if (folded) fold(call, b, i, i + 1);
        const float *from = (folded ? b.totals : b.outputs) + i * dim;
        const long head = kv_head * group + i % group;
        float* out = call.out + ((row0 + i / group) * call.heads + head) * dim;
        const Lanes sum = set((folded ? b.total_sums : b.sums)[i]);
        if (call.sinks)
            divide_beside(set(call.sinks[head]), set((folded ? b.total_tops : b.tops)[i]), sum, from, dim, out);
        else
            for (long d = 0; d < dim; d += 16) store(out + d, load(from + d) / sum);
    }
}
}  // namespace baton::BODY
