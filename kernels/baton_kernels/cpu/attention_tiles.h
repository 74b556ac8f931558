// The amx path's share of attention, over matrix tiles: scores of sixteen queries against a block of 32 slots, and
// probabilities times V as one tile step per block. Keys and values are read from the page where they lie as tiles, else
// from a staged copy. A slot beyond a row's limit has probability zero and its V is staged as zero: never multiplied.
#pragma once

namespace baton::BODY {

// The keys of one block as tiles: [dim pairs, padded to 16][16 slots][2], each half of the slots `stride` bytes per pair.
struct KeyTiles {
    const char* half[2];
    long stride;

    KeyTiles(const AttentionCall& call, const Bench& b, const Places& at) : half{at.k[0], at.k[1]}, stride(at.k_row * 4) {
        if (call.dim % 32 == 0) return;
        auto* staged = reinterpret_cast<uint32_t*>(b.keys);
        const long pairs = call.dim / 2, padded = padded_depth(kAmx, call.dim) / 2;
        for (long p = 0; p < padded; ++p)
            for (int h = 0; h < 2; ++h)
                store(staged + p * kBlock + 16 * h, p < pairs ? load(reinterpret_cast<const uint32_t*>(at.k[h] + p * stride)) : ints(0));
        half[0] = reinterpret_cast<const char*>(staged), half[1] = half[0] + 64, stride = kBlock * 4;
    }
};

// scores[query][32] for queries [from, to) and for the padding of the last tile.
static void score_tiles(Tiles& tiles, const AttentionCall& call, const Bench& b, const KeyTiles& keys, long from, long to) {
    constexpr long row = kQueryStride * 4;
    for (long q = from; q < to; q += kTile) {
        const char* query = reinterpret_cast<const char*>(b.queries + q * kQueryStride);
        tiles.template zero<0>();
        tiles.template zero<1>();
        for (long d = 0; d < call.dim; d += 32) {
            tiles.template load<2>(query + d * 2, row);
            tiles.template load<3>(keys.half[0] + d / 2 * keys.stride, keys.stride);
            tiles.template dot<0, 2, 3>();
            tiles.template drop<3>();
            tiles.template load<3>(keys.half[1] + d / 2 * keys.stride, keys.stride);
            tiles.template dot<1, 2, 3>();
            tiles.template drop<2>(), tiles.template drop<3>();
        }
        tiles.template store<0>(b.scores + q * kBlock, kBlock * 4), tiles.template drop<0>();
        tiles.template store<1>(b.scores + q * kBlock + 16, kBlock * 4), tiles.template drop<1>();
    }
}

// Copies slots [from, to) of a block into the staged V, [16 pairs][dim][2]; the partner of a lone even slot becomes zero.
static void stage_values(const AttentionCall& call, const Bench& b, const Places& at, long from, long to) {
    auto* staged = reinterpret_cast<uint32_t*>(b.values);
    for (long pair = from / 2; 2 * pair < to; ++pair) {
        const auto* v = reinterpret_cast<const uint32_t*>(at.v[pair / 8]) + pair % 8 * call.dim;
        const Ints keep = ints(2 * pair + 1 < to ? 0xFFFFFFFFu : 0xFFFFu);
        for (long d = 0; d < call.dim; d += 16) store(staged + pair * call.dim + d, load(v + d) & keep);
    }
}

// The staged V of slots [from, to) alone; all others are zero.
static void stage_part(const AttentionCall& call, const Bench& b, const Places& at, long from, long to) {
    auto* staged = reinterpret_cast<uint32_t*>(b.values);
    for (long pair = 0; pair < kBlock / 2; ++pair) {
        const auto* v = reinterpret_cast<const uint32_t*>(at.v[pair / 8]) + pair % 8 * call.dim;
        const auto seen = [&](long slot, uint32_t half) { return slot >= from && slot < to ? half : 0u; };
        const Ints keep = ints(seen(2 * pair, 0xFFFFu) | seen(2 * pair + 1, 0xFFFF0000u));
        for (long d = 0; d < call.dim; d += 16) store(staged + pair * call.dim + d, load(v + d) & keep);
    }
}

static void clear_values(const AttentionCall& call, const Bench& b, long from) {
    auto* staged = reinterpret_cast<uint32_t*>(b.values);
    for (long i = (from + 1) / 2 * call.dim; i < kBlock / 2 * call.dim; i += 16) store(staged + i, ints(0));
}

static void rescale(const AttentionCall& call, const Bench& b, long row, long rows) {
    for (long r = row; r < row + rows; ++r) {
        if (b.scales[r] == 1.0f) continue;
        const Lanes scale = set(b.scales[r]);
        float* out = b.outputs + r * call.dim;
        for (long d = 0; d < call.dim; d += 16) store(out + d, load(out + d) * scale);
    }
}

// outputs[query] += probabilities . V for `count` queries. `guarded`: the rows behind them in the last tile belong to other
// queries, so the tile is computed in a copy.
static void blend_tiles(Tiles& tiles, const AttentionCall& call, const Bench& b, const void* values, long from, long count, bool guarded) {
    const long row = call.dim * 4;
    float* copy = b.values + kBlock / 2 * kMaxDim;
    rescale(call, b, from, count);
    for (long q = from; q < from + count; q += kTile) {
        float* out = b.outputs + q * call.dim;
        float* to = guarded ? copy : out;
        tiles.template load<2>(b.weights + q * kBlock, kBlock * 4);
        for (long d = 0; d < call.dim; d += 16) {
            tiles.template load<0>(out + d, row);
            tiles.template load<3>(static_cast<const char*>(values) + d * 4, row);
            tiles.template dot<0, 2, 3>();
            tiles.template drop<3>();
            tiles.template store<0>(to + d, row), tiles.template drop<0>();
        }
        tiles.template drop<2>();
        for (long i = 0; guarded && i < least(kTile, from + count - q) * call.dim; i += 16) store(out + i, load(copy + i));
    }
}

// Attends rows [from, to) to a block of which each sees another part. As long as they see its first slots, a row's staged
// values are those of the row before and one more.
static void part_tiles(Tiles& tiles, const AttentionCall& call, const Bench& b, const Places& at, const Sight& sight, long group, long from, long to) {
    long staged = 0;
    for (long i = from; i < to; ++i) {
        const long unseen = sight.unseen(i), valid = sight.valid(i);
        if (unseen) {
            stage_part(call, b, at, unseen, valid);
        } else {
            if (i == from) clear_values(call, b, valid);
            stage_values(call, b, at, staged, valid);
            staged = valid;
        }
        soften(call, b, kAmx, i * group, group, unseen, valid);
        blend_tiles(tiles, call, b, b.values, i * group, group, true);
    }
}

// One block for a unit's query rows.
static void block_tiles(Tiles& tiles, const AttentionCall& call, const Bench& b, const Places& at, const Sight& sight, long rows, long group) {
    score_tiles(tiles, call, b, KeyTiles(call, b, at), sight.done * group, sight.begun * group);
    part_tiles(tiles, call, b, at, sight, group, sight.done, sight.full);
    const long from = sight.full * group, end = most(sight.full, sight.left), many = end * group - from;
    if (many > 0) {
        const bool whole = at.v[1] == at.v[0] + kBlock / 4 * call.dim * 4;
        if (!whole) stage_values(call, b, at, 0, kBlock);
        soften(call, b, kAmx, from, many, 0, kBlock);
        blend_tiles(tiles, call, b, whole ? static_cast<const void*>(at.v[0]) : b.values, from, many, end < rows);
    }
    part_tiles(tiles, call, b, at, sight, group, end, sight.begun);
}
}  // namespace baton::BODY
