// Copying page spans past the caches with their checksum in the same pass, and the checksum alone.
// sum over 64-bit words w_i of w_i * key(i) modulo 2^64; key(i) is odd, so no single damaged word goes unseen, and not
// linear in i, so moved words do not cancel. i counts words from the page's first, which makes spans additive.
#pragma once

namespace baton::BODY {
constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull, kStir = 0xD6E8FEB86659FD93ull;

INLINE uint64_t word_key(uint64_t i) {
    const uint64_t x = (i + 1) * kStep, y = (x ^ (x >> 32)) * kStir;
    return (y ^ (y >> 29)) | 1;
}

INLINE Words word_keys(Words x) {
    const Words y = (x ^ right<32>(x)) * words(kStir);
    return (y ^ right<29>(y)) | words(1);
}

static uint64_t copy(char* to, const char* from, long bytes, uint64_t word) {
    uint64_t sum = 0;
    const auto single = [&] {
        uint64_t w;
        __builtin_memcpy(&w, from, 8);
        if (to) { __builtin_memcpy(to, &w, 8); to += 8; }
        sum += w * word_key(word++);
        from += 8;
        bytes -= 8;
    };
    const bool aligned = reinterpret_cast<uintptr_t>(to) % 8 == 0;
    while (aligned && bytes >= 8 && reinterpret_cast<uintptr_t>(to) % 64) single();
    uint64_t steps[8], parts[8];
    for (uint64_t j = 0; j < 8; ++j) steps[j] = (word + j + 1) * kStep;
    Words x = load_words(steps), a = words(0), b = words(0);
    const Words eight = words(8 * kStep);
    for (; bytes >= 128; bytes -= 128, from += 128, word += 16) {
        const Words u = load_words(from), v = load_words(from + 64);
        fetch(from + 1024);
        fetch(from + 1088);
        if (to) {
            if (aligned) { stream_words(to, u); stream_words(to + 64, v); }
            else { store_words(to, u); store_words(to + 64, v); }
            to += 128;
        }
        a = a + u * word_keys(x);
        x = x + eight;
        b = b + v * word_keys(x);
        x = x + eight;
    }
    store_words(parts, a + b);
    for (uint64_t part : parts) sum += part;
    while (bytes >= 8) single();
    stream_end();
    return sum;
}
}  // namespace baton::BODY
