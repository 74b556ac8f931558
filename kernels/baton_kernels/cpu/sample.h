// One row of logits to one token. Greedy takes the largest, ties to the lowest id; otherwise the largest sum of logit and Gumbel noise among
// the tokens that top-k, top-p and min-p keep. The noise is a pure function of (seed, choice, position, token id), so
// the same token is drawn wherever and in whatever batch the row is computed. A row whose logits were adjusted (penalties,
// biases, masks) is drawn from its adjusted copy. Logprobs are always of the raw distribution.
#pragma once

namespace baton::BODY {

INLINE uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

INLINE uint64_t noise_key(uint64_t seed, uint32_t choice, uint32_t position) {
    const uint64_t where = static_cast<uint64_t>(choice) << 32 | position;
    return mix(mix(seed + 0x9E3779B97F4A7C15ull) + mix(where ^ 0xD1B54A32D192ED03ull));
}

// -log(-log(u)), u in (0, 1) with 48 random bits so that the far tail is right: -log(1 - v) by its series for small v.
INLINE Lanes gumbel(uint64_t key, const int32_t* ids) {
    alignas(64) uint32_t high[16], low[16];
    for (int i = 0; i < 16; ++i) {
        const uint64_t z = mix(key + (static_cast<uint64_t>(static_cast<uint32_t>(ids[i])) + 1) * 0x9E3779B97F4A7C15ull);
        high[i] = static_cast<uint32_t>(z >> 40);
        low[i] = static_cast<uint32_t>(z >> 16) & 0xFFFFFFu;
    }
    const Lanes tail = fma(convert(load(low)), set(0x1p-48f), set(0x1p-49f));
    const Lanes v = min(fma(convert(load(high)), set(0x1p-24f), tail), set(1.0f - 0x1p-24f));
    Lanes series = fma(v, set(0.25f), set(1.0f / 3.0f));
    series = fma(v * v, fma(v, series, set(0.5f)), v);
    const Lanes exact = set(0.0f) - log(set(1.0f) - v);
    return set(0.0f) - log(select(less(v, set(1.0f / 64.0f)), series, exact));
}

INLINE float row_max(const float* x, long n) {
    Lanes a[4] = {set(-kInfinity), set(-kInfinity), set(-kInfinity), set(-kInfinity)};
    long i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; ++j) a[j] = max(load(x + i + 16 * j), a[j]);
    for (; i < n; i += 16) a[0] = max(load_first(x + i, n - i, -kInfinity), a[0]);
    return tree_max(max(max(a[0], a[1]), max(a[2], a[3])));
}

INLINE long first_equal(const float* x, long n, float value) {
    for (long i = 0; i < n; i += 16) {
        const uint32_t hits = to_bits(equal(load_first(x + i, n - i, -kInfinity), set(value))) & to_bits(first(n - i));
        if (hits) return i + __builtin_ctz(hits);
    }
    return 0;
}

// Sum of e^(x - top) in one fixed order.
INLINE float exp_sum(const float* x, long n, float top) {
    Lanes a[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
    long i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; ++j) a[j] = a[j] + exp(load(x + i + 16 * j) - set(top));
    for (int j = 0; i < n; i += 16, ++j) a[j] = a[j] + exp(load_first(x + i, n - i, -kInfinity) - set(top));
    return tree_sum((a[0] + a[1]) + (a[2] + a[3]));
}

// The tokens kept by top-k, then top-p of what that leaves, then min-p, best first; returns how many.
static long keep(const SampleCall& call, long row, const float* scaled, float top, int32_t* ids, float* best, uint64_t* keys) {
    const long vocab = call.vocab, limit = call.top_k[row] > 0 ? least(call.top_k[row], vocab) : vocab;
    const float top_p = call.top_p[row], min_p = call.min_p[row];
    const bool by_mass = top_p < 1.0f;
    const double total = limit == vocab ? exp_sum(scaled, vocab, top) : -1.0;
    for (long count = limit == vocab ? least(vocab, 512) : limit;; count = least(limit, count * 8)) {
        best_of(scaled, vocab, count, ids, best, keys);
        double sum = 0.0, mass = total;
        alignas(64) float e[16];
        if (mass < 0.0) {
            mass = 0.0;
            for (long i = 0; i < count; i += 16) {
                store(e, exp(load_first(best + i, count - i, -kInfinity) - set(top)));
                for (long j = 0; j < 16 && i + j < count; ++j) mass += static_cast<double>(e[j]);
            }
        }
        for (long i = 0; i < count; i += 16) {
            store(e, exp(load_first(best + i, count - i, -kInfinity) - set(top)));
            for (long j = 0; j < 16 && i + j < count; ++j) {
                if (i + j > 0 && ((by_mass && sum >= static_cast<double>(top_p) * mass) || e[j] < min_p)) return i + j;
                sum += static_cast<double>(e[j]);
            }
        }
        if (count == limit) return limit;
    }
}

INLINE long draw(const SampleCall& call, long row, float* values, long n, int32_t* ids, bool all) {
    const uint64_t key = noise_key(call.seed[row], static_cast<uint32_t>(call.choice[row]), static_cast<uint32_t>(call.position[row]));
    alignas(64) int32_t own[16];
    for (long i = 0; i < n; i += 16) {
        for (int j = 0; j < 16; ++j) own[j] = all ? static_cast<int32_t>(i + j) : (i + j < n ? ids[i + j] : 0);
        store_first(values + i, n - i, load_first(values + i, n - i, -kInfinity) + gumbel(key, own));
    }
    const float top = row_max(values, n);
    if (all) return first_equal(values, n, top);
    long found = ids[0];
    bool any = false;
    for (long i = 0; i < n; ++i)
        if (values[i] == top && (!any || ids[i] < found)) found = ids[i], any = true;
    return found;
}

// scratch: keys [2 vocab], scaled [vocab], best [vocab], ids [vocab], each with room for a vector more.
static void sample(const SampleCall& call, long row, float* scratch) {
    const long vocab = call.vocab, room = round_up(vocab, 16);
    auto* keys = reinterpret_cast<uint64_t*>(scratch);
    float *scaled = scratch + 2 * room, *best = scaled + room;
    auto* ids = reinterpret_cast<int32_t*>(best + room);
    const float* x = call.logits + row * vocab;
    const float top = row_max(x, vocab);
    const float log_total = top + log(exp_sum(x, vocab, top));
    const long b0 = call.banned_starts ? call.banned_starts[row] : 0, b1 = call.banned_starts ? call.banned_starts[row + 1] : 0;
    const long own = call.adjusted_rows ? call.adjusted_rows[row] : -1;
    const float* y = own < 0 ? x : call.adjusted + own * vocab;  // what the token is drawn from
    const float heat = call.temperature[row];
    long token = 0;
    if (heat <= 0.0f && b0 == b1) {
        token = first_equal(y, vocab, own < 0 ? top : row_max(y, vocab));
    } else {
        for (long i = 0; i < vocab; i += 16) {
            const Lanes v = load_first(y + i, vocab - i, 0.0f);
            store_first(scaled + i, vocab - i, heat > 0.0f ? v / set(heat) : v);
        }
        for (long b = b0; b < b1; ++b) scaled[call.banned[b]] = -kInfinity;
        const float most = row_max(scaled, vocab);
        const bool filters = (call.top_k[row] > 0 && call.top_k[row] < vocab) || call.top_p[row] < 1.0f || call.min_p[row] > 0.0f;
        if (heat <= 0.0f) {
            token = first_equal(scaled, vocab, most);
        } else if (!filters) {
            token = draw(call, row, scaled, vocab, ids, true);
        } else {
            const long kept = keep(call, row, scaled, most, ids, best, keys);
            token = draw(call, row, best, kept, ids, false);
        }
    }
    call.tokens[row] = static_cast<int32_t>(token);
    call.logprobs[row] = x[token] - log_total;
    if (call.totals) call.totals[row] = log_total;
    const long wanted = call.n_top ? least(call.n_top[row], least(call.n_max, vocab)) : 0;
    if (wanted > 0) best_of(x, vocab, wanted, ids, best, keys);
    for (long i = 0; i < call.n_max; ++i) {
        call.top_ids[row * call.n_max + i] = i < wanted ? ids[i] : -1;
        call.top_logprobs[row * call.n_max + i] = i < wanted ? best[i] - log_total : -kInfinity;
    }
}
}  // namespace baton::BODY
