// Rotary page writes and attention against a scalar emulation of the whole recipe: blocks of 32 slots, maxima and sums
// rescaled in ascending order, the fixed sum tree, pairs odd first. Pools begin as NaN; every bit must agree.
#include "check.h"

static float exp_of(float x) {
    float logs, out;
    baton_log_exp(&x, &logs, &out, 1);
    return out;
}

static float tree(const float* v) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = v[i] + v[16 + i];
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

struct Case {
    int path;
    long heads, kv, dim, page_tokens, start, count, window = 0;
    bool stretches = false;
};

static float score(const Case& c, const float* q, const float* k) {
    if (c.path || !c.stretches) return chain(c.path, q, k, c.dim);
    float sum = chain(c.path, q, k, 16);
    for (long d = 16; d < c.dim; d += 16) sum += chain(c.path, q + d, k + d, 16);
    return sum;
}

static void emulate(const Case& c, const float* q, const std::vector<float>& k, const std::vector<float>& v, long seen, float scale, float* out) {
    const long unseen = c.window && seen > c.window ? seen - c.window : 0;
    std::vector<float> sums(c.dim, 0.0f);
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    float top = kNone, total = 0.0f, all_top = kNone, all_total = 0.0f;
    std::vector<float> all(c.dim, 0.0f);
    const auto fold = [&] {  // merges a segment into the segments before it
        const float both = top > all_top ? top : all_top, was = exp_of(all_top - both), is = exp_of(top - both);
        all_total = std::fmaf(total, is, all_total * was);
        for (long d = 0; d < c.dim; ++d) all[d] = std::fmaf(sums[d], is, all[d] * was), sums[d] = 0.0f;
        all_top = both, top = kNone, total = 0.0f;
    };
    for (long begin = unseen / 32 * 32; begin < seen; begin += 32) {
        if (begin > unseen && begin % 512 == 0) fold();
        const long skip = unseen > begin ? unseen - begin : 0;
        const long valid = seen - begin < 32 ? seen - begin : 32;
        float s[32], e[32];
        for (long j = 0; j < 32; ++j) s[j] = j >= skip && j < valid ? score(c, q, &k[(begin + j) * c.dim]) * scale : -std::numeric_limits<float>::infinity();
        const float before = top;
        for (float score : s) top = score > top ? score : top;
        const float factor = exp_of(before - top);
        for (int j = 0; j < 32; ++j) e[j] = exp_of(s[j] - top);
        total = total * factor + tree(e);
        for (long d = 0; d < c.dim; ++d) {
            float column[32];
            for (long j = 0; j < valid; ++j) column[j] = j < skip ? 0.0f : v[(begin + j) * c.dim + d];
            sums[d] = chain(c.path, e, column, valid, sums[d] * factor);
        }
    }
    const bool folded = unseen / 512 < (seen - 1) / 512;
    if (folded) fold();
    for (long d = 0; d < c.dim; ++d) out[d] = folded ? all[d] / all_total : sums[d] / total;
}

static void attention(const Case& c) {
    Random random{static_cast<uint64_t>(c.dim * 100 + c.count)};
    const long slots = c.start + c.count, width = (c.heads + 2 * c.kv) * c.dim, pages = (slots + c.page_tokens - 1) / c.page_tokens;
    const auto qkv = random.many(slots * width);
    std::vector<float> cosine(slots * c.dim / 2), sine(cosine.size());
    for (size_t i = 0; i < cosine.size(); ++i) cosine[i] = std::cos(0.1f * static_cast<float>(i)), sine[i] = std::sin(0.1f * static_cast<float>(i));
    const int64_t layer = 2 * c.kv * c.page_tokens * c.dim * (c.path ? 2 : 4), stride = 2 * layer;
    std::vector<int32_t> table(pages), slot(slots), offset(slots);
    std::vector<int64_t> page_of(slots);
    for (long p = 0; p < pages; ++p) table[p] = static_cast<int32_t>(pages - 1 - p);
    for (long s = 0; s < slots; ++s) {
        slot[s] = static_cast<int32_t>(s);
        offset[s] = static_cast<int32_t>(s % c.page_tokens);
        page_of[s] = table[s / c.page_tokens] * stride + layer;
    }
    // the expected page content and q, by scalar arithmetic
    std::vector<std::vector<float>> k(c.kv, std::vector<float>(slots * c.dim)), v = k;
    std::vector<float> q(slots * c.heads * c.dim), expected(c.count * c.heads * c.dim);
    const float scale = 0.3f;
    {
        const Flushed flushed;
        const auto turn = [&](const float* x, long s, float* to) {
            const long half = c.dim / 2;
            for (long i = 0; i < half; ++i) {
                const float co = cosine[s * half + i], si = sine[s * half + i];
                to[i] = std::fmaf(x[i], co, 0.0f - x[half + i] * si);
                to[half + i] = std::fmaf(x[half + i], co, x[i] * si);
            }
        };
        for (long s = 0; s < slots; ++s) {
            const float* row = &qkv[s * width];
            for (long h = 0; h < c.heads; ++h) turn(row + h * c.dim, s, &q[(s * c.heads + h) * c.dim]);
            for (long h = 0; h < c.kv; ++h) {
                turn(row + (c.heads + h) * c.dim, s, &k[h][s * c.dim]);
                for (long d = 0; d < c.dim; ++d) v[h][s * c.dim + d] = row[(c.heads + c.kv + h) * c.dim + d];
            }
        }
        for (long r = 0; r < c.count; ++r)
            for (long h = 0; h < c.heads; ++h) {
                const long kv = h / (c.heads / c.kv);
                emulate(c, &q[((c.start + r) * c.heads + h) * c.dim], k[kv], v[kv], c.start + r + 1, scale, &expected[(r * c.heads + h) * c.dim]);
            }
    }
    under_every_body([&] {
        std::vector<char> pool(stride * pages, '\xFF');
        std::vector<float> q_out(q.size(), kNan), out(expected.size(), kNan);
        const char* refused = baton_rotate_write(c.path, 0, qkv.data(), slots, c.heads, c.kv, c.dim, cosine.data(), sine.data(), slots, slot.data(),
                                                 page_of.data(), offset.data(), c.page_tokens, pool.data(), pool.size(), q_out.data(),
                                                 nullptr, nullptr, 0.0f);
        CHECK(!refused, "%s", refused);
        CHECK(!std::memcmp(q.data(), q_out.data(), q.size() * 4), "rotated queries, dim %ld", c.dim);
        const auto start = static_cast<int32_t>(c.start), count = static_cast<int32_t>(c.count), first = 0;
        refused = baton_attention(c.path, 0, c.stretches, q_out.data() + c.start * c.heads * c.dim, pool.data(), pool.size(), layer, stride, table.data(), pages,
                                  &start, &count, &first, 1, c.count, c.heads, c.kv, c.dim, c.page_tokens, c.window, scale, 0.0f, nullptr, out.data());
        CHECK(!refused, "%s", refused);
        for (size_t i = 0; i < out.size(); ++i)
            CHECK(same(out[i], expected[i]), "path %d dim %ld page %ld start %ld at %zu: %a, not %a", c.path, c.dim, c.page_tokens, c.start, i, out[i], expected[i]);
    });
}

int main() {
    for (int path : {0, 1, 2}) {
        attention({path, 1, 1, 16, 16, 0, 1});
        attention({path, 4, 2, 32, 32, 0, 35});
        attention({path, 14, 2, 64, 32, 60, 20});
        attention({path, 3, 3, 48, 64, 63, 3});
        attention({path, 7, 1, 96, 16, 30, 40});
        attention({path, 2, 1, 256, 32, 31, 2});
        attention({path, 3, 1, 32, 32, 505, 15});
        attention({path, 18, 1, 16, 64, 1050, 3});
        attention({path, 4, 2, 32, 32, 0, 135, 20});
        attention({path, 14, 2, 64, 16, 60, 40, 33});
        attention({path, 3, 1, 32, 64, 600, 9, 100});
        attention({path, 2, 1, 48, 16, 1020, 9, 515});
        attention({path, 16, 1, 64, 16, 500, 40, 0, true});
        attention({path, 3, 1, 576, 32, 70, 1, 0, true});
        attention({path, 4, 1, 128, 64, 30, 45, 33, true});
    }
    std::printf("attention: %d failures\n", failures);
    return failures != 0;
}
