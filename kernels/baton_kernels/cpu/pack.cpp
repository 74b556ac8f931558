// Packed weights: panels of 32 columns (a column is an output, a row of the checkpoint's matrix). fp32: [k][32];
// pairs: [k/2][32][2] in bf16, so that one 32-bit word is a pair of one column; amx: [k/32][2][16][16][2], two tiles of
// sixteen columns per 32 of k, each pair a word as well. Padding is zero. Also reads rows back out of packed weights.
#include "pack.h"

#include <cstring>

#include "processor.h"

namespace baton {
namespace {
float read(const void* weights, Source source, long i) {
    switch (source) {
        case kFloat32: return static_cast<const float*>(weights)[i];
        case kFloat16: return widen_half(static_cast<const uint16_t*>(weights)[i]);
        default: break;
    }
    const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(weights)[i]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// Index of the word of a panel that holds element i of column c.
long word_of(Path path, long i, long c) {
    if (path == kPairs) return i / 2 * kPanel + c;
    return (i / (2 * kTile) * 2 + c / kTile) * kTile * kTile + i % (2 * kTile) / 2 * kTile + c % kTile;
}
}  // namespace

void pack_panel(Path path, Source source, const void* weights, long n, long k, long panel, void* packed) {
    const long kp = padded_depth(path, k);
    for (long c = 0; c < kPanel; ++c) {
        const long column = panel * kPanel + c;
        for (long i = 0; i < kp; ++i) {
            const bool inside = column < n && i < k;
            if (path == kFp32) {
                static_cast<float*>(packed)[(panel * k + i) * kPanel + c] = inside ? read(weights, source, column * k + i) : 0.0f;
            } else {
                uint16_t half = 0;
                if (inside) half = source == kBfloat16 ? static_cast<const uint16_t*>(weights)[column * k + i] : to_bf16(read(weights, source, column * k + i));
                static_cast<uint16_t*>(packed)[panel * kp * kPanel + word_of(path, i, c) * 2 + i % 2] = half;
            }
        }
    }
}

void unpack_column(Path path, const void* packed, long k, long column, float* out) {
    const long panel = column / kPanel, c = column % kPanel;
    if (path == kFp32) {
        const float* from = static_cast<const float*>(packed) + panel * k * kPanel + c;
        for (long i = 0; i < k; ++i) out[i] = from[i * kPanel];
        return;
    }
    const auto* from = static_cast<const uint32_t*>(packed) + panel * (padded_depth(path, k) / 2) * kPanel;
    for (long i = 0; i < k; ++i) {
        const uint32_t pair = from[word_of(path, i, c)], bits = i % 2 ? pair & 0xFFFF0000u : pair << 16;
        std::memcpy(out + i, &bits, 4);
    }
}
}  // namespace baton
