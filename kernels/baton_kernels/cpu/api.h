// The C surface of the library, as library.py declares it. A function that can refuse its arguments returns null or a
// message that names the argument. Python has checked sizes and types before; these functions check indices.
#pragma once
#include <cstdint>

namespace baton {
struct Form;
}

// The same fields as in layer.py, in the same order.
struct BatonMlp {
    const void* gate_up;  // without a gate: up alone
    const float* gate_up_bias;
    const void* down;
    const float* down_bias;
    int activation, gated;
    // of a mixture of experts; `router` null: there is none, and the former are the layer's only MLP. Otherwise they are the
    // expert that computes every row, or null.
    const void *router, *experts_gate_up, *experts_down;  // router: a row for each expert, then one for a gated shared expert
    int64_t gate_up_bytes, down_bytes;                    // size of each expert's matrix
    int experts, chosen, normalised, shared;              // shared: calls.h says how that expert is weighed
    float factor;                                         // the weights of chosen experts are multiplied by it
    const float *router_bias, *experts_gate_up_bias, *experts_down_bias;  // those of experts one behind the other; null: none
};
struct BatonLayer {
    const float *input_norm, *input_norm_bias;
    const void* qkv;
    const float *qkv_bias, *q_norm, *k_norm, *latent_norm;
    const void* o;
    const float *o_bias, *attended_norm, *ffn_norm, *ffn_norm_bias;
    BatonMlp mlp;
    const float *fed_norm, *cos, *sin;
    const float* sinks;  // [heads]; null: none
    long window;  // slots that a row sees; 0: all
    long index;  // its number in the model
};
// The same fields as in deltas.py, in the same order: what an adapter adds to one product.
struct BatonDeltaPart {
    long columns, rank;  // outputs, behind those of the part before; 0 ranks: nothing is added to them
    float scale;
};
struct BatonDelta {
    const void *down, *up;  // null: nothing is added
    long ranks;             // rows of A: the ranks of all parts, and zero rows up to a multiple of kDeltaRanks
    int half, parts;
    BatonDeltaPart part[3];
};
// The rows of a step that have adapters, those of each adapter together.
struct BatonAdapted {
    const BatonDelta* const* deltas;  // for each adapter those of all its products, kDeltasOfLayer for each layer
    // For each adapter, of each layer and each expert, at last the one that computes every row: that of its gate and up, and
    // that of its down. Null: it changes no expert.
    const BatonDelta* const* experts;
    const int32_t *starts, *rows;     // the rows of adapter a are rows[starts[a]] to rows[starts[a + 1]]
    long adapters;
};
struct BatonStep {
    int path, kv;  // those of attention and pages; a matrix says its own
    int norm, wide_norms;  // wide: those of queries and keys are over all heads together
    float eps, scale, attention_cap, embedding_scale, residual_scale, logits_cap, qkv_limit;  // a cap or limit of 0: none
    float latent_eps;
    long latent;  // elements of the latent that keys and values share; 0: they share none
    long rows, sequences, max_pages, hidden, ffn, heads, kv_heads, dim, page_tokens, max_positions;
    int64_t pool_bytes, page_stride;
    char* pool;
    const int32_t* slots;
    const int64_t* page_of;
    const int32_t *offset_in_page, *tables, *starts, *counts, *first_row;
    float *x, *normed, *qkv, *q, *attended, *gated;
    const BatonAdapted* adapted;  // null: no row has an adapter
    float* gate_up;               // [rows, outputs of the MLP's first product]; for steps with adapters
};
// The same fields as in draft.py, in the same order.
struct BatonModel {
    const BatonLayer* layers;
    long count;
    int64_t first_byte, layer_bytes;  // place of the layers in a page
    const void* embedding;
    const float *norm, *norm_bias;
    const void* head;
    long vocab;
    float* logits;
};
struct BatonSampling {
    const float *temperature, *top_p, *min_p;
    const int32_t *top_k, *choice, *position, *min_tokens, *stops, *stop_starts;
    const uint64_t* seed;
};

#pragma GCC visibility push(default)
extern "C" {
int baton_version();
const char* baton_sources();  // digest of the sources and flags that the library was compiled from
int baton_supported();
int baton_built(int body);
int baton_missing();
int baton_usable(int body);
int baton_knows(int body, int operation);
int baton_chosen(int operation);
int baton_choose(int body);
int baton_forced();
int baton_threads();
void baton_set_threads(int threads, const int32_t* cores);  // cores: one per thread; null: threads run on any core

const char* baton_describe(baton::Form*);  // checks a form and fills in its size in bytes
const char* baton_pack(const baton::Form*, int source, const void* weights, void* packed);
// values [n, k]: int8, or nibbles; scales [n] fp32, or [n, groups] of the form's type; offsets and factors [n, groups]
const char* baton_pack_integers(const baton::Form*, const int8_t* values, const void* scales, const void* offsets, const uint8_t* factors,
                                const int32_t* order, void* packed);
const char* baton_embed(const void* packed, const int32_t* tokens, long rows, float factor, float* out);
const char* baton_product(const float* x, const void* packed, long rows, float* out, const float* bias, const float* residual);
// `after` is multiplied next; null: unknown. `residual` null: none.
const char* baton_feed_forward(const float* x, const BatonMlp*, long rows, float* between, float* out, const float* residual, const void* after);
const char* baton_gated(const float* x, const void* packed, long rows, float* out, const float* bias, int activation);
const char* baton_activated(const float* x, const void* packed, long rows, float* out, const float* bias, int activation);

// An MLP with experts: the router's choice for each row, the two products of each expert that a row chose over all its rows,
// and the sums of rows. `out` may be x. `adapted` null: no row has an adapter.
const char* baton_experts(const float* x, const BatonMlp*, long rows, float* out, const float* residual, const void* after,
                          const BatonAdapted* adapted, long layer);
// ids [rows][chosen], weights [rows][chosen, and one more if `shared`], of scores [rows][experts, and one more if that is gated].
const char* baton_route(const float* scores, long rows, long experts, long chosen, int normalised, int shared, float factor, int32_t* ids, float* weights);
// out = residual (null: none) + the sum of weights[r][i] * y[places[r][i]] over the `parts` of row r.
const char* baton_combine(const float* y, long y_rows, const int32_t* places, const float* weights, long rows, long parts, long k,
                          const float* residual, float* out);
int64_t baton_expert_bytes();  // bytes of experts' matrices that were read so far
// Adds to each row of `out` what its adapter makes of its row of x [rows, k]; `product`: its number in the model.
const char* baton_add_deltas(const float* x, long k, float* out, long out_row, const BatonAdapted*, long product);
// What lies between the products of an MLP: [rows, outputs of the first] -> [rows, inputs of the second].
void baton_between(const float* gate_up, float* out, long rows, long n, int activation, int gated);

const char* baton_rmsnorm_within(float* x, const float* weight, long rows, long k, long stride, float eps);
// Normalises the latent in values, and copies it to keys: qkv [rows, (heads + 2) * dim], one KV head.
const char* baton_share_latent(float* qkv, const float* weight, long rows, long heads, long dim, long latent, float eps);
const char* baton_layernorm(const float* x, const float* weight, const float* bias, long rows, long k, float eps, float* out);
// x += factor * y, normalised before if `norm` is not null.
const char* baton_add(float* x, const float* y, const float* norm, long rows, long k, float eps, float factor);
const char* baton_cap(float* x, long rows, long k, float limit);
const char* baton_clip(float* x, long rows, long k, float limit);  // into +-limit
const char* baton_rmsnorm(const float* x, const float* weight, long rows, long k, float eps, float* out);
const char* baton_rotate_write(int path, int kv, const float* qkv, long rows, long heads, long kv_heads, long dim, const float* cos,
                               const float* sin, long max_positions, const int32_t* slots, const int64_t* page_of,
                               const int32_t* offset_in_page, long page_tokens, char* pool, int64_t pool_bytes, float* q_out,
                               const float* q_norm, const float* k_norm, float eps);
const char* baton_attention(int path, int kv, int stretches, const float* q, const char* pool, int64_t pool_bytes, int64_t layer_offset, int64_t page_stride,
                            const int32_t* tables, long max_pages, const int32_t* starts, const int32_t* counts,
                            const int32_t* first_row, long sequences, long rows, long heads, long kv_heads, long dim,
                            long page_tokens, long window, float scale, float cap, const float* sinks, float* out);
const char* baton_sample(const float* logits, long rows, long vocab, const float* temperature, const int32_t* top_k,
                         const float* top_p, const float* min_p, const uint64_t* seed, const int32_t* choice,
                         const int32_t* position, const int32_t* banned, const int32_t* banned_starts, long banned_count,
                         const int32_t* n_top, long n_max, int32_t* tokens, float* logprobs, int32_t* top_ids, float* top_logprobs);
// As baton_sample. Row r is drawn from row adjusted_rows[r] of `adjusted`, unless that is -1; logprobs are always of `logits`.
// totals[r] is what the logits of row r lose to become logprobs, in one subtraction; null: it is not wanted.
const char* baton_sample_adjusted(const float* logits, long rows, long vocab, const float* temperature, const int32_t* top_k,
                                  const float* top_p, const float* min_p, const uint64_t* seed, const int32_t* choice,
                                  const int32_t* position, const int32_t* banned, const int32_t* banned_starts, long banned_count,
                                  const int32_t* n_top, long n_max, int32_t* tokens, float* logprobs, int32_t* top_ids,
                                  float* top_logprobs, const float* adjusted, const int32_t* adjusted_rows, long adjusted_count, float* totals);
void baton_log_exp(const float* x, float* logs, float* exps, long n);

// If `to` is null, it only computes the checksums.
void baton_scatter(const int64_t* to, const int64_t* from, long spans, int64_t bytes, const int64_t* words, uint64_t* sums);
uint64_t baton_checksum(int64_t address, int64_t bytes, int64_t word);
const char* baton_layer(const BatonStep*, const BatonLayer* rest, int64_t rest_offset, const BatonLayer* next, int64_t next_offset);
const char* baton_propose(const BatonStep*, const BatonModel*, const BatonSampling*, const int32_t* text, const int32_t* starts,
                        const int32_t* counts, const int32_t* wanted, long rounds, int32_t* tokens, float* logprobs);
const char* baton_finish(const BatonStep*, const float* norm, const float* norm_bias);  // x -> normed
double baton_busy_seconds();
double baton_limit(int limit, const void* memory, long amount);

void baton_copy(char* pool, int64_t from, int64_t to, int64_t bytes);
}
#pragma GCC visibility pop
