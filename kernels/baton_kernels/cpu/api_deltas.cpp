// The C function that adds adapters to a product: rows are grouped by adapter, so each adapter's weights are read once.
#include <new>
#include <vector>

#include "added_rows.h"
#include "api.h"
#include "dispatch.h"
#include "pool.h"

using namespace baton;

namespace {
constexpr long kUnitWork = 1 << 14;  // multiply-adds of a unit, about
constexpr long kUnitRows = 64;       // rows of a unit, at most: their inputs stay in the second-level cache

struct DeltaUnit {
    DeltaCall call;
    const int32_t* rows;
    long count;
    float* hidden;
    long first, last;  // ranks of A, or panels of B
};

long panels_of(long columns) { return round_up(columns, kPanel) / kPanel; }

// Cuts `whole` pieces of work, each of `work` multiply-adds for a row, into units.
void cut(std::vector<DeltaUnit>& units, const DeltaUnit& all, long whole, long piece, long work) {
    for (long row = 0; row < all.count; row += kUnitRows) {
        const long count = least(kUnitRows, all.count - row), each = round_up(kUnitWork / (work * count) + 1, piece);
        for (long first = 0; first < whole; first += each)
            units.push_back({all.call, all.rows + row, count, all.hidden + row * all.call.ranks, first, least(whole, first + each)});
    }
}

DeltaCall call_of(const AddedRows& rows) {
    const BatonDelta& d = *rows.delta;
    return {rows.x, rows.out, d.down, d.up, rows.k, rows.out_row, d.ranks, 0, 0, 0.0f, d.half != 0};
}
}  // namespace

size_t baton::hidden_floats(const std::vector<AddedRows>& all) {
    size_t floats = 0;
    for (const AddedRows& rows : all) floats += static_cast<size_t>(rows.count * rows.delta->ranks);
    return floats;
}

void baton::add_rows(const std::vector<AddedRows>& every, float* hidden) {
    std::vector<DeltaUnit> shrinking, expanding;
    for (const AddedRows& rows : every) {
        const BatonDelta& d = *rows.delta;
        DeltaUnit all{call_of(rows), rows.x_rows, rows.count, hidden, 0, 0};
        hidden += rows.count * d.ranks;
        cut(shrinking, all, d.ranks, kDeltaRanks, rows.k);
        all.rows = rows.out_rows;
        for (long p = 0; p < d.parts; ++p) {
            const BatonDeltaPart& part = d.part[p];
            all.call.rank = part.rank, all.call.columns = part.columns, all.call.scale = part.scale;
            if (part.rank) cut(expanding, all, panels_of(part.columns), 1, kPanel * part.rank);
            all.call.out += part.columns, all.hidden += part.rank;
            all.call.up = static_cast<const char*>(all.call.up) + panels_of(part.columns) * kPanel * part.rank * (d.half ? 2 : 4);
        }
    }
    const Body& body = body_for(kRows);
    const auto run = [&](std::vector<DeltaUnit>& units, auto function) {
        parallel(static_cast<long>(units.size()), [&](long unit, int) {
            const DeltaUnit& u = units[static_cast<size_t>(unit)];
            function(u.call, u.rows, u.count, u.hidden, u.first, u.last);
        });
    };
    run(shrinking, body.shrink);
    run(expanding, body.expand);
}

extern "C" {
const char* baton_add_deltas(const float* x, long k, float* out, long out_row, const BatonAdapted* adapted, long product) try {
    std::vector<AddedRows> every;
    for (long a = 0; a < adapted->adapters; ++a) {
        const BatonDelta& d = adapted->deltas[a][product];
        const int32_t* rows = adapted->rows + adapted->starts[a];
        if (d.down) every.push_back({&d, x, k, out, out_row, rows, rows, adapted->starts[a + 1] - adapted->starts[a]});
    }
    if (every.empty()) return nullptr;
    const Turn turn;
    add_rows(every, reinterpret_cast<float*>(shared_scratch(hidden_floats(every) * 4)));
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for the scratch space of adapters: use smaller chunks";
}

void baton_between(const float* gate_up, float* out, long rows, long n, int activation, int gated) {
    const Turn turn;
    const Body& body = body_for(kRows);
    parallel(rows, [&](long r, int) {
        if (gated) return body.gate(gate_up + r * 2 * n, out + r * n, 1, n, activation);
        for (long i = 0; i < n; ++i) out[r * n + i] = gate_up[r * n + i];
        body.activate(out + r * n, n, activation);
    });
}
}
