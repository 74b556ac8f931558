// The best values of a row, best first, ties to the lowest id: a counting pass over the top bits of an order-preserving
// key leaves few candidates, which are then sorted. Integers only, so every machine selects alike.
#include "calls.h"

#include <algorithm>
#include <cstring>

namespace baton {
namespace {
// Larger float, larger key; -0 equals 0; NaN is the worst of all.
uint32_t order(float value) {
    if (value != value) return 0;
    value += 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
}  // namespace

void best_of(const float* values, long vocab, long count, int32_t* ids, float* best, uint64_t* keys) {
    constexpr int kShift = 20;
    uint32_t histogram[1 << (32 - kShift)] = {};
    for (long i = 0; i < vocab; ++i) ++histogram[order(values[i]) >> kShift];
    long above = 0, bin = (1 << (32 - kShift)) - 1;
    while (bin > 0 && above + histogram[bin] < count) above += histogram[bin--];
    const uint32_t least_order = static_cast<uint32_t>(bin) << kShift;
    long found = 0;
    for (long i = 0; i < vocab; ++i) {
        const uint32_t rank = order(values[i]);
        if (rank >= least_order) keys[found++] = static_cast<uint64_t>(rank) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(i));
    }
    const auto better = [](uint64_t a, uint64_t b) { return a > b; };
    if (found > count) std::nth_element(keys, keys + count, keys + found, better);
    std::sort(keys, keys + count, better);
    for (long i = 0; i < count; ++i) {
        ids[i] = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(keys[i]));
        best[i] = values[ids[i]];
    }
}
}  // namespace baton
