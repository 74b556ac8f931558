// See dispatch.h. Compiled for any processor, because it decides whether code for newer ones may run.
#include "dispatch.h"

#include <atomic>

#include "machine.h"

namespace baton {
namespace {
std::atomic<int> forced{-1};
const Body* const bodies[kBodies] = {&body_plain, &body_avx2, &body_avx512, &body_avx512bf16, &body_amx, &body_avx512vnni, &body_tiles, &body_neon};
}  // namespace

const Machine& machine() {
    static const Machine one;
    return one;
}

bool body_built(int body) { return body >= 0 && body < kBodies && bodies[body] != nullptr; }

bool body_usable(int body) { return body_built(body) && machine().runs[body]; }

int body_missing() {
    const bool(&runs)[kBodies] = machine().runs;
    for (int body = 0; body < kBodies; ++body)
        if (runs[body] && !body_built(body) && body != kEmulatedTiles && (body != kAvx2 || !runs[kAvx512])) return body;
    return -1;
}

bool body_knows(int body, Operation operation) {
    if (body == kTiles || body == kEmulatedTiles) return operation == kProductAmx || operation == kAttentionAmx || operation == kProductIntegersMany;
    if (body == kAvx512Vnni) return operation == kProductIntegers || operation == kProductIntegersMany;
    return body != kAvx512Bf16 || operation == kProductPairs || operation == kProductPairsMany || operation == kAttentionPairs;
}

int body_chosen(Operation operation) {
    const int wanted = forced.load(std::memory_order_relaxed);
    if (wanted < 0) return best_body(operation);
    return body_knows(wanted, operation) ? wanted : whole_body();
}

bool choose_body(int body) {
    if (body < -1 || body >= kBodies || (body >= 0 && !body_usable(body))) return false;
    forced = body;
    return true;
}

int forced_body() { return forced; }

const Body& body_for(Operation operation) { return *bodies[body_chosen(operation)]; }
}  // namespace baton
