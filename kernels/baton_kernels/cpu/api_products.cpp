// The C functions of products on packed weights: single matrices, stacks, and an MLP's two products.
#include <new>

#include "api.h"
#include "dispatch.h"
#include "expect.h"
#include "plan.h"
#include "pool.h"

using namespace baton;

namespace {
void run_one(ProductCall call, size_t shared_before) {
    const size_t packed = cut_rows(call);
    const long units = cut_units(call);
    reserve_scratch(unit_bytes(call));
    const bool ready = call.packed_x;
    place_rows(call, ready ? call.packed_x : shared_scratch(shared_before + packed) + shared_before);
    if (ready) {
    } else if (call.rows * call.k <= kSmall) {
        const FlushDenormals flush;
        for (long t = 0; t < call.tiles; ++t) pack_tile(call, t);
    } else {
        parallel(call.tiles, [&](long t, int) { pack_tile(call, t); });
    }
    parallel(units, [&](long unit, int thread) { run_unit(call, unit, thread); });
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

// The MLP of a layer. Where gate and up have no bias and the product behind them allows it (`hands_on`), the first writes its result in
// the packed form that the second reads. `out` may be x.
const char* baton_feed_forward(const float* x, const BatonMlp* mlp, long rows, float* between, float* out, const float* residual, const void* after) try {
    const void *gate_up = mlp->gate_up, *down = mlp->down;
    const long ffn = form_of(down).k, n = form_of(down).n;
    ProductCall first{}, second{};
    first.x = x, first.rows = rows, first.k = form_of(gate_up).k, first.gated = true, first.activation = mlp->activation;
    second.bias = mlp->down_bias, second.residual = residual, second.out = out;
    second.rows = rows, second.n = second.out_row = n, second.k = ffn;
    take(first, gate_up), take(second, down);
    const bool whole = form_of(gate_up).scheme != kStack && form_of(down).scheme != kStack;
    if (!mlp->gated || mlp->gate_up_bias || ffn % kPanel || rows == 0 || !whole || !hands_on(first, second)) {
        expect_product(down, rows);
        const char* wrong = mlp->gated ? baton_gated(x, gate_up, rows, between, mlp->gate_up_bias, mlp->activation)
                                       : baton_activated(x, gate_up, rows, between, mlp->gate_up_bias, mlp->activation);
        expect_product(after, rows);
        return wrong ? wrong : baton_product(between, down, rows, out, mlp->down_bias, residual);
    }
    const Turn turn;
    const size_t packed = cut_rows(second);
    place_rows(second, shared_scratch(packed + packed_rows_bytes(first, gate_up)));  // the first product's x lies behind
    first.into = &second;
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
