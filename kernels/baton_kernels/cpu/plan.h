// How a call on packed weights is cut into tiles and units, and how its parts run. The plan decides speed, never bits.
#pragma once
#include <cstddef>

#include "form.h"

namespace baton {
constexpr long kSmall = 1 << 14;  // calls of at most so many elements wake no thread

void take(ProductCall&, const void* packed);  // names the form of a call and the place of its panels
size_t cut_rows(ProductCall&);                // decides how the rows are packed; returns the bytes that they take
// Decides how panels and tiles become units; returns how many there are. `calls`: how many calls give the threads one list.
long cut_units(ProductCall&, long calls = 1);
bool hands_on(const ProductCall& gated, const ProductCall& next);  // can outputs be packed as rows of the next product?
size_t unit_bytes(const ProductCall&);        // scratch memory of a unit
void place_rows(ProductCall&, char* at);      // rows are packed, or have been packed, at this place
void pack_tile(const ProductCall&, long tile);
void run_unit(const ProductCall&, long unit, int thread);

static inline const Form& form_of(const void* packed) { return *static_cast<const Form*>(packed); }
}  // namespace baton
