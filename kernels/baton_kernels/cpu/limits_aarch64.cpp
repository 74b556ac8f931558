// See machine.h. Instructions by name, so that no compiler removes or joins them.
#include "machine.h"

namespace baton {
namespace {
#define R24(I) I("0") I("1") I("2") I("3") I("4") I("5") I("6") I("7") I("8") I("9") I("10") I("11") I("12") I("13") I("14") I("15") \
    I("16") I("17") I("18") I("19") I("20") I("21") I("22") I("23")
#define CLEAR(k) "movi v" k ".4s, #0\n"
#define FMA(k) "fmla v" k ".4s, v30.4s, v31.4s\n"
#define QUAD(k) "sdot v" k ".4s, v30.16b, v31.16b\n"
#define WORDS(k) "smlal v" k ".4s, v30.4h, v31.4h\n"
#define USED "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", \
    "v20", "v21", "v22", "v23", "v30", "v31"

void clear() { __asm__ volatile(R24(CLEAR) CLEAR("30") CLEAR("31")::: USED); }

__attribute__((target("arch=armv8.2-a+dotprod"))) void quad_dots(long steps) {
    for (long s = 0; s < steps; ++s) __asm__ volatile(R24(QUAD)::: USED);
}
}  // namespace

void read_all(const char* from, long bytes) {
    for (long i = 0; i + 256 <= bytes; i += 256)
        __asm__ volatile("ldp q0, q1, [%0]\nldp q2, q3, [%0, #32]\nldp q4, q5, [%0, #64]\nldp q6, q7, [%0, #96]\n"
                         "ldp q16, q17, [%0, #128]\nldp q18, q19, [%0, #160]\nldp q20, q21, [%0, #192]\nldp q22, q23, [%0, #224]" ::"r"(from + i)
                         : USED);
}

double operations_of(Limit limit) {
    switch (limit) {
        case kChains: return 24.0 * 8;
        case kQuadDots: return body_usable(kNeon) ? 24.0 * 32 : 0.0;
        case kWordDots: return 24.0 * 8;
        default: return 0.0;
    }
}

void run_steps(Limit limit, long steps) {
    clear();
    if (limit == kQuadDots) return quad_dots(steps);
    for (long s = 0; s < steps; ++s) {
        if (limit == kChains)
            __asm__ volatile(R24(FMA)::: USED);
        else
            __asm__ volatile(R24(WORDS)::: USED);
    }
}
}  // namespace baton
