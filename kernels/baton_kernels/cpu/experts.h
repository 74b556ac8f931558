// A mixture of experts on one row: which experts compute it, with which weights, and the sum of their results.
#pragma once

namespace baton::BODY {

// Whether a score comes before another one of a lower index: equal scores keep the order of their indices, NaN comes last.
INLINE bool better(float score, float other) { return score > other || (other != other && score == score); }

// The `chosen` experts with the highest scores, best first. Their weights are the softmax of the scores over all experts,
// divided by their sum in the order of rank if `normalised`, times the factor. A gated shared expert has the sigmoid of its score.
static void route(const RouteCall& call, long row) {
    const long n = call.experts, chosen = call.chosen, parts = chosen + (call.shared ? 1 : 0);
    const float* scores = call.scores + row * (n + (call.shared == kGatedShared ? 1 : 0));
    int32_t* ids = call.ids + row * chosen;
    float* weights = call.weights + row * parts;
    long kept = 0;
    for (long i = 0; i < n; ++i) {
        long at = kept;
        while (at > 0 && better(scores[i], scores[ids[at - 1]])) --at;
        if (at == chosen) continue;
        kept = least(kept + 1, chosen);
        for (long j = kept - 1; j > at; --j) ids[j] = ids[j - 1];
        ids[at] = static_cast<int32_t>(i);
    }
    const Lanes most = set(scores[ids[0]]);
    const float total = sum_of(scores, n, -kInfinity, [&](Lanes v) { return exp(v - most); });
    alignas(64) float each[16];
    float sum = 0.0f;
    for (long j = 0; j < chosen; ++j) {
        store(each, exp(set(scores[ids[j]]) - most) / set(total));
        weights[j] = each[0];
        sum += each[0];
    }
    for (long j = 0; call.normalised && j < chosen; ++j) weights[j] /= sum;
    for (long j = 0; call.factor != 1.0f && j < chosen; ++j) weights[j] *= call.factor;
    if (call.shared == kWholeShared) weights[chosen] = 1.0f;
    if (call.shared != kGatedShared) return;
    store(each, set(1.0f) / (set(1.0f) + exp(set(0.0f) - set(scores[n]))));
    weights[chosen] = each[0];
}

// The sum of `parts` rows of y, each times its weight, in this order; then the residual is added, if there is one.
static void combine(const float* y, const int32_t* places, const float* weights, long parts, long k, const float* residual, float* out) {
    for (long i = 0; i < k; i += 16) {
        Lanes v = load_first(y + places[0] * k + i, k - i, 0.0f) * set(weights[0]);
        for (long j = 1; j < parts; ++j) v = v + load_first(y + places[j] * k + i, k - i, 0.0f) * set(weights[j]);
        if (residual) v = load_first(residual + i, k - i, 0.0f) + v;
        store_first(out + i, k - i, v);
    }
}
}  // namespace baton::BODY
