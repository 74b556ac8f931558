// What dispatch and limits ask of the machine for which the library is compiled: machine_*.cpp and limits_*.cpp, of which
// build.py compiles those of one machine.
#pragma once
#include "dispatch.h"

namespace baton {
// Asked once: in a virtual machine the CPUID instruction takes microseconds, because its host answers it.
struct Machine {
    bool runs[kBodies] = {};  // whether the processor has the instructions of the body
    bool slow_pairs = false;  // whether the pair instruction takes longer than what it replaces

    Machine();
};

const Machine& machine();
int best_body(Operation);  // the fastest that the machine runs
int whole_body();          // the best of those that know every operation

bool pairs_are_slow();     // measures; the machine must have the instruction

// What threads do over and over to find a limit, and how many operations a step of it is; 0.0 where no instruction does it.
enum Limit { kRead, kChains, kPairDots, kTileDots, kQuadDots, kWordDots, kByteTileDots, kLoadedTileDots, kEightTileDots };
double operations_of(Limit);
void run_steps(Limit, long steps);
void read_all(const char* from, long bytes);  // a multiple of 256
}  // namespace baton
