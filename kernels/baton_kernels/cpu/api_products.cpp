// The C functions around packed weights: packing, gathering embedding rows, products. Plans a call (tiles, units,
// scratch) from its shape; the plan decides speed, never bits.
#include <initializer_list>
#include <new>

#include "api.h"
#include "dispatch.h"
#include "pack.h"
#include "pool.h"

using namespace baton;

namespace {
constexpr long kFewRows = 4;           // with at most so many rows memory limits a product
constexpr long kDepth = 448;           // elements of k after which chains continue with the next panel, which is prefetched meanwhile
constexpr long kSmall = 1 << 14;       // calls of at most so many elements wake no thread

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

const Body& product_body(const ProductCall& call, Path path) {
    const Operation pairs = call.rows <= kFewRows ? kProductPairs : kProductPairsMany;
    return body_for(path == kFp32 ? kProductFp32 : path == kPairs ? pairs : kProductAmx);
}

// Decides how the rows are packed; returns the bytes that they take.
size_t cut_rows(ProductCall& call, Path path) {
    call.tile_rows = path == kAmx ? kTile : pick_tile_rows(call.rows, product_body(call, path).most_tile_rows);
    call.tiles = (call.rows + call.tile_rows - 1) / call.tile_rows;
    return static_cast<size_t>(call.tiles * call.tile_rows * padded_depth(path, call.k)) * 4;
}

void run_product(ProductCall call, Path path, size_t shared_before) {
    const Body& body = product_body(call, path);
    const long kp = padded_depth(path, call.k), threads = call.threads = pool_threads();
    const long panels = round_up(call.n, kPanel) / kPanel, halves = call.gated ? 2 : 1;
    const size_t packed = cut_rows(call, path);
    const bool many = call.tiles >= 3;
    call.widen = call.tiles >= 6 && path == kPairs && !body.has_pairs;
    call.depth = call.tiles == 1 || (!many && path == kAmx) ? kp : path == kAmx ? even_share(kp, 256, 32) : even_share(kp, kDepth, 32);
    call.block_tiles = !many ? call.tiles : path == kAmx ? even_share(call.tiles, 32, 2) : least(call.tiles, 192 / call.tile_rows);
    const long blocks = (call.tiles + call.block_tiles - 1) / call.block_tiles;
    // Tiles: rows too deep for the second-level cache are read again for every unit, so units are wide then.
    const bool deep = path == kAmx && many && call.block_tiles * kTile * kp * 2 > 1 << 20;
    const long widest = !many ? 32 : deep ? 14 : path == kAmx ? 2 : 8;
    if (path == kAmx) {
        call.chunk_panels = panels * blocks / (threads * (deep ? 1 : 6));
        call.chunk_panels = call.chunk_panels < 1 ? 1 : least(call.chunk_panels, widest);
    } else {
        call.chunk_panels = balanced_share(panels, blocks, threads, many ? 6 : 12, widest);
    }
    call.chunks = (panels + call.chunk_panels - 1) / call.chunk_panels;
    const long floats = halves * call.chunk_panels * call.block_tiles * call.tile_rows * kPanel + (call.widen ? call.depth * kPanel : 0);
    reserve_scratch(static_cast<size_t>(floats) * 4);
    const bool ready = call.packed_x;
    if (!ready) {
        char* shared = shared_scratch(shared_before + packed);
        if (shared_before && !call.packed_out) call.out = reinterpret_cast<float*>(shared);
        call.packed_x = shared + shared_before;
    }
    if (ready) {
    } else if (call.rows * call.k <= kSmall) {
        const FlushDenormals flush;
        for (long t = 0; t < call.tiles; ++t) body.pack_rows(call, path, t);
    } else {
        parallel(call.tiles, [&](long t, int) { body.pack_rows(call, path, t); });
    }
    parallel(blocks * call.chunks, [&](long unit, int thread) { body.product(call, path, unit, thread_scratch(thread)); });
}
}  // namespace

extern "C" {

long baton_pack_bytes(int path, long n, long k) { return packed_bytes(static_cast<Path>(path), n, k); }

const char* baton_pack(int path, int source, const void* weights, long n, long k, void* packed) {
    const Turn turn;
    parallel(round_up(n, kPanel) / kPanel, [&](long panel, int) {
        pack_panel(static_cast<Path>(path), static_cast<Source>(source), weights, n, k, panel, packed);
    });
    return nullptr;
}

const char* baton_embed(int path, const void* packed, const int32_t* tokens, long rows, long n, long k, float* out) {
    for (long r = 0; r < rows; ++r)
        if (tokens[r] < 0 || tokens[r] >= n) return "tokens: an id lies outside the vocabulary";
    const Turn turn;
    parallel(rows, [&](long r, int) { unpack_column(static_cast<Path>(path), packed, k, tokens[r], out + r * k); });
    return nullptr;
}

const char* baton_product(int path, const float* x, const void* packed, long rows, long n, long k, float* out, const float* bias,
                          const float* residual) try {
    if (rows == 0) return nullptr;
    const Turn turn;
    ProductCall call{};
    call.x = x, call.weights = packed, call.bias = bias, call.residual = residual, call.out = out;
    call.rows = rows, call.n = n, call.k = k;
    run_product(call, static_cast<Path>(path), 0);
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for the scratch space of a product: use smaller chunks";
}

// SwiGLU and the product after it; the result of the first is written in the packed form that the second reads.
const char* baton_feed_forward(int path, const float* x, const void* gate_up, const void* down, long rows, long ffn, long k, float* between,
                               float* out) try {
    if (ffn % kPanel || rows == 0) {
        const char* wrong = baton_gated(path, x, gate_up, rows, ffn, k, between);
        return wrong ? wrong : baton_product(path, between, down, rows, k, ffn, out, nullptr, out);
    }
    const Turn turn;
    const Path kind = static_cast<Path>(path);
    ProductCall first{}, second{};
    first.x = x, first.weights = gate_up, first.rows = rows, first.n = ffn, first.k = k, first.gated = true;
    second.weights = down, second.out = out, second.residual = out, second.rows = rows, second.n = k, second.k = ffn;
    const size_t packed = cut_rows(second, kind);
    first.packed_out = second.packed_x = shared_scratch(packed + cut_rows(first, kind));  // the first product's x lies behind
    run_product(first, kind, packed);
    run_product(second, kind, 0);
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for the scratch space of a product: use smaller chunks";
}

const char* baton_gated(int path, const float* x, const void* packed, long rows, long n, long k, float* out) try {
    if (rows == 0) return nullptr;
    const Turn turn;
    ProductCall call{};
    call.x = x, call.weights = packed, call.out = out;
    call.rows = rows, call.n = n, call.k = k, call.gated = true;
    if (n % kPanel == 0) {
        run_product(call, static_cast<Path>(path), 0);
        return nullptr;
    }
    call.gated = false, call.n = 2 * n;
    run_product(call, static_cast<Path>(path), static_cast<size_t>(round_up(rows * 2 * n, 16)) * 4);
    const auto* both = reinterpret_cast<const float*>(shared_scratch(0));
    const Body& body = body_for(kRows);
    parallel(rows, [&](long r, int) { body.gate(both + r * 2 * n, out + r * n, 1, n); });
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for the scratch space of a product: use smaller chunks";
}
}
