// A draft model goes on alone, a token per round: whole passes of one row per sequence, each round's sample being the
// next round's input. The same functions as called one by one, without a return to Python in between, which would cost
// as much as such a small model's pass itself.
#include <new>
#include <vector>

#include "api.h"
#include "calls.h"

using namespace baton;

namespace {
// Stop ids of the rows that may not end yet, as baton_sample wants them.
struct Banned {
    std::vector<int32_t> ids, starts;

    void fill(const BatonWishes& wishes, const std::vector<int32_t>& position, long rows) {
        ids.clear(), starts.assign(1, 0);
        for (long r = 0; r < rows; ++r) {
            if (position[r] < wishes.min_tokens[r])
                ids.insert(ids.end(), wishes.stops + wishes.stop_starts[r], wishes.stops + wishes.stop_starts[r + 1]);
            starts.push_back(static_cast<int32_t>(ids.size()));
        }
    }
};

const char* pass(const BatonStep& s, const BatonModel& m, const int32_t* tokens) {
    const char* wrong = baton_embed(s.path, m.embedding, tokens, s.rows, m.vocab, s.hidden, s.x);
    for (long i = 0; i <= m.count && !wrong; ++i) {
        const int64_t offset = m.first_byte + i * m.layer_bytes;
        wrong = baton_layer(&s, i ? m.layers + i - 1 : nullptr, offset - m.layer_bytes, i < m.count ? m.layers + i : nullptr, offset);
    }
    if (!wrong) wrong = baton_rmsnorm(s.x, m.norm, s.rows, s.hidden, s.eps, s.normed);
    return wrong ? wrong : baton_product(s.path, s.normed, m.head, s.rows, m.vocab, s.hidden, m.logits, nullptr, nullptr);
}
}  // namespace

extern "C" {
const char* baton_go_on(const BatonStep* step, const BatonModel* model, const BatonWishes* wishes, const int32_t* wanted,
                        const int32_t* first_slots, long rounds, int32_t* tokens, float* logprobs) try {
    BatonStep s = *step;
    const long n = s.sequences;
    std::vector<int32_t> slots(first_slots, first_slots + n), offsets(n), ones(n, 1), rows(n);
    std::vector<int32_t> position(wishes->position, wishes->position + n);
    std::vector<int64_t> page_of(n);
    Banned banned;
    for (long i = 0; i < n; ++i) rows[i] = static_cast<int32_t>(i);
    s.slots = s.starts = slots.data(), s.offset_in_page = offsets.data(), s.page_of = page_of.data();
    s.counts = ones.data(), s.first_row = rows.data();
    for (long round = 0; round < rounds; ++round, tokens += n) {
        long active = 0;
        while (active < n && wanted[active] > round) ++active;
        for (long i = 0; i < active; ++i) {
            const long page = slots[i] / s.page_tokens;
            if (slots[i] < 0 || page >= s.max_pages) return "first_slots: the tables have no page for a slot";
            page_of[i] = s.tables[i * s.max_pages + page] * s.page_stride;
            offsets[i] = static_cast<int32_t>(slots[i] % s.page_tokens);
        }
        s.rows = s.sequences = active;
        if (const char* wrong = pass(s, *model, tokens)) return wrong;
        banned.fill(*wishes, position, active);
        const char* wrong = baton_sample(model->logits, active, model->vocab, wishes->temperature, wishes->top_k, wishes->top_p, wishes->min_p,
                                         wishes->seed, wishes->choice, position.data(), banned.ids.data(), banned.starts.data(),
                                         static_cast<long>(banned.ids.size()), nullptr, 0, tokens + n, logprobs, nullptr, nullptr);
        if (wrong) return wrong;
        for (long i = 0; i < active; ++i) ++slots[i], ++position[i];
    }
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for a draft's rows";
}
}
