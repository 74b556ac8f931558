// Which body carries out which operation on this machine. All give equal bits, so the choice is about speed only.
#pragma once
#include "calls.h"

namespace baton {
enum Operation { kProductFp32, kProductPairs, kProductPairsMany, kProductAmx, kAttentionFp32, kAttentionPairs, kAttentionAmx, kRows, kSample, kCopy, kOperations };

constexpr int kBodies = 5;             // plain, avx2, avx512, avx512bf16, amx, in this order
bool machine_supported();              // x86-64-v3, the least that we compile for
bool body_usable(int body);
bool body_knows(int body, Operation);
int body_chosen(Operation);
bool choose_body(int body);            // -1: the best again
int forced_body();                     // -1: none
const Body& body_for(Operation);
}  // namespace baton
