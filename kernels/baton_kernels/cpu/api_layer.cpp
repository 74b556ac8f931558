// One call for the stretch of a step between two page writes: a layer's attention and feed-forward block, then the next
// layer's keys and values. It calls the same functions in the same order as separate calls do, so the bits are the same.
#include "api.h"
#include "calls.h"
#include "expect.h"
#include "pool.h"

using namespace baton;

extern "C" {
const char* baton_layer(const BatonStep* s, const BatonLayer* rest, int64_t rest_offset, const BatonLayer* next, int64_t next_offset) {
    const char* wrong = nullptr;
    if (rest) {
        wrong = baton_attention(s->path, s->kv, s->q, s->pool, s->pool_bytes, rest_offset, s->page_stride, s->tables, s->max_pages, s->starts, s->counts,
                                s->first_row, s->sequences, s->rows, s->heads, s->kv_heads, s->dim, s->page_tokens, s->scale, s->attended);
        expect_product(rest->gate_up, s->rows);
        if (!wrong) wrong = baton_product(s->attended, rest->o, s->rows, s->x, rest->o_bias, s->x);
        if (!wrong) wrong = baton_rmsnorm(s->x, rest->ffn_norm, s->rows, s->hidden, s->eps, s->normed);
        if (!wrong) wrong = baton_feed_forward(s->normed, rest->gate_up, rest->down, s->rows, s->gated, s->x, next ? next->qkv : nullptr);
    }
    if (next && !wrong) {
        wrong = baton_rmsnorm(s->x, next->input_norm, s->rows, s->hidden, s->eps, s->normed);
        expect_product(next->o, s->rows);
        if (!wrong) wrong = baton_product(s->normed, next->qkv, s->rows, s->qkv, next->qkv_bias, nullptr);
        if (!wrong)
            wrong = baton_rotate_write(s->path, s->kv, s->qkv, s->rows, s->heads, s->kv_heads, s->dim, s->cos, s->sin, s->max_positions, s->slots,
                                       s->page_of, s->offset_in_page, s->page_tokens, s->pool + next_offset, s->pool_bytes - next_offset, s->q,
                                       next->q_norm, next->k_norm, s->eps);
    }
    return wrong;
}

double baton_busy_seconds() { return pool_busy_seconds(); }
}
