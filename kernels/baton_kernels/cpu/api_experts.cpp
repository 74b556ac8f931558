// The C functions of mixtures of experts. The rows of a step are sorted by expert, and each expert that a row chose is read
// once for all its rows. Two products follow each other, of all experts together: their units are one list, which threads
// share, so that small experts keep all threads at work. Units are as large as the list allows, and at the end of an expert
// a thread prefetches the next one. A row's result depends on no other row: each product has its bits
// in whatever company, and the sum over a row's experts goes by their rank.
#include <algorithm>
#include <new>
#include <numeric>
#include <vector>

#include "added_rows.h"
#include "api.h"
#include "dispatch.h"
#include "expect.h"
#include "over_rows.h"
#include "plan.h"
#include "pool.h"

using namespace baton;

namespace {
int64_t bytes_read = 0;  // written only inside a Turn

// One expert's rows are positions first .. first + count of the sorted list.
struct Group {
    const void *gate_up, *down;
    const float *gate_up_bias, *down_bias;  // null: none
    long expert, first, count;
    bool apart = false;  // adapters add to its products, so these are computed apart from the gate
    ProductCall inner{}, outer{};  // the two products
    bool handed_on = false;        // the first product writes its result as the second one reads it
    long units = 0;                // units of the product that runs
    float *both = nullptr, *between = nullptr;  // gate and up; what the second product reads: [count][width]
    size_t inner_at = 0, outer_at = 0, between_at = 0, both_at = 0;  // places in scratch memory
};

struct Sorted {
    std::vector<Group> groups;
    std::vector<int32_t> rows;    // [positions] whose row it is
    std::vector<int32_t> places;  // [rows][parts] position of each part of a row
};

const char* at_expert(const void* matrices, int64_t bytes, long expert) { return static_cast<const char*>(matrices) + expert * bytes; }

// The rows of one expert, with its matrices and biases.
Group group_of(const BatonMlp* mlp, long expert, long first, long count) {
    const void* gate_up = at_expert(mlp->experts_gate_up, mlp->gate_up_bytes, expert);
    const void* down = at_expert(mlp->experts_down, mlp->down_bytes, expert);
    const auto bias = [&](const float* all, const void* matrix) { return all ? all + expert * form_of(matrix).n : nullptr; };
    return {gate_up, down, bias(mlp->experts_gate_up_bias, gate_up), bias(mlp->experts_down_bias, down), expert, first, count};
}

Sorted sorted(const BatonMlp* mlp, long rows, const std::vector<int32_t>& ids) {
    const long chosen = mlp->chosen, parts = chosen + (mlp->gate_up ? 1 : 0);
    std::vector<int32_t> next(static_cast<size_t>(mlp->experts) + 1);
    for (int32_t id : ids) ++next[static_cast<size_t>(id) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    Sorted found;
    found.rows.resize(static_cast<size_t>(rows * parts)), found.places.resize(static_cast<size_t>(rows * parts));
    for (long e = 0; e < mlp->experts; ++e)
        if (const long first = next[e], count = next[e + 1] - first; count)
            found.groups.push_back(group_of(mlp, e, first, count));
    const auto put = [&](long r, long part, long position) {
        found.rows[position] = static_cast<int32_t>(r), found.places[r * parts + part] = static_cast<int32_t>(position);
    };
    for (long r = 0; r < rows; ++r)
        for (long i = 0; i < chosen; ++i) put(r, i, next[ids[r * chosen + i]]++);
    for (long r = 0; mlp->gate_up && r < rows; ++r) put(r, chosen, rows * chosen + r);
    if (mlp->gate_up) found.groups.push_back({mlp->gate_up, mlp->down, nullptr, nullptr, mlp->experts, rows * chosen, rows});
    return found;
}

// Takes memory of so many bytes behind what was taken before.
size_t taken(size_t& end, size_t bytes) {
    const size_t at = end;
    end += (bytes + 63) / 64 * 64;
    return at;
}

// Plans both products of a group, and the places of what they read and write.
void plan(Group& group, const BatonMlp* mlp, const float* x, const int32_t* rows, size_t& end) {
    ProductCall &inner = group.inner, &outer = group.outer;
    const long width = form_of(group.down).k;
    inner.x = x, inner.rows_of = rows + group.first, inner.rows = outer.rows = group.count, inner.activation = mlp->activation;
    inner.k = form_of(group.gate_up).k, outer.k = width;
    take(inner, group.gate_up), take(outer, group.down);
    inner.bias = group.gate_up_bias, outer.bias = group.down_bias;
    inner.gated = width % kPanel == 0 && !inner.bias && !group.apart;
    inner.n = inner.gated ? width : 2 * width, inner.out_row = inner.n, outer.n = outer.out_row = form_of(group.down).n;
    group.handed_on = inner.gated && hands_on(inner, outer);
    group.inner_at = taken(end, cut_rows(inner)), group.outer_at = taken(end, cut_rows(outer));
    if (!group.handed_on) group.between_at = taken(end, static_cast<size_t>(group.count * width) * 4);
    if (!inner.gated) group.both_at = taken(end, static_cast<size_t>(group.count * 2 * width) * 4);
}

void place(Group& group, char* memory, float* y) {
    ProductCall &inner = group.inner, &outer = group.outer;
    place_rows(inner, memory + group.inner_at), place_rows(outer, memory + group.outer_at);
    group.both = reinterpret_cast<float*>(memory + group.both_at), group.between = reinterpret_cast<float*>(memory + group.between_at);
    inner.out = inner.gated ? group.between : group.both;
    if (group.handed_on) inner.into = &outer;
    outer.x = group.between;
    outer.out = y + group.first * outer.n;
}

// Calls `run(group, number, thread)` for each of `count(group)` parts of every group; all of them are one list for the threads.
template <class Count, class Run>
void over_groups(std::vector<Group>& groups, bool small, Count count, Run run) {
    std::vector<long> ends;
    long total = 0;
    for (Group& group : groups) ends.push_back(total += count(group));
    auto one = [&](long unit, int thread) {
        const auto g = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), unit) - ends.begin());
        run(groups[g], unit - (g ? ends[g - 1] : 0), thread);
    };
    if (!small) return parallel(total, one);
    const FlushDenormals flush;
    for (long unit = 0; unit < total; ++unit) one(unit, 0);
}

using Call = ProductCall Group::*;

void pack(std::vector<Group>& groups, Call call, bool small) {
    over_groups(groups, small, [&](Group& g) { return call == &Group::outer && g.handed_on ? 0 : (g.*call).tiles; },
                [&](Group& g, long tile, int) { pack_tile(g.*call, tile); });
}

void multiply(std::vector<Group>& groups, Call call) {
    size_t most = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
        ProductCall& one = groups[g].*call;
        groups[g].units = cut_units(one, static_cast<long>(groups.size()));
        one.after = g + 1 < groups.size() ? static_cast<const char*>((groups[g + 1].*call).weights) : nullptr;
        most = std::max(most, unit_bytes(one));
    }
    reserve_scratch(most);
    over_groups(groups, false, [](Group& g) { return g.units; }, [&](Group& g, long unit, int thread) { run_unit(g.*call, unit, thread); });
}

// The gate where the halves of the first product do not begin at a panel, have a bias or get an addition.
void gate(std::vector<Group>& groups) {
    const Body& body = body_for(kRows);
    over_groups(groups, false, [](Group& g) { return g.inner.gated ? 0 : g.count; }, [&](Group& g, long row, int) {
        const long width = g.outer.k;
        body.gate(g.both + row * 2 * width, g.between + row * width, 1, width, g.inner.activation);
    });
}

// The rows of one adapter in a group.
struct Share {
    Group* group;
    const BatonDelta *first, *second;  // to the two products
    std::vector<int32_t> rows, positions;  // in x, and in the group
};

// All of them, group by group. Groups in which there is one are computed apart.
std::vector<Share> shares_of(Sorted& all, const BatonMlp* mlp, long rows, const BatonAdapted* adapted, long layer) {
    std::vector<Share> found;
    const long adapters = adapted ? adapted->adapters : 0;
    std::vector<int32_t> owner(adapters ? static_cast<size_t>(rows) : 0, -1);
    bool any = false;
    for (long a = 0; a < adapters; ++a)
        for (long i = adapted->starts[a]; adapted->experts[a] && i < adapted->starts[a + 1]; ++i)
            owner[static_cast<size_t>(adapted->rows[i])] = static_cast<int32_t>(a), any = true;
    if (!any) return found;
    for (Group& group : all.groups) {
        std::vector<Share> own(static_cast<size_t>(adapters));
        for (long p = 0; p < group.count; ++p) {
            const int32_t row = all.rows[static_cast<size_t>(group.first + p)], a = owner[static_cast<size_t>(row)];
            if (a >= 0) own[static_cast<size_t>(a)].rows.push_back(row), own[static_cast<size_t>(a)].positions.push_back(static_cast<int32_t>(p));
        }
        for (size_t a = 0; a < own.size(); ++a) {
            if (own[a].rows.empty()) continue;
            const BatonDelta* pair = adapted->experts[a] + (layer * (mlp->experts + 1) + group.expert) * 2;
            if (!pair[0].down && !pair[1].down) continue;
            own[a].group = &group, own[a].first = pair, own[a].second = pair + 1, group.apart = true;
            found.push_back(std::move(own[a]));
        }
    }
    return found;
}

// Adds what adapters make of the inputs of a product, which are x itself or lie between the products.
void add_shares(const std::vector<Share>& shares, Call call, const float* x) {
    std::vector<AddedRows> every;
    const bool inner = call == &Group::inner;
    for (const Share& share : shares) {
        const BatonDelta* delta = inner ? share.first : share.second;
        const ProductCall& product = (*share.group).*call;
        const int32_t* positions = share.positions.data();
        if (delta->down)
            every.push_back({delta, inner ? x : share.group->between, product.k, product.out, product.out_row, inner ? share.rows.data() : positions,
                             positions, static_cast<long>(share.rows.size())});
    }
    if (every.empty()) return;
    std::vector<float> hidden(hidden_floats(every));
    add_rows(every, hidden.data());
}

struct Parts {
    const float* y;
    const int32_t* places;
    const float* weights;
    long count;
};

void combine(const Parts& parts, long rows, long k, const float* residual, float* out) {
    const Body& body = body_for(kRows);
    over_rows(rows, parts.count * k, [&](long r, int) {
        const long first = r * parts.count;
        body.combine(parts.y, parts.places + first, parts.weights + first, parts.count, k, residual ? residual + r * k : nullptr, out + r * k);
    });
}

const char* check(const BatonMlp* mlp) {
    for (const void* matrix : {mlp->router, mlp->experts_gate_up, mlp->experts_down, mlp->gate_up, mlp->down})
        if (matrix && form_of(matrix).scheme == kStack) return "experts: a matrix is a stack of several forms";
    return mlp->gated && !mlp->gate_up_bias && !mlp->down_bias ? nullptr : "experts: must have a gate, and the shared one no bias";
}

constexpr const char* kNoMemory = "out of memory for the scratch space of experts: use smaller chunks";
}  // namespace

extern "C" {
const char* baton_route(const float* scores, long rows, long experts, long chosen, int normalised, int shared, float factor, int32_t* ids, float* weights) {
    if (chosen < 1 || chosen > experts) return "chosen: must be between 1 and the number of experts";
    const Turn turn;
    const Body& body = body_for(kRows);
    const RouteCall call{scores, experts, chosen, normalised != 0, static_cast<Shared>(shared), factor, ids, weights};
    over_rows(rows, experts * 8, [&](long r, int) { body.route(call, r); });
    return nullptr;
}

const char* baton_combine(const float* y, long y_rows, const int32_t* places, const float* weights, long rows, long parts, long k,
                          const float* residual, float* out) {
    for (long i = 0; i < rows * parts; ++i)
        if (places[i] < 0 || places[i] >= y_rows) return "places: a row lies outside y";
    const Turn turn;
    combine({y, places, weights, parts}, rows, k, residual, out);
    return nullptr;
}

const char* baton_experts(const float* x, const BatonMlp* mlp, long rows, float* out, const float* residual, const void* after,
                          const BatonAdapted* adapted, long layer) try {
    if (rows == 0) return nullptr;
    if (const char* wrong = check(mlp)) return wrong;
    const long scored = form_of(mlp->router).n, k = form_of(mlp->router).k, parts = mlp->chosen + (mlp->gate_up ? 1 : 0);
    std::vector<float> scores(static_cast<size_t>(rows * scored)), weights(static_cast<size_t>(rows * parts));
    std::vector<int32_t> ids(static_cast<size_t>(rows * mlp->chosen));
    if (const char* wrong = baton_product(x, mlp->router, rows, scores.data(), mlp->router_bias, nullptr)) return wrong;
    if (const char* wrong = baton_route(scores.data(), rows, mlp->experts, mlp->chosen, mlp->normalised, mlp->shared, mlp->factor, ids.data(), weights.data()))
        return wrong;
    Sorted all = sorted(mlp, rows, ids);
    std::vector<Group>& groups = all.groups;
    const std::vector<Share> shares = shares_of(all, mlp, rows, adapted, layer);
    const Turn turn;
    size_t end = 0;
    const size_t y_at = taken(end, all.rows.size() * static_cast<size_t>(k) * 4);
    for (Group& group : groups) plan(group, mlp, x, all.rows.data(), end);
    char* memory = shared_scratch(end);
    auto* y = reinterpret_cast<float*>(memory + y_at);
    for (Group& group : groups) {
        place(group, memory, y);
        bytes_read += form_of(group.gate_up).bytes + form_of(group.down).bytes;
    }
    const bool small = rows * parts * k <= kSmall;
    expect_product(nullptr, rows);
    pack(groups, &Group::inner, small);
    multiply(groups, &Group::inner);
    add_shares(shares, &Group::inner, x);
    gate(groups);
    pack(groups, &Group::outer, small);
    expect_product(after, rows);
    multiply(groups, &Group::outer);
    add_shares(shares, &Group::outer, x);
    combine({y, all.places.data(), weights.data(), parts}, rows, k, residual, out);
    return nullptr;
} catch (const std::bad_alloc&) {
    return kNoMemory;
}

int64_t baton_expert_bytes() {
    const Turn turn;
    return bytes_read;
}
}
