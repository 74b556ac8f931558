// The product that comes next is told to the threads that wait for it, where weights are what it waits for.
#pragma once
#include "form.h"
#include "pool.h"

namespace baton {
constexpr long kWaitingRows = 8;  // with more, products wait for their operations

// While the calls before it run. `packed` null: unknown.
inline void expect_product(const void* packed, long rows) {
    const auto* form = static_cast<const Form*>(packed);
    if (!packed || rows > kWaitingRows || form->scheme == kStack) return pool_expect(nullptr, 0);
    const long panels = first_panel(*form);
    pool_expect(static_cast<const char*>(packed) + panels, static_cast<size_t>(form->bytes - panels));
}
}  // namespace baton
