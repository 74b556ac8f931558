// See machine.h. Instructions by name, so that no compiler removes or joins them.
#include <algorithm>
#include <chrono>

#include "machine.h"

namespace baton {
namespace {
#define R12(I) I("0") I("1") I("2") I("3") I("4") I("5") I("6") I("7") I("8") I("9") I("10") I("11")
#define R24(I) R12(I) I("12") I("13") I("14") I("15") I("16") I("17") I("18") I("19") I("20") I("21") I("22") I("23")
#define CLEAR_WIDE(k) "vpxorq %%zmm" k ",%%zmm" k ",%%zmm" k "\n"
#define CLEAR(k) "vxorps %%ymm" k ",%%ymm" k ",%%ymm" k "\n"
#define FMA_WIDE(k) "vfmadd231ps %%zmm30,%%zmm31,%%zmm" k "\n"
#define FMA(k) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" k "\n"
#define DOT(k) "vdpbf16ps %%zmm30,%%zmm31,%%zmm" k "\n"
#define QUAD(k) "vpdpbusd %%zmm30,%%zmm31,%%zmm" k "\n"
#define WORDS(k) "vpmaddwd %%ymm14,%%ymm15,%%ymm13\nvpaddd %%ymm13,%%ymm" k ",%%ymm" k "\n"
#define LOW "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define HIGH "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm30", "xmm31"

__attribute__((target("avx512f"))) void chains_wide(long steps) {
    __asm__ volatile(R24(CLEAR_WIDE) CLEAR_WIDE("30") CLEAR_WIDE("31")::: LOW, HIGH);
    for (long s = 0; s < steps; ++s) __asm__ volatile(R24(FMA_WIDE)::: LOW, HIGH);
}

__attribute__((target("avx512f"))) void pair_dots(long steps) {
    __asm__ volatile(R24(CLEAR_WIDE) CLEAR_WIDE("30") CLEAR_WIDE("31")::: LOW, HIGH);
    for (long s = 0; s < steps; ++s) __asm__ volatile(R24(DOT)::: LOW, HIGH);
}

void chains_narrow(long steps) {
    __asm__ volatile(R12(CLEAR) CLEAR("14") CLEAR("15")::: LOW);
    for (long s = 0; s < steps; ++s) __asm__ volatile(R12(FMA)::: LOW);
}

__attribute__((target("avx512f"))) void quad_dots(long steps) {
    __asm__ volatile(R24(CLEAR_WIDE) CLEAR_WIDE("30") CLEAR_WIDE("31")::: LOW, HIGH);
    for (long s = 0; s < steps; ++s) __asm__ volatile(R24(QUAD)::: LOW, HIGH);
}

void word_dots(long steps) {
    __asm__ volatile(R12(CLEAR) CLEAR("14") CLEAR("15")::: LOW);
    for (long s = 0; s < steps; ++s) __asm__ volatile(R12(WORDS)::: LOW);
}

#define FOUR_TILES(dot) dot " %tmm6,%tmm4,%tmm0\n" dot " %tmm7,%tmm4,%tmm1\n" dot " %tmm6,%tmm5,%tmm2\n" dot " %tmm7,%tmm5,%tmm3"
#define TWO_LOADED(at) \
    "tileloadd " at "(%0,%1,1), %%tmm2\ntileloadd 2048+" at "(%0,%1,1), %%tmm3\ntdpbf16ps %%tmm3,%%tmm2,%%tmm0\ntilezero %%tmm3\n" \
    "tileloadd 1024+" at "(%0,%1,1), %%tmm3\ntdpbf16ps %%tmm3,%%tmm2,%%tmm1\ntilezero %%tmm2\ntilezero %%tmm3\n"

#define FOUR_LOADED \
    "tileloadd (%0,%1,1), %%tmm4\ntileloadd 1024(%0,%1,1), %%tmm5\ntileloadd 2048(%0,%1,1), %%tmm6\ntileloadd 3072(%0,%1,1), %%tmm7\n" \
    "tdpbf16ps %%tmm6,%%tmm4,%%tmm0\ntdpbf16ps %%tmm7,%%tmm4,%%tmm1\ntdpbf16ps %%tmm6,%%tmm5,%%tmm2\ntdpbf16ps %%tmm7,%%tmm5,%%tmm3"

// Four products of tiles a step: of registers only, or of tiles that are loaded from the first-level cache, in the order in which
// products load them (product_tiles.h) or with all eight in use.
void tile_dots(long steps, Limit limit) {
    alignas(64) unsigned char shape[64] = {1};
    alignas(64) static unsigned char tiles[4096];
    const long row = 64;
    for (int t = 0; t < 8; ++t) shape[16 + 2 * t] = 64, shape[48 + t] = 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
    for (long s = 0; s < steps; ++s) {
        if (limit == kLoadedTileDots)
            __asm__ volatile(TWO_LOADED("0") TWO_LOADED("1024") ::"r"(tiles), "r"(row) : "memory");
        else if (limit == kEightTileDots)
            __asm__ volatile(FOUR_LOADED ::"r"(tiles), "r"(row) : "memory");
        else if (limit == kByteTileDots)
            __asm__ volatile(FOUR_TILES("tdpbsud"));
        else
            __asm__ volatile(FOUR_TILES("tdpbf16ps"));
    }
    __asm__ volatile("tilerelease");
}

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
// Seconds of the fastest of some runs: a neighbour slows single ones.
template <class Run>
double fastest(Run run) {
    double least = 1.0;
    for (int i = 0; i < 8; ++i) {
        const double began = seconds_now();
        run();
        least = std::min(least, seconds_now() - began);
    }
    return least;
}
}  // namespace

void read_all(const char* from, long bytes) {
    for (long i = 0; i + 256 <= bytes; i += 256)
        __asm__ volatile("vmovaps (%0),%%ymm0\nvmovaps 32(%0),%%ymm1\nvmovaps 64(%0),%%ymm2\nvmovaps 96(%0),%%ymm3\n"
                         "vmovaps 128(%0),%%ymm4\nvmovaps 160(%0),%%ymm5\nvmovaps 192(%0),%%ymm6\nvmovaps 224(%0),%%ymm7" ::"r"(from + i)
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
}

bool pairs_are_slow() {
    constexpr long kSteps = 100;
    return fastest([] { pair_dots(kSteps); }) > 2 * fastest([] { chains_wide(kSteps); });
}

double operations_of(Limit limit) {
    const bool wide = body_usable(kAvx512);
    switch (limit) {
        case kChains: return wide ? 24.0 * 32 : 12.0 * 16;
        case kPairDots: return body_usable(kAvx512Bf16) ? 24.0 * 64 : 0.0;
        case kTileDots: return body_usable(kTiles) ? 4.0 * 16 * 16 * 64 : 0.0;
        case kQuadDots: return body_usable(kAvx512Vnni) ? 24.0 * 128 : 0.0;
        case kWordDots: return 12.0 * 32;
        case kLoadedTileDots:
        case kEightTileDots: return operations_of(kTileDots);
        case kByteTileDots: return body_usable(kTiles) ? 4.0 * 16 * 16 * 128 : 0.0;
        default: return 0.0;
    }
}

void run_steps(Limit limit, long steps) {
    if (limit == kChains) body_usable(kAvx512) ? chains_wide(steps) : chains_narrow(steps);
    if (limit == kPairDots) pair_dots(steps);
    if (limit == kTileDots || limit == kByteTileDots || limit == kLoadedTileDots || limit == kEightTileDots) tile_dots(steps, limit);
    if (limit == kQuadDots) quad_dots(steps);
    if (limit == kWordDots) word_dots(steps);
}
}  // namespace baton
