// A step of a draft model: one pass over the text that it has not read, then a pass of one row per sequence for each
// further token; the sample of a round is the input of the next. It calls the same functions that Python calls one by one,
// without a return to Python in between, which would cost as much as a pass of such a small model.
#include <cstring>
#include <new>
#include <vector>

#include "api.h"
#include "calls.h"

using namespace baton;

namespace {
// Stop ids of the rows that have not reached min_tokens, in the form that baton_sample takes.
struct Banned {
    std::vector<int32_t> ids, starts;

    void fill(const BatonSampling& sampling, const std::vector<int32_t>& position, long rows) {
        ids.clear(), starts.assign(1, 0);
        for (long r = 0; r < rows; ++r) {
            if (position[r] < sampling.min_tokens[r])
                ids.insert(ids.end(), sampling.stops + sampling.stop_starts[r], sampling.stops + sampling.stop_starts[r + 1]);
            starts.push_back(static_cast<int32_t>(ids.size()));
        }
    }
};

// The rows of a pass: their tokens and slots, and the page and offset to which their keys and values are written.
struct Rows {
    std::vector<int32_t> tokens, slots, offsets, starts, counts, first_row;
    std::vector<int64_t> page_of;

    // A slot beyond the table gets page -1, which rotate_write refuses.
    void add(const BatonStep& s, long sequence, const int32_t* ids, long start, long count) {
        starts.push_back(static_cast<int32_t>(start)), counts.push_back(static_cast<int32_t>(count));
        first_row.push_back(static_cast<int32_t>(tokens.size()));
        for (long slot = start; slot < start + count; ++slot) {
            const long page = slot / s.page_tokens;
            tokens.push_back(*ids++), slots.push_back(static_cast<int32_t>(slot));
            offsets.push_back(static_cast<int32_t>(slot % s.page_tokens));
            page_of.push_back(page < s.max_pages ? s.tables[sequence * s.max_pages + page] * s.page_stride : -1);
        }
    }
    void clear() { tokens.clear(), slots.clear(), offsets.clear(), starts.clear(), counts.clear(), first_row.clear(), page_of.clear(); }
};

// Computes all layers and the final norm for every row.
const char* pass(BatonStep& s, const BatonModel& m, const Rows& rows) {
    s.rows = static_cast<long>(rows.tokens.size()), s.sequences = static_cast<long>(rows.starts.size());
    s.slots = rows.slots.data(), s.page_of = rows.page_of.data(), s.offset_in_page = rows.offsets.data();
    s.starts = rows.starts.data(), s.counts = rows.counts.data(), s.first_row = rows.first_row.data();
    const char* wrong = baton_embed(m.embedding, rows.tokens.data(), s.rows, s.embedding_scale, s.x);
    for (long i = 0; i <= m.count && !wrong; ++i) {
        const int64_t offset = m.first_byte + i * m.layer_bytes;
        wrong = baton_layer(&s, i ? m.layers + i - 1 : nullptr, offset - m.layer_bytes, i < m.count ? m.layers + i : nullptr, offset);
    }
    return wrong ? wrong : baton_finish(&s, m.norm, m.norm_bias);
}

// Samples the next token of the first `active` sequences from the hidden state of each sequence's last row.
const char* sample(const BatonStep& s, const BatonModel& m, const BatonSampling& sampling, const Rows& rows, const std::vector<int32_t>& position,
                   long active, Banned& banned, int32_t* tokens, float* logprobs) {
    for (long i = 0; i < active; ++i) {
        const long last = rows.first_row[i] + rows.counts[i] - 1;
        if (last != i) std::memmove(s.normed + i * s.hidden, s.normed + last * s.hidden, static_cast<size_t>(s.hidden) * sizeof(float));
    }
    if (const char* wrong = baton_product(s.normed, m.head, active, m.logits, nullptr, nullptr)) return wrong;
    if (s.logits_cap != 0.0f)
        if (const char* wrong = baton_cap(m.logits, active, m.vocab, s.logits_cap)) return wrong;
    banned.fill(sampling, position, active);
    return baton_sample(m.logits, active, m.vocab, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed, sampling.choice,
                        position.data(), banned.ids.data(), banned.starts.data(), static_cast<long>(banned.ids.size()), nullptr, 0, tokens,
                        logprobs, nullptr, nullptr);
}
}  // namespace

extern "C" {
const char* baton_propose(const BatonStep* step, const BatonModel* model, const BatonSampling* sampling, const int32_t* text, const int32_t* starts,
                        const int32_t* counts, const int32_t* wanted, long rounds, int32_t* tokens, float* logprobs) try {
    BatonStep s = *step;
    const long n = s.sequences;
    Rows rows;
    Banned banned;
    for (long i = 0; i < n; text += counts[i++]) rows.add(s, i, text, starts[i], counts[i]);
    if (const char* wrong = pass(s, *model, rows)) return wrong;
    std::vector<int32_t> next(n), position;
    for (long round = 0; round < rounds; ++round, tokens += n) {
        long active = 0;
        while (active < n && wanted[active] > round) ++active;
        if (round) {
            rows.clear();
            for (long i = 0; i < active; ++i) rows.add(s, i, tokens - n + i, next[i]++, 1);
            if (const char* wrong = pass(s, *model, rows)) return wrong;
            for (long i = 0; i < active; ++i) ++position[i];
        } else {
            position.assign(sampling->position, sampling->position + active);
            for (long i = 0; i < n; ++i) next[i] = starts[i] + counts[i];
        }
        if (const char* wrong = sample(s, *model, *sampling, rows, position, active, banned, tokens, logprobs)) return wrong;
    }
    return nullptr;
} catch (const std::bad_alloc&) {
    return "out of memory for a draft's rows";
}
}
