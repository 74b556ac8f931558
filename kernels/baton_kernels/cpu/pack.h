// The layout of packed weights; see pack.cpp.
#pragma once
#include "form.h"

namespace baton {
enum Source { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

const char* describe(Form&);  // null, or what is wrong with it
void pack_panel(Path, Source, const void* weights, long n, long k, long panel, void* packed);
void unpack_column(Path, const void* packed, long k, long column, float* out);

// values: int8 or nibbles [n][k]. The arrays are as api.h says.
void pack_integer_panel(const Form&, const int8_t* values, const void* scales, const void* offsets, const uint8_t* factors, long panel, char* panels);
void unpack_integer_column(const Form&, const char* packed, long column, float* out);  // as numbers, in the order of a row's elements
}  // namespace baton
