// Work on rows, which the pool's threads share.
#pragma once
#include "calls.h"
#include "pool.h"

namespace baton {
// Cuts rows into units of about `grain`, so that small calls stay on the caller's thread.
template <class Function>
void over_rows(long rows, long row_cost, Function function) {
    constexpr long kWorth = 1 << 13;
    const long grain = row_cost > kWorth ? 1 : kWorth / (row_cost > 0 ? row_cost : 1) + 1;
    parallel((rows + grain - 1) / grain, [&](long unit, int thread) {
        for (long r = unit * grain; r < least(rows, (unit + 1) * grain); ++r) function(r, thread);
    });
}
}  // namespace baton
