// The C functions of products on packed weights. Plans a call (tiles, units, scratch) from its shape; the plan decides
// speed, never bits.
#include <initializer_list>
#include <new>

#include "api.h"
#include "dispatch.h"
#include "expect.h"
#include "form.h"
#include "pool.h"

using namespace baton;

namespace {
constexpr long kFewRows = 4;           // with at most so many rows memory limits a product
constexpr long kIntegerDepth = 896;    // the same of integer forms, whose elements take a byte
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

const Body& product_body(const ProductCall& call) {
    const Operation pairs = call.rows <= kFewRows ? kProductPairs : kProductPairsMany;
    const int32_t scheme = call.form->scheme;
    return body_for(scheme == kDenseFp32 ? kProductFp32 : scheme == kDensePairs ? pairs : scheme == kDenseAmx ? kProductAmx : kProductIntegers);
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

// Names the form of a call and the place of its panels.
void take(ProductCall& call, const void* packed) {
    const auto* form = static_cast<const Form*>(packed);
    const char* panels = static_cast<const char*>(packed) + first_panel(*form);
    call.form = form, call.weights = panels, call.kp = padded_k(*form);
    call.order = form->ordered ? reinterpret_cast<const int32_t*>(static_cast<const char*>(packed) + kFormBytes) : nullptr;
    call.x_block = is_grouped(*form) ? form->group : call.kp / (form->segments ? form->segments : 1);
    call.group = form->group ? form->group : call.x_block;
}

// Decides how the rows are packed; returns the bytes that they take.
size_t cut_rows(ProductCall& call) {
    const Body& body = product_body(call);
    const int32_t scheme = call.form->scheme;
    call.widen = scheme == kInt4 && call.rows > 2 * body.most_group_rows;
    const bool groups = is_grouped(*call.form) || (scheme == kInt4 && !call.widen);
    call.tile_rows = scheme == kDenseAmx ? kTile : pick_tile_rows(call.rows, groups ? body.most_group_rows : body.most_tile_rows);
    call.tiles = (call.rows + call.tile_rows - 1) / call.tile_rows;
    if (is_dense(*call.form)) return static_cast<size_t>(call.tiles * call.tile_rows * call.kp) * 4;
    const RowBytes bytes = row_bytes(call, body);
    return bytes.words + bytes.scales + 2 * bytes.sums;
}

// The depth of a stretch, and how panels and tiles become units, of integer forms.
void plan_integers(ProductCall& call) {
    const Form& form = *call.form;
    const long length = call.kp / form.segments, unit = form.group > kDeep ? form.group : kDeep;
    const bool groups = form.scheme != kInt8 && !call.widen;
    const long most = groups && call.tiles == 2 ? 2 * unit : kIntegerDepth / unit * unit;
    call.depth = call.tiles == 1 ? length : even_share(length, most, unit);
    call.levels = 1;
    if (form.segments > 1)
        for (call.levels = 2; form.segments >> (call.levels - 1); ++call.levels) {}
}

void run_one(ProductCall call, size_t shared_before) {
    const Body& body = product_body(call);
    const bool dense = is_dense(*call.form);
    const Path path = static_cast<Path>(call.form->scheme);
    const long kp = call.kp, threads = call.threads = pool_threads();
    const long panels = round_up(call.n, kPanel) / kPanel, halves = call.gated ? 2 : 1;
    const size_t packed = cut_rows(call);
    const bool many = call.tiles >= 3, tiles = dense && path == kAmx;
    if (dense) {
        call.widen = call.tiles >= 6 && path == kPairs && !body.has_pairs;
        call.depth = call.tiles == 1 || (!many && tiles) ? kp : tiles ? even_share(kp, 256, 32) : even_share(kp, kDepth, 32);
        call.levels = 1;
    } else {
        plan_integers(call);
    }
    call.block_tiles = !many ? call.tiles : tiles ? even_share(call.tiles, 32, 2) : even_share(call.tiles, 192 / call.tile_rows, 1);
    const long blocks = (call.tiles + call.block_tiles - 1) / call.block_tiles;
    // Tiles: rows too deep for the second-level cache are read again for every unit, so units are wide then.
    const bool deep = tiles && many && call.block_tiles * kTile * kp * 2 > 1 << 20;
    const long widest = !many ? 32 : deep ? 14 : tiles ? 2 : 8;
    if (tiles) {
        call.chunk_panels = panels * blocks / (threads * (deep ? 1 : 6));
        call.chunk_panels = call.chunk_panels < 1 ? 1 : least(call.chunk_panels, widest);
    } else {
        call.chunk_panels = balanced_share(panels, blocks, threads, many ? 10 : 12, widest);
    }
    call.chunks = (panels + call.chunk_panels - 1) / call.chunk_panels;
    const long wide = !call.widen ? 0 : dense ? call.depth * kPanel : call.depth * kPanel / 4;
    reserve_scratch(static_cast<size_t>(call.levels * halves * call.chunk_panels * call.block_tiles * call.tile_rows * kPanel + wide) * 4);
    const bool ready = call.packed_x;
    if (!ready) {
        char* shared = shared_scratch(shared_before + packed);
        call.packed_x = shared + shared_before;
    }
    if (!dense) {
        const RowBytes bytes = row_bytes(call, body);
        call.x_scales = reinterpret_cast<float*>(call.packed_x + bytes.words);
        call.x_sums = reinterpret_cast<int32_t*>(call.packed_x + bytes.words + bytes.scales);
        call.x_begins = reinterpret_cast<int32_t*>(call.packed_x + bytes.words + bytes.scales + bytes.sums);
    }
    const auto pack = [&](long t) { dense ? body.pack_rows(call, path, t) : body.pack_bytes(call, t); };
    if (ready) {
    } else if (call.rows * call.k <= kSmall) {
        const FlushDenormals flush;
        for (long t = 0; t < call.tiles; ++t) pack(t);
    } else {
        parallel(call.tiles, [&](long t, int) { pack(t); });
    }
    parallel(blocks * call.chunks, [&](long unit, int thread) {
        dense ? body.product(call, path, unit, thread_scratch(thread)) : body.product_integer(call, unit, thread_scratch(thread));
    });
}

// Calls `one` with each matrix of a stack, or with the matrix itself, and with the first of its columns.
template <class Function>
void each_part(const void* packed, Function one) {
    const auto* form = static_cast<const Form*>(packed);
    if (form->scheme != kStack) return one(packed, 0L);
    long column = 0;
    for (long part = 0; part < kMostParts && form->parts[part]; ++part) {
        const char* at = static_cast<const char*>(packed) + form->parts[part];
        one(at, column);
        column += reinterpret_cast<const Form*>(at)->n;
    }
}

size_t packed_rows_bytes(ProductCall call, const void* packed) {
    size_t most = 0;
    each_part(packed, [&](const void* part, long) {
        take(call, part);
        const size_t bytes = cut_rows(call);
        if (bytes > most) most = bytes;
    });
    return most;
}

// out and residual have rows of `call.out_row` elements.
void run_product(const ProductCall& call, const void* packed, size_t shared_before) {
    each_part(packed, [&](const void* part, long column) {
        ProductCall one = call;
        take(one, part);
        one.n = one.form->n / (call.gated ? 2 : 1), one.out = call.out ? call.out + column : nullptr;
        if (call.bias) one.bias = call.bias + column;
        if (call.residual) one.residual = call.residual + column;
        run_one(one, shared_before);
    });
}

const Form& form_of(const void* packed) { return *static_cast<const Form*>(packed); }
constexpr const char* kNoMemory = "out of memory for the scratch space of a product: use smaller chunks";
}  // namespace

extern "C" {

const char* baton_product(const float* x, const void* packed, long rows, float* out, const float* bias, const float* residual) try {
    if (rows == 0) return nullptr;
    const Turn turn;
    ProductCall call{};
    call.x = x, call.bias = bias, call.residual = residual, call.out = out;
    call.rows = rows, call.k = form_of(packed).k, call.out_row = form_of(packed).n;
    run_product(call, packed, 0);
    return nullptr;
} catch (const std::bad_alloc&) {
    return kNoMemory;
}

// The MLP of a layer. If gate, up and the product behind them are dense and have no bias, the first writes its result in
// the packed form that the second reads. `out` may be x.
const char* baton_feed_forward(const float* x, const BatonMlp* mlp, long rows, float* between, float* out, const float* residual, const void* after) try {
    const void *gate_up = mlp->gate_up, *down = mlp->down;
    const long ffn = form_of(down).k, n = form_of(down).n;
    const bool plain = mlp->gated && !mlp->gate_up_bias;
    if (!plain || ffn % kPanel || rows == 0 || !is_dense(form_of(gate_up)) || !is_dense(form_of(down))) {
        expect_product(down, rows);
        const char* wrong = mlp->gated ? baton_gated(x, gate_up, rows, between, mlp->gate_up_bias, mlp->activation)
                                       : baton_activated(x, gate_up, rows, between, mlp->gate_up_bias, mlp->activation);
        expect_product(after, rows);
        return wrong ? wrong : baton_product(between, down, rows, out, mlp->down_bias, residual);
    }
    const Turn turn;
    ProductCall first{}, second{};
    first.x = x, first.rows = rows, first.k = form_of(gate_up).k, first.gated = true, first.activation = mlp->activation;
    second.bias = mlp->down_bias, second.residual = residual, second.out = out;
    second.rows = rows, second.n = second.out_row = n, second.k = ffn;
    take(second, down);
    const size_t packed = cut_rows(second);
    first.packed_out = second.packed_x = shared_scratch(packed + packed_rows_bytes(first, gate_up));  // the first product's x lies behind
    expect_product(down, rows);
    run_product(first, gate_up, packed);
    expect_product(after, rows);
    run_product(second, down, 0);
    return nullptr;
} catch (const std::bad_alloc&) {
    return kNoMemory;
}

const char* baton_gated(const float* x, const void* packed, long rows, float* out, const float* bias, int activation) try {
    if (rows == 0) return nullptr;
    const long both_n = form_of(packed).n, n = both_n / 2;
    const Turn turn;
    ProductCall call{};
    call.x = x, call.rows = rows, call.k = form_of(packed).k, call.activation = activation;
    if (!bias && n % kPanel == 0 && form_of(packed).scheme != kStack) {
        call.out = out, call.out_row = n, call.gated = true;
        run_product(call, packed, 0);
        return nullptr;
    }
    const auto before = static_cast<size_t>(round_up(rows * both_n, 16)) * 4;
    call.out_row = both_n, call.bias = bias;
    call.out = reinterpret_cast<float*>(shared_scratch(before + packed_rows_bytes(call, packed)));
    run_product(call, packed, before);
    const float* both = call.out;
    const Body& body = body_for(kRows);
    parallel(rows, [&](long r, int) { body.gate(both + r * both_n, out + r * n, 1, n, activation); });
    return nullptr;
} catch (const std::bad_alloc&) {
    return kNoMemory;
}

const char* baton_activated(const float* x, const void* packed, long rows, float* out, const float* bias, int activation) {
    if (const char* wrong = baton_product(x, packed, rows, out, bias, nullptr)) return wrong;
    const long n = form_of(packed).n;
    const Turn turn;
    const Body& body = body_for(kRows);
    parallel(rows, [&](long r, int) { body.activate(out + r * n, n, activation); });
    return nullptr;
}
}
