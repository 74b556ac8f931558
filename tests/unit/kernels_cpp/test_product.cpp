// Products, gates and embeddings against a scalar chain of std::fmaf: every bit, every body, denormals included.
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
        std::vector<uint8_t> packed(baton_pack_bytes(path, n, k), 0xFF);
        CHECK(!baton_pack(path, 0, w.data(), n, k, packed.data()), "pack");
        std::vector<float> out(rows * n, kNan);
        CHECK(!baton_product(path, x.data(), packed.data(), rows, n, k, out.data(), bias.data(), residual.data()), "product");
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
        std::vector<uint8_t> packed(baton_pack_bytes(path, 2 * n, k));
        baton_pack(path, 0, w.data(), 2 * n, k, packed.data());
        std::vector<float> out(rows * n, kNan);
        CHECK(!baton_gated(path, x.data(), packed.data(), rows, n, k, out.data()), "gated");
        for (long i = 0; i < rows * n; ++i) CHECK(same(out[i], expected[i]), "gate at %ld: %a, not %a", i, out[i], expected[i]);
    });
}

static void embedding() {
    Random random;
    const long n = 50, k = 33;
    auto w = random.many(n * k);
    for (auto& v : w) v = to_bf16(v);
    for (int path : {0, 1, 2}) {
        std::vector<uint8_t> packed(baton_pack_bytes(path, n, k));
        baton_pack(path, 0, w.data(), n, k, packed.data());
        const std::vector<int32_t> tokens{0, 49, 31, 32};
        std::vector<float> out(tokens.size() * k, kNan);
        CHECK(!baton_embed(path, packed.data(), tokens.data(), 4, n, k, out.data()), "embed");
        for (size_t t = 0; t < tokens.size(); ++t) CHECK(!std::memcmp(&out[t * k], &w[tokens[t] * k], k * 4), "token %d", tokens[t]);
        const int32_t outside = 50;
        CHECK(baton_embed(path, packed.data(), &outside, 1, n, k, out.data()), "an id outside was accepted");
    }
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
    std::printf("products: %d failures\n", failures);
    return failures != 0;
}
