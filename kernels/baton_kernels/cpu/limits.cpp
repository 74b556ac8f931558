// The most that this machine can do, for benchmarks: bytes read per second, and products per second from registers only.
// Every thread of the pool does the same work at once; the clock runs from the first start to the last end.
#include <algorithm>
#include <chrono>
#include <vector>

#include "api.h"
#include "machine.h"
#include "pool.h"

using namespace baton;

namespace {
double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace

extern "C" {
// kRead: bytes per second over `amount` bytes of memory (64-byte aligned), cut among the threads; else operations per
// second over `amount` steps per thread. 0 where this machine lacks the instruction.
double baton_limit(int limit, const void* memory, long amount) {
    const auto wanted = static_cast<Limit>(limit);
    const double step = wanted == kRead ? 1.0 : operations_of(wanted);
    if (step == 0.0) return 0.0;
    const Turn turn;
    const long threads = pool_threads(), part = amount / threads / 256 * 256;
    std::vector<double> began(static_cast<size_t>(threads)), ended(began);
    parallel(threads, [&](long unit, int) {
        began[static_cast<size_t>(unit)] = seconds_now();
        if (wanted == kRead)
            read_all(static_cast<const char*>(memory) + unit * part, part);
        else
            run_steps(wanted, amount);
        ended[static_cast<size_t>(unit)] = seconds_now();
    });
    const double work = static_cast<double>(wanted == kRead ? part : amount) * step;
    return work * static_cast<double>(threads) / (*std::max_element(ended.begin(), ended.end()) - *std::min_element(began.begin(), began.end()));
}
}
