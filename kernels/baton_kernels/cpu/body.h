// One body: compiles every kernel over the Lanes that were included before, in the namespace BODY.
#pragma once
#include "calls.h"
#include "math.h"
#include "tile.h"
#include "tiles.h"
#include "product_tiles.h"
#include "product.h"
#include "attention_blocks.h"
#include "attention_tiles.h"
#include "attention.h"
#include "rows.h"
#include "sample.h"
#include "copy.h"

namespace baton::BODY {
#ifdef __AVX512BF16__
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

static void log_exp(const float* x, float* logs, float* exps, long n) {
    for (long i = 0; i < n; i += 16) {
        const Lanes v = load_first(x + i, n - i, 1.0f);
        store_first(logs + i, n - i, log(v));
        store_first(exps + i, n - i, exp(v));
    }
}
}  // namespace baton::BODY

#define BATON_NAME_(body) #body
#define BATON_NAME(body) BATON_NAME_(body)
#define BATON_JOIN_(a, b) a##b
#define BATON_JOIN(a, b) BATON_JOIN_(a, b)
#define BATON_BODY                                                                                          \
    namespace baton {                                                                                                   \
    extern const Body BATON_JOIN(body_, BODY);                                                                          \
    const Body BATON_JOIN(body_, BODY) = {BATON_NAME(BODY), BODY::kTileRows, BODY::kHasPairs, BODY::pack_rows, BODY::product, \
                                          BODY::gate, BODY::attention, BODY::rmsnorm, BODY::rotate, BODY::sample,       \
                                          BODY::log_exp, BODY::copy};                                                   \
    }
