// See machine.h. Every 64-bit ARM processor has NEON; the body of that name also needs the dot product of bytes.
#include "machine.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace baton {
bool machine_supported() { return true; }

Machine::Machine() {
    runs[kPlain] = true;
    runs[kNeon] = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}

int whole_body() { return machine().runs[kNeon] ? kNeon : kPlain; }

int best_body(Operation) { return whole_body(); }
}  // namespace baton
