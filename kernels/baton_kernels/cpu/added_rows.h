// The additions of adapters to the rows of products: the same for a layer's own products and for those of its experts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "api.h"

namespace baton {
// Rows that share an adapter: what it makes of row x_rows[i] of x is added to row out_rows[i] of out.
struct AddedRows {
    const BatonDelta* delta;
    const float* x;
    long k;
    float* out;
    long out_row;  // distance of two rows of out
    const int32_t *x_rows, *out_rows;
    long count;
};

size_t hidden_floats(const std::vector<AddedRows>&);  // numbers between A and B, of all rows

// Inside a Turn. Cuts the work into units; how it does decides speed, never bits.
void add_rows(const std::vector<AddedRows>&, float* hidden);
}  // namespace baton
