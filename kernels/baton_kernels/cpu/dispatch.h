// Chooses the body that computes each operation on this machine. All bodies give equal bits, so only speed depends on it.
#pragma once
#include "calls.h"

namespace baton {
enum Operation { kProductFp32, kProductPairs, kProductPairsMany, kProductAmx, kProductIntegers, kProductIntegersMany, kAttentionFp32, kAttentionPairs, kAttentionAmx, kRows, kSample, kCopy, kOperations };

enum BodyNumber { kPlain, kAvx2, kAvx512, kAvx512Bf16, kTiles, kAvx512Vnni, kEmulatedTiles, kNeon };  // in the order of library.py
constexpr int kBodies = 8;
bool machine_supported();              // whether the machine has the least that bodies are compiled for
bool body_built(int body);             // whether the library has it
bool body_usable(int body);            // whether the library has it and the machine runs it
int body_missing();                    // a body that this machine should run and the library lacks; -1: none
bool body_knows(int body, Operation);
int body_chosen(Operation);
bool choose_body(int body);            // -1: return to the best
int forced_body();                     // -1: no body is forced
const Body& body_for(Operation);
}  // namespace baton
