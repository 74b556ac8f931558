// See machine.h. Compiled for any x86-64, because it decides whether code for newer processors may run.
// Where the pair instruction takes longer than the two fused multiply-adds of which it consists, it serves few rows only,
// which memory limits; elsewhere it is twice as fast and serves all. A measurement of microseconds tells, at the first call.
#include "machine.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace baton {
namespace {
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
    constexpr unsigned kTileBf16 = 1u << 22, kTile = 1u << 24, kTileInt8 = 1u << 25, kAll = kTileBf16 | kTile | kTileInt8;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
}  // namespace

bool machine_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

Machine::Machine() {
    runs[kPlain] = runs[kAvx2] = runs[kEmulatedTiles] = machine_supported();
    runs[kAvx512] = has_avx512();
    runs[kAvx512Bf16] = runs[kAvx512] && has_bf16();
    runs[kTiles] = runs[kAvx512] && has_tiles();
    runs[kAvx512Vnni] = runs[kAvx512] && has_vnni();
    slow_pairs = runs[kAvx512Bf16] && pairs_are_slow();
}

int whole_body() { return machine().runs[kAvx512] ? kAvx512 : kAvx2; }

int best_body(Operation operation) {
    const bool(&runs)[kBodies] = machine().runs;
    if (runs[kTiles] && body_knows(kTiles, operation)) return kTiles;
    if (!runs[kAvx512]) return kAvx2;
    if (operation == kProductIntegers || operation == kProductIntegersMany) return runs[kAvx512Vnni] ? kAvx512Vnni : kAvx512;
    if (!runs[kAvx512Bf16]) return kAvx512;
    if (operation == kProductPairs) return kAvx512Bf16;
    if ((operation == kProductPairsMany || operation == kAttentionPairs) && !machine().slow_pairs) return kAvx512Bf16;
    return kAvx512;
}
}  // namespace baton
