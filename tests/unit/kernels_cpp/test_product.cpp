// Products, gates and embeddings against a scalar chain of std::fmaf: every bit, every body, denormals included. Products of
// integers have their reference in Python; here all bodies give the bits of the plain one, in buffers of the exact size.
#include "check.h"

static float exp_of(float x) {
    float logs, out;
    baton_log_exp(&x, &logs, &out, 1);
    return out;
}

static void product(int path, long rows, long n, long k, bool extreme) {
    Random random{static_cast<uint64_t>(rows * 1000 + n * 10 + k)};
    const auto x = random.many(rows * k, extreme), w = random.many(n * k, extreme), bias = random.many(n), residual = random.many(rows * n);
    std::vector<float> expected(rows * n);
    {
        const Flushed flushed;
        for (long r = 0; r < rows; ++r)
            for (long c = 0; c < n; ++c) expected[r * n + c] = chain(path, &x[r * k], &w[c * k], k) + bias[c] + residual[r * n + c];
    }
    under_every_body([&] {
        const auto packed = packed_weight(path, w.data(), n, k);
        std::vector<float> out(rows * n, kNan);
        CHECK(!baton_product(x.data(), packed.data(), rows, out.data(), bias.data(), residual.data()), "product");
        for (long i = 0; i < rows * n; ++i)
            CHECK(same(out[i], expected[i]), "path %d rows %ld n %ld k %ld at %ld: %a, not %a", path, rows, n, k, i, out[i], expected[i]);
    });
}

static void gate(int path, long rows, long n, long k) {
    Random random{static_cast<uint64_t>(rows + n + k)};
    const auto x = random.many(rows * k), w = random.many(2 * n * k);
    std::vector<float> expected(rows * n);
    {
        const Flushed flushed;
        for (long r = 0; r < rows; ++r)
            for (long c = 0; c < n; ++c) {
                const float g = chain(path, &x[r * k], &w[c * k], k), up = chain(path, &x[r * k], &w[(n + c) * k], k);
                expected[r * n + c] = g / (1.0f + exp_of(0.0f - g)) * up;
            }
    }
    under_every_body([&] {
        const auto packed = packed_weight(path, w.data(), 2 * n, k);
        std::vector<float> out(rows * n, kNan);
        CHECK(!baton_gated(x.data(), packed.data(), rows, out.data(), nullptr, baton::kSilu), "gated");
        for (long i = 0; i < rows * n; ++i) CHECK(same(out[i], expected[i]), "gate at %ld: %a, not %a", i, out[i], expected[i]);
    });
}

static void embedding() {
    Random random;
    const long n = 50, k = 33;
    auto w = random.many(n * k);
    for (auto& v : w) v = to_bf16(v);
    for (int path : {0, 1, 2}) {
        const auto packed = packed_weight(path, w.data(), n, k);
        const std::vector<int32_t> tokens{0, 49, 31, 32};
        std::vector<float> out(tokens.size() * k, kNan);
        CHECK(!baton_embed(packed.data(), tokens.data(), 4, 1.0f, out.data()), "embed");
        for (size_t t = 0; t < tokens.size(); ++t) CHECK(!std::memcmp(&out[t * k], &w[tokens[t] * k], k * 4), "token %d", tokens[t]);
        const int32_t outside = 50;
        CHECK(baton_embed(packed.data(), &outside, 1, 1.0f, out.data()), "an id outside was accepted");
    }
}

// A random matrix of integers, packed.
static std::vector<uint8_t> packed_integers(int scheme, int group, int segments, int offset, bool tabled, long n, long k, Random& random) {
    baton::Form form{};
    form.n = n, form.k = k, form.scheme = scheme, form.group = group, form.segments = segments, form.offset = offset, form.tabled = tabled;
    for (int i = 0; i < 16; ++i) form.table[i] = static_cast<int8_t>(tabled ? 16 * i - 120 : 0);
    CHECK(!baton_describe(&form), "form");
    const bool nibbles = scheme == baton::kInt4 || scheme == baton::kInt4Groups;
    const long groups = group ? form.k / group : 1;
    std::vector<int8_t> values(static_cast<size_t>(n * form.k)), zeros(static_cast<size_t>(n * groups));
    std::vector<uint8_t> factors(zeros.size()), packed(static_cast<size_t>(form.bytes), 0xFF);
    for (auto& v : values) v = static_cast<int8_t>(nibbles ? random.next() % 16 : random.next());
    for (auto& z : zeros) z = static_cast<int8_t>(random.next() % 16);
    for (auto& f : factors) f = static_cast<uint8_t>(1 + random.next() % 8);
    const auto scales = random.many(static_cast<size_t>(n * groups)), minima = random.many(scales.size());
    const void* offsets = offset == baton::kMinimum ? static_cast<const void*>(minima.data()) : zeros.data();
    CHECK(!baton_pack_integers(&form, values.data(), scales.data(), offsets, factors.data(), nullptr, packed.data()), "pack");
    return packed;
}

static void integers(int scheme, int group, int segments, int offset, bool tabled, long rows, long n) {
    const long k = 512;
    Random random{static_cast<uint64_t>(scheme * 100 + group + rows)};
    const auto packed = packed_integers(scheme, group, segments, offset, tabled, n, k, random);
    const auto x = random.many(static_cast<size_t>(rows * k));
    std::vector<float> first;
    under_every_body([&] {
        std::vector<float> out(static_cast<size_t>(rows * n), kNan);
        CHECK(!baton_product(x.data(), packed.data(), rows, out.data(), nullptr, nullptr), "product");
        if (first.empty()) first = out;
        CHECK(!std::memcmp(first.data(), out.data(), out.size() * 4), "scheme %d group %d rows %ld n %ld", scheme, group, rows, n);
    });
}

// An MLP of integers in one call, in which outputs may be packed as rows at once, is as its two products.
static void mlp(int scheme, int group, long rows, long ffn) {
    const long hidden = 128;
    Random random{static_cast<uint64_t>(scheme * 100 + group + rows)};
    const auto gate_up = packed_integers(scheme, group, 1, 0, false, 2 * ffn, hidden, random), down = packed_integers(scheme, group, 1, 0, false, hidden, ffn, random);
    const auto x = random.many(static_cast<size_t>(rows * hidden)), residual = random.many(x.size());
    BatonMlp both{};
    both.gate_up = gate_up.data(), both.down = down.data(), both.activation = baton::kSilu, both.gated = 1;
    under_every_body([&] {
        std::vector<float> between(static_cast<size_t>(rows * ffn), kNan), out(x.size(), kNan), apart(x.size(), kNan);
        CHECK(!baton_gated(x.data(), gate_up.data(), rows, between.data(), nullptr, baton::kSilu), "gated");
        CHECK(!baton_product(between.data(), down.data(), rows, apart.data(), nullptr, residual.data()), "product");
        CHECK(!baton_feed_forward(x.data(), &both, rows, between.data(), out.data(), residual.data(), nullptr), "feed forward");
        CHECK(!std::memcmp(out.data(), apart.data(), out.size() * 4), "scheme %d group %d rows %ld ffn %ld", scheme, group, rows, ffn);
    });
}

int main() {
    for (int path : {0, 1, 2})
        for (bool extreme : {false, true}) {
            const long shapes[][3] = {{1, 1, 1}, {1, 33, 64}, {2, 32, 7}, {3, 17, 40}, {5, 64, 33}, {8, 48, 96}, {13, 31, 65}, {40, 33, 1540}, {100, 40, 18}};
            for (const auto& s : shapes) product(path, s[0], s[1], s[2], extreme);
        }
    for (int path : {0, 1, 2}) {
        gate(path, 1, 32, 64);
        gate(path, 3, 20, 17);
        gate(path, 50, 64, 30);
    }
    embedding();
    for (long rows : {1L, 7L, 20L, 70L})
        for (long n : {32L, 45L}) {
            integers(baton::kInt8, 0, 1, 0, false, rows, n);
            integers(baton::kInt8, 0, 4, 0, false, rows, n);
            integers(baton::kInt4, 32, 2, 0, false, rows, n);
            integers(baton::kInt8Groups, 64, 1, baton::kZero, false, rows, n);
            integers(baton::kInt8Groups, 16, 1, baton::kMinimum, false, rows, n);
            integers(baton::kInt4Groups, 128, 1, baton::kZero, false, rows, n);
            integers(baton::kInt4Groups, 32, 1, baton::kMinimum, true, rows, n);
        }
    for (long rows : {1L, 20L, 70L})
        for (int group : {16, 32, 64, 128}) {
            mlp(baton::kInt8Groups, group, rows, 384);
            mlp(baton::kInt4Groups, group, rows, 128);
        }
    std::printf("products: %d failures\n", failures);
    return failures != 0;
}
