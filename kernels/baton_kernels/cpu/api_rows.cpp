// The C functions around rows of activations and their pages: norms, rotary with page write, attention, sampling.
#include <new>
#include <vector>

#include "api.h"
#include "dispatch.h"
#include "over_rows.h"
#include "pool.h"

using namespace baton;

namespace {
const char* check_tables(const AttentionCall& call, long sequences, long rows, int64_t pool_bytes, int64_t layer_bytes) {
    for (long s = 0; s < sequences; ++s) {
        if (call.starts[s] < 0 || call.counts[s] < 0) return "starts, counts: negative";
        if (call.first_row[s] < 0 || call.first_row[s] + static_cast<long>(call.counts[s]) > rows) return "first_row, counts: beyond the rows of q";
        const long slots = static_cast<long>(call.starts[s]) + call.counts[s], pages = (slots + call.page_tokens - 1) / call.page_tokens;
        if (call.counts[s] == 0) continue;
        if (pages > call.max_pages) return "tables: fewer pages than the slots that a sequence sees";
        for (long p = first_seen(call.starts[s], call.window) / call.page_tokens; p < pages; ++p) {
            const int64_t at = call.tables[s * call.max_pages + p] * static_cast<int64_t>(call.page_stride) + call.layer_offset;
            if (at < 0 || at + layer_bytes > pool_bytes) return "tables: a page lies outside the pool";
        }
    }
    return nullptr;
}
}  // namespace

extern "C" {

const char* baton_rmsnorm(const float* x, const float* weight, long rows, long k, float eps, float* out) {
    const Turn turn;
    const Body& body = body_for(kRows);
    over_rows(rows, k, [&](long r, int) { body.rmsnorm(x + r * k, weight, k, eps, out + r * k); });
    return nullptr;
}

// Normalises the first k of every `stride` numbers, in place.
const char* baton_rmsnorm_within(float* x, const float* weight, long rows, long k, long stride, float eps) {
    const Turn turn;
    const Body& body = body_for(kRows);
    over_rows(rows, k, [&](long r, int) { body.rmsnorm(x + r * stride, weight, k, eps, x + r * stride); });
    return nullptr;
}

// The values of a row's only KV head are its latent and zeros. They are normalised in place; the keys have the same latent
// behind each half of what is rotated.
const char* baton_share_latent(float* qkv, const float* weight, long rows, long heads, long dim, long latent, float eps) {
    if (latent % 2 || latent < 2 || latent > dim) return "latent: must be even and at most dim";
    const Turn turn;
    const Body& body = body_for(kRows);
    over_rows(rows, dim, [&](long r, int) {
        float *keys = qkv + (r * (heads + 2) + heads) * dim, *values = keys + dim;
        body.rmsnorm(values, weight, latent, eps, values);
        const long half = latent / 2, rotated = (dim - latent) / 2;
        for (long h = 0; h < 2; ++h)
            for (long d = 0; d < half; ++d) keys[h * dim / 2 + rotated + d] = values[h * half + d];
    });
    return nullptr;
}

const char* baton_layernorm(const float* x, const float* weight, const float* bias, long rows, long k, float eps, float* out) {
    const Turn turn;
    const Body& body = body_for(kRows);
    over_rows(rows, k, [&](long r, int) { body.layernorm(x + r * k, weight, bias, k, eps, out + r * k); });
    return nullptr;
}

const char* baton_add(float* x, const float* y, const float* norm, long rows, long k, float eps, float factor) {
    const Turn turn;
    const Body& body = body_for(kRows);
    over_rows(rows, k, [&](long r, int) { body.add(x + r * k, y + r * k, norm, k, eps, factor); });
    return nullptr;
}

const char* baton_cap(float* x, long rows, long k, float limit) {
    const Turn turn;
    const Body& body = body_for(kRows);
    over_rows(rows, k, [&](long r, int) { body.cap(x + r * k, k, limit); });
    return nullptr;
}

const char* baton_clip(float* x, long rows, long k, float limit) {
    const Turn turn;
    const Body& body = body_for(kRows);
    over_rows(rows, k, [&](long r, int) { body.clip(x + r * k, k, limit); });
    return nullptr;
}

const char* baton_rotate_write(int path, int kv, const float* qkv, long rows, long heads, long kv_heads, long dim, const float* cos,
                               const float* sin, long max_positions, const int32_t* slots, const int64_t* page_of,
                               const int32_t* offset_in_page, long page_tokens, char* pool, int64_t pool_bytes, float* q_out,
                               const float* q_norm, const float* k_norm, float eps) {
    const int64_t layer_bytes = 2 * kv_heads * head_bytes(static_cast<Path>(path), static_cast<Kv>(kv), page_tokens, dim);
    for (long r = 0; r < rows; ++r) {
        if (slots[r] < 0 || slots[r] >= max_positions) return "slots: beyond the rotary tables";
        if (page_of[r] < 0 || page_of[r] + layer_bytes > pool_bytes) return "page_of: a page lies outside the pool";
        if (offset_in_page[r] < 0 || offset_in_page[r] >= page_tokens) return "offset_in_page: beyond the page";
    }
    const Turn turn;
    const RotateCall call{qkv, cos, sin, q_norm, k_norm, slots, offset_in_page, page_of, rows, heads, kv_heads, dim, page_tokens, eps,
                          pool, q_out, path != kFp32, static_cast<Kv>(kv)};
    const Body& body = body_for(kRows);
    over_rows(rows, (heads + 2 * kv_heads) * dim, [&](long r, int) { body.rotate(call, r); });
    return nullptr;
}

const char* baton_attention(int path, int kv, int stretches, const float* q, const char* pool, int64_t pool_bytes, int64_t layer_offset, int64_t page_stride,
                            const int32_t* tables, long max_pages, const int32_t* starts, const int32_t* counts,
                            const int32_t* first_row, long sequences, long rows, long heads, long kv_heads, long dim,
                            long page_tokens, long window, float scale, float cap, const float* sinks, float* out) try {
    AttentionCall call{q, pool, layer_offset, page_stride, page_tokens, max_pages, tables, starts, counts, first_row,
                       heads, kv_heads, dim, window, scale, cap, sinks, static_cast<Kv>(kv), stretches != 0, out, 0, nullptr, 0, 0};
    const int64_t layer_bytes = 2 * kv_heads * head_bytes(static_cast<Path>(path), call.kv, page_tokens, dim);
    if (window < 0) return "window: negative";
    if (const char* wrong = check_tables(call, sequences, rows, pool_bytes, layer_bytes)) return wrong;
    const long group = heads / kv_heads;
    if (group > kMaxQueries) return "heads: more than 192 query heads share one KV head";
    call.tile_rows = most(1, least(kMaxQueries, kUnitDims / dim) / group);  // so that the scratch of a unit stays in the cache
    if (call.tile_rows > 12) call.tile_rows = call.tile_rows / 12 * 12;
    while (call.tile_rows > 12 && rows * kv_heads < call.tile_rows * pool_threads() * 3) call.tile_rows -= 12;
    std::vector<int32_t> units;
    for (long s = 0; s < sequences; ++s)  // the last rows see most slots and go first
        for (long tile = (counts[s] + call.tile_rows - 1) / call.tile_rows - 1; tile >= 0; --tile) {
            units.push_back(static_cast<int32_t>(s));
            units.push_back(static_cast<int32_t>(tile * call.tile_rows));
        }
    const Turn turn;
    call.units = units.data(), call.unit_count = static_cast<long>(units.size()) / 2, call.threads = pool_threads();
    reserve_scratch(kAttentionScratch * 4);
    const Body& body = body_for(path == kFp32 ? kAttentionFp32 : path == kPairs ? kAttentionPairs : kAttentionAmx);
    parallel(call.unit_count * kv_heads,
             [&](long unit, int thread) { body.attention(call, static_cast<Path>(path), unit, thread_scratch(thread)); });
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for the scratch space of attention";
}

const char* baton_sample_adjusted(const float* logits, long rows, long vocab, const float* temperature, const int32_t* top_k,
                         const float* top_p, const float* min_p, const uint64_t* seed, const int32_t* choice,
                         const int32_t* position, const int32_t* banned, const int32_t* banned_starts, long banned_count,
                         const int32_t* n_top, long n_max, int32_t* tokens, float* logprobs, int32_t* top_ids, float* top_logprobs,
                                  const float* adjusted, const int32_t* adjusted_rows, long adjusted_count, float* totals) try {
    for (long i = 0; i < banned_count; ++i)
        if (banned[i] < 0 || banned[i] >= vocab) return "banned: an id lies outside the vocabulary";
    for (long r = 0; banned_starts && r < rows; ++r)
        if (banned_starts[r] < 0 || banned_starts[r] > banned_starts[r + 1] || banned_starts[r + 1] > banned_count)
            return "banned_starts: not ascending within banned";
    for (long r = 0; adjusted_rows && r < rows; ++r)
        if (adjusted_rows[r] < -1 || adjusted_rows[r] >= adjusted_count) return "adjusted_rows: a row lies outside adjusted";
    const Turn turn;
    reserve_scratch(static_cast<size_t>(round_up(vocab, 16)) * 5 * 4);
    const SampleCall call{logits, adjusted, adjusted_rows, temperature, top_p, min_p, top_k, choice, position, seed, banned, banned_starts, n_top,
                          rows, vocab, n_max, tokens, logprobs, top_ids, top_logprobs, totals};
    const Body& body = body_for(kSample);
    over_rows(rows, vocab, [&](long r, int thread) { body.sample(call, r, thread_scratch(thread)); });
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for the scratch space of sampling";
}

const char* baton_sample(const float* logits, long rows, long vocab, const float* temperature, const int32_t* top_k,
                         const float* top_p, const float* min_p, const uint64_t* seed, const int32_t* choice,
                         const int32_t* position, const int32_t* banned, const int32_t* banned_starts, long banned_count,
                         const int32_t* n_top, long n_max, int32_t* tokens, float* logprobs, int32_t* top_ids, float* top_logprobs) {
    return baton_sample_adjusted(logits, rows, vocab, temperature, top_k, top_p, min_p, seed, choice, position, banned, banned_starts,
                                 banned_count, n_top, n_max, tokens, logprobs, top_ids, top_logprobs, nullptr, nullptr, 0, nullptr);
}

void baton_log_exp(const float* x, float* logs, float* exps, long n) {
    const FlushDenormals flush;
    body_for(kRows).log_exp(x, logs, exps, n);
}
}
