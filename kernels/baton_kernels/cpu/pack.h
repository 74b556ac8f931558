// The layout of packed weights; see pack.cpp.
#pragma once
#include "calls.h"

namespace baton {
enum Source { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

long packed_bytes(Path, long n, long k);
void pack_panel(Path, Source, const void* weights, long n, long k, long panel, void* packed);
void unpack_column(Path, const void* packed, long k, long column, float* out);
}  // namespace baton
