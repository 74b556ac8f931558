// The library's threads. A call is cut into units that threads take one by one; the caller works too. Which thread
// computes a unit never shows in a result. Idle threads spin for at most 50 us and then sleep.
#pragma once
#include <cstddef>
#include <type_traits>

namespace baton {
using UnitFunction = void (*)(void* context, long unit, int thread);

int pool_threads();
double pool_busy_seconds();            // of all turns so far
// The caller included; waits for running work. With cores, one per thread, the pool's own threads stay on theirs; the
// caller's is the first, and its own affair.
void pool_set_threads(int threads, const int* cores);
void pool_run(long units, UnitFunction function, void* context);  // only inside a Turn

// One call at a time owns the pool and its scratch memory.
class Turn {
public:
    Turn();
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    double began_;
};

// Memory that lives until the next call that wants more; throws std::bad_alloc. Aligned to 64 bytes.
char* shared_scratch(size_t bytes);
void reserve_scratch(size_t bytes);      // for every thread, before pool_run
float* thread_scratch(int thread);

// Flush-to-zero and denormals-are-zero while it lives, on this thread.
class FlushDenormals {
public:
    FlushDenormals();
    ~FlushDenormals();
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

private:
    unsigned saved_;
};

template <class Function>
void parallel(long units, Function&& function) {
    using F = std::remove_reference_t<Function>;
    pool_run(units, [](void* context, long unit, int thread) { (*static_cast<F*>(context))(unit, thread); }, &function);
}
}  // namespace baton
