// RMSNorm, sampling, page copies and checksums: equal bits in all bodies, exact-size buffers, refusals.
#include "check.h"

static void norm() {
    Random random;
    for (long k : {1L, 15L, 16L, 100L, 333L}) {
        const auto x = random.many(3 * k), weight = random.many(k);
        std::vector<float> first;
        under_every_body([&] {
            std::vector<float> out(3 * k, kNan);
            CHECK(!baton_rmsnorm(x.data(), weight.data(), 3, k, 1e-6f, out.data()), "rmsnorm");
            if (first.empty()) first = out;
            CHECK(!std::memcmp(first.data(), out.data(), out.size() * 4), "k %ld", k);
            double mean = 0;
            for (long i = 0; i < k; ++i) mean += static_cast<double>(x[i]) * x[i] / static_cast<double>(k);
            CHECK(std::fabs(out[0] - x[0] / std::sqrt(mean + 1e-6) * weight[0]) < 1e-5, "k %ld: %g", k, out[0]);
        });
    }
}

static void sample() {
    Random random;
    for (long vocab : {1L, 17L, 100L, 2049L}) {
        const long rows = 5;
        const auto logits = random.many(rows * vocab);
        const std::vector<float> heat{0, 1, 0.5f, 1, 2}, top_p{1, 1, 1, 0.5f, 0.9f}, min_p{0, 0, 0, 0, 0.3f};
        const std::vector<int32_t> top_k{0, 0, 3, 0, 7}, choice{0, 1, 2, 3, 4}, position{5, 6, 7, 8, 9}, banned{0}, starts{0, 1, 1, 1, 1, 1}, n_top{4, 0, 1, 4, 2};
        const std::vector<uint64_t> seed{1, 2, 3, 4, ~0ull};
        std::vector<int32_t> first;
        under_every_body([&] {
            const long most = vocab < 4 ? vocab : 4;
            std::vector<int32_t> tokens(rows, -7), ids(rows * most, -7);
            std::vector<float> logprobs(rows, kNan), tops(rows * most, kNan);
            const char* refused = baton_sample(logits.data(), rows, vocab, heat.data(), top_k.data(), top_p.data(), min_p.data(), seed.data(), choice.data(),
                                               position.data(), banned.data(), starts.data(), 1, n_top.data(), most, tokens.data(), logprobs.data(), ids.data(), tops.data());
            CHECK(!refused, "%s", refused);
            if (first.empty()) first = tokens;
            CHECK(first == tokens, "vocab %ld", vocab);
            for (auto token : tokens) CHECK(token >= 0 && token < vocab, "token %d", token);
            CHECK(vocab == 1 || tokens[0] != 0, "a banned token was drawn");
            const int32_t outside = static_cast<int32_t>(vocab);
            CHECK(baton_sample(logits.data(), rows, vocab, heat.data(), top_k.data(), top_p.data(), min_p.data(), seed.data(), choice.data(), position.data(),
                               &outside, starts.data(), 1, n_top.data(), most, tokens.data(), logprobs.data(), ids.data(), tops.data()), "banned outside");
        });
    }
}

static void copy() {
    Random random;
    for (int64_t bytes : {0, 8, 56, 64, 128, 200, 1024, 4096 + 24}) {
        std::vector<uint64_t> source(bytes / 8);
        for (auto& word : source) word = random.next();
        uint64_t expected = 0;
        for (uint64_t i = 0; i < source.size(); ++i) {
            const uint64_t x = (i + 10) * 0x9E3779B97F4A7C15ull, y = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
            expected += source[i] * ((y ^ (y >> 29)) | 1);
        }
        under_every_body([&] {
            for (size_t shift : {0, 1, 5}) {
                std::vector<uint64_t> target(source.size() + shift, 0xEE);
                const auto to = reinterpret_cast<int64_t>(target.data() + shift), from = reinterpret_cast<int64_t>(source.data()), word = int64_t{9};
                uint64_t sum = 0;
                baton_scatter(&to, &from, 1, bytes, &word, &sum);
                CHECK(sum == expected, "sum of %ld bytes", static_cast<long>(bytes));
                CHECK(baton_checksum(from, bytes, word) == expected, "checksum of %ld bytes", static_cast<long>(bytes));
                CHECK(source.empty() || !std::memcmp(target.data() + shift, source.data(), bytes), "copy of %ld bytes", static_cast<long>(bytes));
                for (size_t i = 0; i < shift; ++i) CHECK(target[i] == 0xEE, "written before the target");
            }
        });
    }
}

int main() {
    norm();
    sample();
    copy();
    std::printf("rows, sampling, copies: %d failures\n", failures);
    return failures != 0;
}
