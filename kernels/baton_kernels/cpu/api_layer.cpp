// One call for the stretch of a step between two page writes: a layer's attention and feed-forward block, then the next
// layer's keys and values. It calls the same functions in the same order as separate calls do, so the bits are the same.
#include "api.h"
#include "calls.h"
#include "expect.h"
#include "pool.h"

using namespace baton;

namespace {
enum DeltaOf { kQkv, kOutput, kGateUp, kDown, kDeltasOfLayer };

const char* add_deltas(const BatonStep* s, const BatonLayer* l, DeltaOf product, const float* x, long k, float* out, long n) {
    return s->adapted ? baton_add_deltas(x, k, out, n, s->adapted, l->index * kDeltasOfLayer + product) : nullptr;
}

// The MLP of a layer. Where rows have adapters, what these add to the first product comes before the gate.
const char* feed_forward(const BatonStep* s, const BatonLayer* l, const float* read, float* out, const float* residual, const void* after) {
    const BatonMlp& mlp = l->mlp;
    if (!s->adapted) return baton_feed_forward(read, &mlp, s->rows, s->gated, out, residual, after);
    const char* wrong = baton_product(read, mlp.gate_up, s->rows, s->gate_up, mlp.gate_up_bias, nullptr);
    if (!wrong) wrong = add_deltas(s, l, kGateUp, read, s->hidden, s->gate_up, mlp.gated ? 2 * s->ffn : s->ffn);
    if (!wrong) baton_between(s->gate_up, s->gated, s->rows, s->ffn, mlp.activation, mlp.gated);
    if (!wrong) wrong = baton_product(s->gated, mlp.down, s->rows, out, mlp.down_bias, residual);
    return wrong ? wrong : add_deltas(s, l, kDown, s->gated, s->ffn, out, s->hidden);
}

// Normalises x; `rows` becomes the rows that the next product reads: x itself where the model has no norm.
const char* normalise(const BatonStep* s, const float* weight, const float* bias, const float*& rows) {
    rows = weight ? s->normed : s->x;
    if (!weight) return nullptr;
    if (s->norm == kLayerNorm) return baton_layernorm(s->x, weight, bias, s->rows, s->hidden, s->eps, s->normed);
    return baton_rmsnorm(s->x, weight, s->rows, s->hidden, s->eps, s->normed);
}

// Attention of a layer, and what follows it up to the next layer's input. What is added to x is scaled or normalised before
// in some models: then it takes the place of the rows that were read.
const char* rest_of(const BatonStep* s, const BatonLayer* l, int64_t offset, const void* after) {
    const char* wrong = baton_attention(s->path, s->kv, s->latent != 0, s->q, s->pool, s->pool_bytes, offset, s->page_stride, s->tables, s->max_pages, s->starts, s->counts,
                                        s->first_row, s->sequences, s->rows, s->heads, s->kv_heads, s->dim, s->page_tokens, l->window, s->scale, s->attention_cap, l->sinks, s->attended);
    const bool scaled = s->residual_scale != 1.0f, apart = l->attended_norm || scaled, fed_apart = l->fed_norm || scaled;
    expect_product(l->mlp.router ? l->mlp.router : l->mlp.gate_up, s->rows);
    if (!wrong) wrong = baton_product(s->attended, l->o, s->rows, apart ? s->normed : s->x, l->o_bias, apart ? nullptr : s->x);
    if (!wrong) wrong = add_deltas(s, l, kOutput, s->attended, s->heads * s->dim, apart ? s->normed : s->x, s->hidden);
    if (apart && !wrong) wrong = baton_add(s->x, s->normed, l->attended_norm, s->rows, s->hidden, s->eps, s->residual_scale);
    const float* read = nullptr;
    if (!wrong) wrong = normalise(s, l->ffn_norm, l->ffn_norm_bias, read);
    float* fed = fed_apart ? s->normed : s->x;
    const float* residual = fed_apart ? nullptr : s->x;
    if (!wrong)
        wrong = l->mlp.router ? baton_experts(read, &l->mlp, s->rows, fed, residual, after, s->adapted, l->index)
                              : feed_forward(s, l, read, fed, residual, after);
    if (fed_apart && !wrong) wrong = baton_add(s->x, s->normed, l->fed_norm, s->rows, s->hidden, s->eps, s->residual_scale);
    return wrong;
}

const char* keys_and_values_of(const BatonStep* s, const BatonLayer* l, int64_t offset) {
    const float* read = nullptr;
    const char* wrong = normalise(s, l->input_norm, l->input_norm_bias, read);
    expect_product(l->o, s->rows);
    if (!wrong) wrong = baton_product(read, l->qkv, s->rows, s->qkv, l->qkv_bias, nullptr);
    const long queries = s->heads * s->dim, keys = s->kv_heads * s->dim, all = queries + 2 * keys;
    if (!wrong) wrong = add_deltas(s, l, kQkv, read, s->hidden, s->qkv, all);
    if (s->wide_norms && !wrong) wrong = baton_rmsnorm_within(s->qkv, l->q_norm, s->rows, queries, all, s->eps);
    if (s->wide_norms && !wrong) wrong = baton_rmsnorm_within(s->qkv + queries, l->k_norm, s->rows, keys, all, s->eps);
    if (s->latent && !wrong) wrong = baton_share_latent(s->qkv, l->latent_norm, s->rows, s->heads, s->dim, s->latent, s->latent_eps);
    if (s->qkv_limit != 0.0f && !wrong) wrong = baton_clip(s->qkv, s->rows, all, s->qkv_limit);
    if (!wrong)
        wrong = baton_rotate_write(s->path, s->kv, s->qkv, s->rows, s->heads, s->kv_heads, s->dim, l->cos, l->sin, s->max_positions, s->slots,
                                   s->page_of, s->offset_in_page, s->page_tokens, s->pool + offset, s->pool_bytes - offset, s->q,
                                   s->wide_norms ? nullptr : l->q_norm, s->wide_norms ? nullptr : l->k_norm, s->eps);
    return wrong;
}
}  // namespace

extern "C" {
const char* baton_layer(const BatonStep* s, const BatonLayer* rest, int64_t rest_offset, const BatonLayer* next, int64_t next_offset) {
    const char* wrong = rest ? rest_of(s, rest, rest_offset, next ? next->qkv : nullptr) : nullptr;
    return next && !wrong ? keys_and_values_of(s, next, next_offset) : wrong;
}

const char* baton_finish(const BatonStep* s, const float* norm, const float* norm_bias) {
    const float* rows = nullptr;
    return normalise(s, norm, norm_bias, rows);
}

double baton_busy_seconds() { return pool_busy_seconds(); }
}
