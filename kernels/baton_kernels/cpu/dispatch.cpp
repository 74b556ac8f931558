// See dispatch.h. Compiled for any x86-64, because it decides whether code for newer machines may run.
// Where the pair instruction takes longer than the two fused multiply-adds of which it consists, it serves few rows only,
// which memory limits; elsewhere it is twice as fast and serves all. A measurement of microseconds tells, at the first call.
#include "dispatch.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace baton {
namespace {
std::atomic<int> forced{-1};
const Body* const bodies[kBodies] = {&body_plain, &body_avx2, &body_avx512, &body_avx512bf16, &body_amx, &body_avx512vnni, &body_tiles};
constexpr int kPlain = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3, kTiles = 4, kAvx512Vnni = 5, kEmulatedTiles = 6;

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

bool has_bf16() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

bool has_vnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 11));
}

// A process must ask the operating system once for permission to use tiles, which add 8 KiB of registers per thread.
bool has_tiles() {
    constexpr unsigned kTileBf16 = 1u << 22, kTiles = 1u << 24, kTileInt8 = 1u << 25, kAll = kTileBf16 | kTiles | kTileInt8;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Asked once: in a virtual machine the CPUID instruction takes microseconds, because its host answers it.
struct Machine {
    bool runs[kBodies];
    bool slow_pairs = false;

    Machine() {
        runs[kPlain] = runs[kAvx2] = runs[kEmulatedTiles] = machine_supported();
        runs[kAvx512] = has_avx512();
        runs[kAvx512Bf16] = runs[kAvx512] && has_bf16();
        runs[kTiles] = runs[kAvx512] && has_tiles();
        runs[kAvx512Vnni] = runs[kAvx512] && has_vnni();
        slow_pairs = runs[kAvx512Bf16] && pairs_are_slow();
    }
};

const Machine& machine() {
    static const Machine one;
    return one;
}

bool machine_runs(int body) { return machine().runs[body]; }

int best(Operation operation) {
    const bool slow_pairs = machine().slow_pairs;
    if (machine_runs(kTiles) && body_knows(kTiles, operation)) return kTiles;
    if (!machine_runs(kAvx512)) return kAvx2;
    if (operation == kProductIntegers || operation == kProductIntegersMany) return machine_runs(kAvx512Vnni) ? kAvx512Vnni : kAvx512;
    if (!machine_runs(kAvx512Bf16)) return kAvx512;
    if (operation == kProductPairs) return kAvx512Bf16;
    if ((operation == kProductPairsMany || operation == kAttentionPairs) && !slow_pairs) return kAvx512Bf16;
    return kAvx512;
}
}  // namespace

bool machine_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool body_built(int body) { return body >= 0 && body < kBodies && bodies[body] != nullptr; }

bool body_usable(int body) { return body_built(body) && machine_runs(body); }

int body_missing() {
    for (int body = 0; body < kBodies; ++body)
        if (machine_runs(body) && !body_built(body) && body != kEmulatedTiles && (body != kAvx2 || !machine_runs(kAvx512))) return body;
    return -1;
}

bool body_knows(int body, Operation operation) {
    if (body == kTiles || body == kEmulatedTiles) return operation == kProductAmx || operation == kAttentionAmx || operation == kProductIntegersMany;
    if (body == kAvx512Vnni) return operation == kProductIntegers || operation == kProductIntegersMany;
    return body != kAvx512Bf16 || operation == kProductPairs || operation == kProductPairsMany || operation == kAttentionPairs;
}

int body_chosen(Operation operation) {
    const int wanted = forced.load(std::memory_order_relaxed);
    if (wanted < 0) return best(operation);
    return body_knows(wanted, operation) ? wanted : machine_runs(kAvx512) ? kAvx512 : kAvx2;
}

bool choose_body(int body) {
    if (body < -1 || body >= kBodies || (body >= 0 && !body_usable(body))) return false;
    forced = body;
    return true;
}

int forced_body() { return forced; }

const Body& body_for(Operation operation) { return *bodies[body_chosen(operation)]; }
}  // namespace baton
