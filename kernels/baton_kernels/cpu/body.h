// One body: compiles its kernels over the Lanes that were included before, in the namespace BODY. A body with an
// instruction of its own compiles what that instruction serves and nothing else (dispatch.cpp: body_knows), which takes
// a third of the time; its other entries are null and never called.
#pragma once
#if defined(__AMX_BF16__) || defined(BATON_EMULATED_TILES)
#define BATON_TILES_ONLY
#elif defined(__AVX512BF16__)
#define BATON_PAIRS_ONLY
#elif defined(__AVX512VNNI__)
#define BATON_QUADS_ONLY
#else
#define BATON_ALL
#endif
#include "form.h"
#include "math.h"
#include "tile.h"
#if !defined(BATON_PAIRS_ONLY) && !defined(BATON_QUADS_ONLY)
#include "tiles.h"
#include "product_tiles.h"
#endif
#include "product.h"
#ifndef BATON_PAIRS_ONLY
#include "quads.h"
#include "activations.h"
#include "product_integer.h"
#ifdef BATON_TILES_ONLY
#include "integer_tiles.h"
#else
#include "integer_chains.h"
#endif
#endif
#ifndef BATON_QUADS_ONLY
#include "page_codes.h"
#include "attention_blocks.h"
#ifndef BATON_PAIRS_ONLY
#include "attention_tiles.h"
#endif
#include "attention.h"
#endif
#ifdef BATON_ALL
#include "rows.h"
#include "experts.h"
#include "sample.h"
#include "copy.h"
#include "deltas.h"
#endif

#define BATON_NAME_(body) #body
#define BATON_NAME(body) BATON_NAME_(body)
#define BATON_JOIN_(a, b) a##b
#define BATON_JOIN(a, b) BATON_JOIN_(a, b)

namespace baton::BODY {
#ifdef __AVX512BF16__
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

#ifdef BATON_ALL
static void log_exp(const float* x, float* logs, float* exps, long n) {
    for (long i = 0; i < n; i += 16) {
        const Lanes v = load_first(x + i, n - i, 1.0f);
        store_first(logs + i, n - i, log(v));
        store_first(exps + i, n - i, exp(v));
    }
}
constexpr Body kBody = {BATON_NAME(BODY), kTileRows, kGroupRows, kQuadWords, kHasPairs, false, pack_rows, product, pack_bytes, product_integer, gate, activate, attention, rmsnorm, layernorm, add, cap, clip,
                        route, combine, rotate, sample, log_exp, copy, shrink, expand};
#elif defined(BATON_QUADS_ONLY)
constexpr Body kBody = {BATON_NAME(BODY), kTileRows, kGroupRows, kQuadWords, kHasPairs, false, nullptr, nullptr, pack_bytes, product_integer, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                        nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
#elif defined(BATON_TILES_ONLY)
constexpr Body kBody = {BATON_NAME(BODY), kTile, kTile, kQuadWords, kHasPairs, true, pack_rows, product, pack_bytes, product_integer, nullptr, nullptr, attention, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
#else
constexpr Body kBody = {BATON_NAME(BODY), kTileRows, 0, 0, kHasPairs, false, pack_rows, product, nullptr, nullptr, nullptr, nullptr, attention, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
#endif
}  // namespace baton::BODY

#define BATON_BODY                                                          \
    namespace baton {                                                       \
    extern const Body BATON_JOIN(body_, BODY);                              \
    const Body BATON_JOIN(body_, BODY) = BODY::kBody;                       \
    }                                                                       \
    extern "C" __attribute__((visibility("default"))) const char BATON_JOIN(baton_has_, BODY) = 1; /* build.py looks for it */
