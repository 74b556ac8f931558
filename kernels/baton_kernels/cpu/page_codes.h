// Keys and values in eight or four bits: a code for each element, and a scale in bf16 for each token and head.
//   int8  the code is an integer q within +-127, its number q * scale; scale = bf16(max|x| / 127)
//   fp8   the code is an e4m3 (4 bits of exponent, 3 of fraction), its number e4m3 * scale; scale = bf16(max|x| / 448)
//   int4  the code is an integer q within +-7, stored as q + 8 in half a byte, its number q * scale; scale = bf16(max|x| / 7)
// An element is x / scale, rounded to the nearest code, to even. A head of nothing but numbers below 2^-100 is zero; one
// with a NaN or an infinity has the scale NaN, which makes every sum over it NaN. A code alone is exact in bf16: attention
// multiplies codes, then scores by the scales of keys, and probabilities by those of values.
// Codes of eight bits lie in the order of pairs, a byte for each element. Two codes of four bits share a byte, and both are
// of one token, so that no two writers meet in a byte: elements 2i (in its low bits) and 2i + 1 of a key, in tiles
// [dim / 2][page_tokens]; elements i (low) and i + dim / 2 of a value, in tiles [page_tokens / 2][dim / 2][2].
#pragma once

namespace baton::BODY {
constexpr float kMagic = 12582912.0f;  // its last place is 1, so a sum with it is rounded to an integer
constexpr uint32_t kE4m3Bias = 120;    // by which fp32's exponent is larger than e4m3's

template <Kv kv>
constexpr float kMostCode = kv == kKvInt8 ? 127.0f : kv == kKvInt4 ? 7.0f : 448.0f;  // the largest number of a code

// The code of y, which lies within its largest number up to the rounding of the scale.
template <Kv kv>
INLINE Ints code_of(Lanes y) {
    const Lanes magic = set(kMagic);
    if constexpr (kv != kKvFp8) return bits(max(set(-kMostCode<kv>) + magic, min(set(kMostCode<kv>) + magic, y + magic))) - bits(magic);
    const Lanes a = min(magnitude(y), set(448.0f));
    const Ints small = bits(a * set(512.0f) + magic) - bits(magic);  // below 2^-6 the fraction counts in 2^-9
    const Ints up = bits(a) + ints(0x7FFFFu) + (right<20>(bits(a)) & ints(1u));
    return select(less(a, set(0x1p-6f)), small, right<20>(up) - ints(kE4m3Bias << 3)) | (right<24>(bits(y)) & ints(0x80u));
}

// The number that the lowest byte of each lane, or its lowest four bits, are the code of, without its scale.
template <Kv kv>
INLINE Lanes number_of(Ints code) {
    if constexpr (kv == kKvInt8)  // the byte + 128, as the last bits of 2^23
        return floats(((code + ints(0x80u)) & ints(0xFFu)) | ints(0x4B000000u)) - set(8388608.0f + 128.0f);
    if constexpr (kv == kKvInt4) return floats((code & ints(0xFu)) | ints(0x4B000000u)) - set(8388608.0f + 8.0f);
    const Ints rest = code & ints(0x7Fu);
    const Lanes whole = convert(rest);
    const Ints number = select(less(whole, set(8.0f)), bits(whole * set(0x1p-9f)), left<20>(rest) + ints(kE4m3Bias << 23));
    return floats(number | left<24>(code & ints(0x80u)));
}

template <Kv kv>
static uint16_t encode_as(const float* x, long dim, int8_t* codes) {
    Lanes most = set(0.0f), wrong = set(0.0f);
    for (long d = 0; d < dim; d += 16) {
        const Lanes v = load(x + d);
        most = max(magnitude(v), most);
        wrong = wrong + (v - v);  // NaN for NaN and infinity, else 0
    }
    const float m = tree_max(most), bad = tree_sum(wrong);
    const bool nothing = bad != bad || m < 0x1p-100f;
    alignas(64) uint32_t scale[16];
    store(scale, round_bits(set(m / kMostCode<kv>)));
    const Lanes s = floats(load(scale));
    for (long d = 0; d < dim; d += 16) store_bytes(codes + d, nothing ? ints(0) : code_of<kv>(load(x + d) / s));
    return bad != bad ? 0x7FC0 : nothing ? 0 : static_cast<uint16_t>(scale[0] >> 16);
}

// Gives the codes of one head of one token, one in a byte; returns the scale's bits.
static inline uint16_t encode(Kv kv, const float* x, long dim, int8_t* codes) {
    if (kv == kKvInt4) return encode_as<kKvInt4>(x, dim, codes);
    return kv == kKvInt8 ? encode_as<kKvInt8>(x, dim, codes) : encode_as<kKvFp8>(x, dim, codes);
}

// Puts the codes of a token's key or value where they lie in their tile.
static inline void place_codes(Kv kv, const int8_t* codes, long token, long tokens, long dim, bool value, int8_t* to) {
    if (kv != kKvInt4) {
        for (long d = 0; d < dim; ++d) to[value ? (token / 2 * dim + d) * 2 + token % 2 : (d / 2 * tokens + token) * 2 + d % 2] = codes[d];
        return;
    }
    const long half = dim / 2;
    for (long i = 0; i < half; ++i) {
        const int low = codes[value ? i : 2 * i] + 8, high = codes[value ? i + half : 2 * i + 1] + 8;
        to[value ? (token / 2 * half + i) * 2 + token % 2 : i * tokens + token] = static_cast<int8_t>(low | high << 4);
    }
}
}  // namespace baton::BODY
