// Work on one row of activations: norms, sums with the residual, caps, clips, and rotary embedding with the write into the row's KV page.
// Rotary is the half-split convention; K and V go to the page as the path stores them, one token's column of the tile.
#pragma once

namespace baton::BODY {

static void rmsnorm(const float* x, const float* weight, long k, float eps, float* out) {
    const float mean = sum_squares(x, k) / static_cast<float>(k);
    const Lanes inverse = set(1.0f) / sqrt(set(mean + eps));
    for (long i = 0; i < k; i += 16)
        store_first(out + i, k - i, load_first(x + i, k - i, 0.0f) * inverse * load_first(weight + i, k - i, 0.0f));
}

// (x - mean) / sqrt(variance + eps) * weight + bias.
static void layernorm(const float* x, const float* weight, const float* bias, long k, float eps, float* out) {
    const float mean = sum_of(x, k, 0.0f, [](Lanes v) { return v; }) / static_cast<float>(k);
    const Lanes middle = set(mean);
    const float variance = sum_of(x, k, mean, [&](Lanes v) { return (v - middle) * (v - middle); }) / static_cast<float>(k);
    const Lanes inverse = set(1.0f) / sqrt(set(variance + eps));
    for (long i = 0; i < k; i += 16) {
        const Lanes v = (load_first(x + i, k - i, 0.0f) - middle) * inverse;
        store_first(out + i, k - i, v * load_first(weight + i, k - i, 0.0f) + load_first(bias + i, k - i, 0.0f));
    }
}

// x += factor * y, where y is normalised before if there is a norm.
static void add(float* x, const float* y, const float* norm, long k, float eps, float factor) {
    const float mean = norm ? sum_squares(y, k) / static_cast<float>(k) : 0.0f;
    const Lanes inverse = set(1.0f) / sqrt(set(mean + eps)), times = set(factor);
    for (long i = 0; i < k; i += 16) {
        Lanes v = load_first(y + i, k - i, 0.0f);
        if (norm) v = v * inverse * load_first(norm + i, k - i, 0.0f);
        store_first(x + i, k - i, load_first(x + i, k - i, 0.0f) + v * times);
    }
}

static void cap(float* x, long n, float limit) {
    const Lanes most = set(limit);
    for (long i = 0; i < n; i += 16) store_first(x + i, n - i, capped(load_first(x + i, n - i, 0.0f), most));
}

// Brings numbers into +-limit; NaN stays NaN. Denormals become zeros here: only some processors' max and min do that.
static void clip(float* x, long n, float limit) {
    const Lanes low = set(-limit), high = set(limit);
    for (long i = 0; i < n; i += 16) {
        Lanes v = load_first(x + i, n - i, 0.0f);
        v = select(less(magnitude(v), set(0x1p-126f)), floats(bits(v) & ints(0x80000000u)), v);
        store_first(x + i, n - i, min(high, max(low, v)));
    }
}

INLINE void turn(const float* x, const float* cosine, const float* sine, long half, float* out) {
    for (long i = 0; i < half; i += 16) {
        const long n = half - i;
        const Lanes a = load_first(x + i, n, 0.0f), b = load_first(x + half + i, n, 0.0f);
        const Lanes c = load_first(cosine + i, n, 0.0f), s = load_first(sine + i, n, 0.0f), zero = set(0.0f);
        store_first(out + i, n, fma(a, c, zero - b * s));
        store_first(out + half + i, n, fma(b, c, a * s));
    }
}

static void write_page(const RotateCall& call, long row, long head, bool value, const float* x) {
    const long tokens = call.page_tokens, dim = call.dim, token = call.offset_in_page[row];
    const long bytes = head_bytes(call.halves ? kPairs : kFp32, call.kv, tokens, dim);
    char* at = call.pool + call.page_of[row] + ((value ? call.kv_heads : 0) + head) * bytes;
    if (call.kv != kKvOwn) {  // two tokens share the words of a V pair here, too
        int8_t codes[kMaxDim];
        reinterpret_cast<uint16_t*>(at + tokens * code_bytes(call.kv, dim))[token] = encode(call.kv, x, dim, codes);
        return place_codes(call.kv, codes, token, tokens, dim, value, reinterpret_cast<int8_t*>(at));
    }
    if (!call.halves) {
        float* to = reinterpret_cast<float*>(at);
        for (long d = 0; d < dim; ++d) to[value ? token * dim + d : d * tokens + token] = x[d];
        return;
    }
    // Two tokens share the words of a V pair, and two threads may write them, so each half is stored on its own.
    uint16_t halves[kMaxDim];
    for (long d = 0; d < dim; d += 16) store_high(halves + d, round_bits(load(x + d)));
    auto* to = reinterpret_cast<uint16_t*>(at);
    if (value) {
        to += token / 2 * dim * 2 + token % 2;
        for (long d = 0; d < dim; ++d) to[d * 2] = halves[d];
    } else {
        for (long d = 0; d < dim; ++d) to[(d / 2 * tokens + token) * 2 + d % 2] = halves[d];
    }
}

static void rotate(const RotateCall& call, long row) {
    const long dim = call.dim, half = dim / 2;
    const float* x = call.qkv + row * (call.heads + 2 * call.kv_heads) * dim;
    const long at = call.cos ? call.slots[row] * half : 0;
    const float *cosine = call.cos + at, *sine = call.sin + at;
    alignas(64) float normed[kMaxDim], turned[kMaxDim];
    for (long h = 0; h < call.heads + call.kv_heads; ++h) {
        const bool query = h < call.heads;
        const float* from = x + h * dim;
        const float* weight = query ? call.q_norm : call.k_norm;
        if (weight) {
            rmsnorm(from, weight, dim, call.eps, normed);
            from = normed;
        }
        float* to = query ? call.q_out + (row * call.heads + h) * dim : turned;
        if (call.cos)
            turn(from, cosine, sine, half, to);
        else
            for (long d = 0; d < dim; d += 16) store(to + d, load(from + d));
        if (!query) write_page(call, row, h - call.heads, false, turned);
    }
    for (long h = 0; h < call.kv_heads; ++h) write_page(call, row, h, true, x + (call.heads + call.kv_heads + h) * dim);
}
}  // namespace baton::BODY
