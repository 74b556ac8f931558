// See plan.h.
#include "plan.h"

#include <initializer_list>

#include "dispatch.h"
#include "pool.h"

namespace baton {
namespace {
constexpr long kFewRows = 4;         // with at most so many rows memory limits a product
constexpr long kIntegerDepth = 896;  // the same of integer forms, whose elements take a byte
constexpr long kTileDepth = 896;     // the same of integers on tiles
constexpr long kPairTileDepth = 448; // the same of bf16 on tiles
constexpr long kDepth = 448;         // elements of k after which chains continue with the next panel, which is prefetched meanwhile

// The tile size that computes fewest rows, counting the padding of the last tile and a fifth of a row per tile for its
// start and end. Tiles of less than half the most rows serve only calls that have no more rows.
long pick_tile_rows(long rows, long most) {
    long best = most, least_work = 0;
    for (long size : {1L, 2L, 4L, 6L, 8L, 10L, 11L, 12L}) {
        const long work = (rows + size - 1) / size * (5 * size + 1);
        if (size > most || 2 * size < least(rows, most)) continue;
        if (least_work == 0 || work < least_work) best = size, least_work = work;
    }
    return best;
}

// The share of `whole` in equal parts, multiples of `unit`, none above `most` (a multiple too).
long even_share(long whole, long most, long unit) {
    const long parts = (whole + most - 1) / most;
    return round_up((whole + parts - 1) / parts, unit);
}

// Panels of a unit: among sizes that give each thread `fewest` units to twice as many, the one with which the busiest thread
// has least to do. Few rows want many units, so that a thread that is held up leaves little for the others to wait for.
long balanced_share(long panels, long blocks, long threads, long fewest, long widest) {
    const auto share = [&](long units) { return least(widest, (panels * blocks + threads * units - 1) / (threads * units)); };
    long best = 0, least_work = 0;
    for (long size = share(fewest); size >= share(2 * fewest); --size) {
        const long units = (panels + size - 1) / size * blocks, work = (units + threads - 1) / threads * size;
        if (best == 0 || work < least_work) best = size, least_work = work;
    }
    return best;
}

// Whether tiles, where the machine has them, are worth their loads and, behind each group, their stores. Nibbles are widened before.
bool fills_tiles(const ProductCall& call) {
    const Form& form = *call.form;
    if (!is_grouped(form)) return call.rows > kTile / 2;
    const long fewest = !has_nibbles(form) ? 7 : form.group < kDeep ? kTile + 1 : kTile / 2 + 1;
    return form.group >= kDeep / 2 && call.rows >= fewest;
}

const Body& product_body(const ProductCall& call) {
    const Operation pairs = call.rows <= kFewRows ? kProductPairs : kProductPairsMany;
    const Operation integers = fills_tiles(call) || forced_body() >= 0 ? kProductIntegersMany : kProductIntegers;  // tests mean the body that they force
    const int32_t scheme = call.form->scheme;
    return body_for(scheme == kDenseFp32 ? kProductFp32 : scheme == kDensePairs ? pairs : scheme == kDenseAmx ? kProductAmx : integers);
}

// Of integer forms: what a row's packed elements, scales and sums take.
struct RowBytes {
    size_t words, scales, sums;
};

RowBytes row_bytes(const ProductCall& call, const Body& body) {
    const long rows = call.tiles * call.tile_rows;
    return {static_cast<size_t>(round_up(rows * call.kp * body.quad_words, 64)), static_cast<size_t>(round_up(rows * (call.kp / call.x_block) * 4, 64)),
            static_cast<size_t>(round_up(rows * (call.kp / call.group) * 4, 64))};
}

// The depth of a stretch, and how panels and tiles become units, of integer forms.
void plan_integers(ProductCall& call, bool tiles) {
    const Form& form = *call.form;
    const long length = call.kp / form.segments, unit = form.group > kDeep ? form.group : kDeep;
    const bool groups = form.scheme != kInt8 && !call.widen;
    const long most = tiles ? kTileDepth : groups && call.tiles == 2 ? 2 * unit : kIntegerDepth / unit * unit;
    call.depth = call.tiles == 1 && !tiles ? length : even_share(length, most, unit);
    call.levels = 1;
    if (form.segments > 1)
        for (call.levels = 2; form.segments >> (call.levels - 1); ++call.levels) {}
}
}  // namespace

void take(ProductCall& call, const void* packed) {
    const auto* form = static_cast<const Form*>(packed);
    const char* panels = static_cast<const char*>(packed) + first_panel(*form);
    call.form = form, call.weights = panels, call.kp = padded_k(*form);
    call.order = form->ordered ? reinterpret_cast<const int32_t*>(static_cast<const char*>(packed) + kFormBytes) : nullptr;
    call.x_block = is_grouped(*form) ? form->group : call.kp / (form->segments ? form->segments : 1);
    call.group = form->group ? form->group : call.x_block;
}

size_t cut_rows(ProductCall& call) {
    const Body& body = product_body(call);
    const int32_t scheme = call.form->scheme;
    const bool tiles = scheme == kDenseAmx || (!is_dense(*call.form) && body.byte_tiles);
    if (!is_dense(*call.form) && tiles)
        call.widen = has_nibbles(*call.form) || (is_grouped(*call.form) && call.rows > 2 * kTile);
    else
        call.widen = scheme == kInt4 && call.rows > 2 * body.most_group_rows;
    const bool groups = is_grouped(*call.form) || (scheme == kInt4 && !call.widen);
    call.tile_rows = tiles ? kTile : pick_tile_rows(call.rows, groups ? body.most_group_rows : body.most_tile_rows);
    call.tiles = (call.rows + call.tile_rows - 1) / call.tile_rows;
    if (is_dense(*call.form)) return static_cast<size_t>(call.tiles * call.tile_rows * call.kp) * 4;
    const RowBytes bytes = row_bytes(call, body);
    return bytes.words + bytes.scales + 2 * bytes.sums;
}

long cut_units(ProductCall& call, long calls) {
    const Body& body = product_body(call);
    const bool dense = is_dense(*call.form);
    const Path path = static_cast<Path>(call.form->scheme);
    const long kp = call.kp, threads = call.threads = pool_threads();
    const long panels = round_up(call.n, kPanel) / kPanel;
    const bool many = call.tiles >= 3, tiles = dense ? path == kAmx : body.byte_tiles;
    if (dense) {
        call.widen = call.tiles >= 6 && path == kPairs && !body.has_pairs;
        call.depth = call.tiles == 1 ? kp : even_share(kp, tiles ? kPairTileDepth : kDepth, 32);
        call.levels = 1;
    } else {
        plan_integers(call, tiles);
    }
    call.block_tiles = !many ? call.tiles : tiles ? even_share(call.tiles, 32, 2) : even_share(call.tiles, 192 / call.tile_rows, 1);
    const long blocks = (call.tiles + call.block_tiles - 1) / call.block_tiles;
    // Tiles: rows too deep for the second-level cache are read again for every unit, so units are wide then.
    const bool deep = tiles && many && call.block_tiles * kTile * kp * (dense ? 2 : 1) > 1 << 20;
    const long widest = !many ? 32 : deep ? 14 : tiles ? 2 : 8;
    if (tiles) {
        call.chunk_panels = panels * blocks * calls / (threads * (deep ? 1 : 6));
        call.chunk_panels = call.chunk_panels < 1 ? 1 : least(call.chunk_panels, least(widest, panels));
    } else {
        // Where calls share a list, each gives its part of the units, and a unit may be a whole call.
        const long units = many ? 10 : 12;
        call.chunk_panels = calls == 1 ? balanced_share(panels, blocks, threads, units, widest)
                                       : balanced_share(panels, blocks, 1, (units * threads + calls - 1) / calls, least(widest, panels));
    }
    if (call.into && !dense) call.chunk_panels = round_up(call.chunk_panels, kDeep / kPanel);  // a group that is packed lies in one unit
    call.chunks = (panels + call.chunk_panels - 1) / call.chunk_panels;
    return blocks * call.chunks;
}

bool hands_on(const ProductCall& gated, const ProductCall& next) {
    if (is_dense(*gated.form) || is_dense(*next.form)) return gated.form->scheme == next.form->scheme;
    const Body& body = product_body(gated);
    return body.byte_tiles && &body == &product_body(next) && is_grouped(*next.form) && next.group <= kDeep && next.k % kDeep == 0 && !next.order;
}

size_t unit_bytes(const ProductCall& call) {
    const long halves = call.gated ? 2 : 1;
    const long wide = !call.widen ? 0 : is_dense(*call.form) ? call.depth * kPanel : call.depth * kPanel / 4;
    return static_cast<size_t>(call.levels * halves * call.chunk_panels * call.block_tiles * call.tile_rows * kPanel + wide) * 4;
}

void place_rows(ProductCall& call, char* at) {
    call.packed_x = at;
    if (is_dense(*call.form)) return;
    const RowBytes bytes = row_bytes(call, product_body(call));
    call.x_scales = reinterpret_cast<float*>(at + bytes.words);
    call.x_sums = reinterpret_cast<int32_t*>(at + bytes.words + bytes.scales);
    call.x_begins = reinterpret_cast<int32_t*>(at + bytes.words + bytes.scales + bytes.sums);
}

void pack_tile(const ProductCall& call, long tile) {
    const Body& body = product_body(call);
    is_dense(*call.form) ? body.pack_rows(call, static_cast<Path>(call.form->scheme), tile) : body.pack_bytes(call, tile);
}

void run_unit(const ProductCall& call, long unit, int thread) {
    const Body& body = product_body(call);
    float* scratch = thread_scratch(thread);
    is_dense(*call.form) ? body.product(call, static_cast<Path>(call.form->scheme), unit, scratch) : body.product_integer(call, unit, scratch);
}
}  // namespace baton
