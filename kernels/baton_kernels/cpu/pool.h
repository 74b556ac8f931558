// The library's threads. A call is cut into units that threads take one by one; the caller works too. Which thread
// computes a unit does not change a result. Idle threads spin for at most 50 us and then sleep.
#pragma once
#include <cstddef>
#include <type_traits>

#include "processor.h"

namespace baton {
using UnitFunction = void (*)(void* context, long unit, int thread);

int pool_threads();
double pool_busy_seconds();            // sum over all turns so far
// Sets the number of threads, the caller included, after running work has ended. With cores, one per thread, each of the
// pool's own threads stays on its core; the first core is the caller's, which pins itself.
void pool_set_threads(int threads, const int* cores);
void pool_run(long units, UnitFunction function, void* context);  // only inside a Turn

// Weights that a call will read soon. Threads that wait meanwhile fetch the beginnings of their shares. Null: none.
void pool_expect(const char* weights, size_t bytes);

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

// Memory that lives until a call needs more; aligned to 64 bytes. Throws std::bad_alloc.
char* shared_scratch(size_t bytes);
void reserve_scratch(size_t bytes);      // for every thread, before pool_run
float* thread_scratch(int thread);

// Sets flush-to-zero, denormals-are-zero and round-to-nearest on this thread while it lives.
class FlushDenormals {
public:
    FlushDenormals();
    ~FlushDenormals();
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

private:
    FloatMode saved_;
};

template <class Function>
void parallel(long units, Function&& function) {
    using F = std::remove_reference_t<Function>;
    pool_run(units, [](void* context, long unit, int thread) { (*static_cast<F*>(context))(unit, thread); }, &function);
}
}  // namespace baton
