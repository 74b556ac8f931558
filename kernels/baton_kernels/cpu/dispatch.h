// Chooses the body that computes each operation on this machine. All bodies give equal bits, so only speed depends on it.
#pragma once
#include "calls.h"

namespace baton {
enum Operation { kProductFp32, kProductPairs, kProductPairsMany, kProductAmx, kProductIntegers, kProductIntegersMany, kAttentionFp32, kAttentionPairs, kAttentionAmx, kRows, kSample, kCopy, kOperations };

constexpr int kBodies = 7;             // plain, avx2, avx512, avx512bf16, amx, avx512vnni, tiles, in this order
bool machine_supported();              // whether the machine has x86-64-v3, the least that bodies are compiled for
bool body_built(int body);             // whether the library has it
bool body_usable(int body);            // whether the library has it and the machine runs it
int body_missing();                    // a body that this machine should run and the library lacks; -1: none
bool pairs_are_slow();                 // measures; the machine must have the instruction
bool body_knows(int body, Operation);
int body_chosen(Operation);
bool choose_body(int body);            // -1: return to the best
int forced_body();                     // -1: no body is forced
const Body& body_for(Operation);
}  // namespace baton
