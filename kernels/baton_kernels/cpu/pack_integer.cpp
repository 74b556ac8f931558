// Forms of packed matrices, and the integer ones: packing canonical arrays into panels (form.h), and columns back into numbers.
#include <cstring>

#include "pack.h"
#include "processor.h"

namespace baton {
namespace {
const char* wrong_groups(const Form& f) {
    const long kp = padded_k(f);
    if (f.group != 16 && f.group != 32 && f.group != 64 && f.group != 128) return "form: a group has 16, 32, 64 or 128 inputs";
    if (has_nibbles(f) && f.group < 32 && f.scheme == kInt4) return "form: int4 has groups of at least 32";
    if (kp / f.segments % f.group || f.k % f.group) return "form: groups do not divide k, or its segments";
    return nullptr;
}

long bytes_of(const Form& f) { return first_panel(f) + round_up(f.n, kPanel) / kPanel * sections(f).bytes; }

// Where the byte with the weight of input k stands in a panel.
long place(const Form& f, const Sections& s, long k, long column) {
    const long quad = has_nibbles(f) ? 0 : k % 8 / 4;  // its place in the eight inputs from k / 8 * 8 on
    return weights_at(f, s, k / 8 * 8) + (quad * kPanel + column) * 4 + k % 4;
}

float number(ScaleType type, const void* at, long i) {
    if (type == kScaleFp32) return static_cast<const float*>(at)[i];
    const uint16_t half = static_cast<const uint16_t*>(at)[i];
    if (type == kScaleFp16) return widen_half(half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
}  // namespace

const char* describe(Form& f) {
    if (f.n < 1 || f.k < 1 || f.n > 1L << 32 || f.k > 1L << 24) return "form: n and k are no shape of a matrix";
    if (f.scheme < 0 || f.scheme >= kStack) return "form: unknown scheme";
    std::memcpy(f.magic, "BATONMX", 8);
    if (!is_dense(f)) {
        if (f.segments != 1 && f.segments != 2 && f.segments != 4 && f.segments != 8) return "form: 1, 2, 4 or 8 segments";
        if (f.segments > 1 && f.k % (f.segments * kDeep)) return "form: a segment's length is a multiple of 64";
        if (f.scheme == kInt8 ? f.group != 0 : false) return "form: int8 has no groups";
        if (f.scheme != kInt8)
            if (const char* wrong = wrong_groups(f)) return wrong;
        if (!is_grouped(f) && (f.offset != kNoOffset || f.scale_type != kScaleFp32)) return "form: int8 and int4 have fp32 scales and no offset";
        if (f.tabled && (f.scheme != kInt4Groups || f.offset == kZero || f.middle)) return "form: a table replaces zeros";
        if (f.middle && f.scheme != kInt4Groups) return "form: a middle belongs to nibbles";
    }
    f.bytes = bytes_of(f);
    return nullptr;
}

void pack_integer_panel(const Form& f, const int8_t* values, const void* scales, const void* offsets, const uint8_t* factors, long panel,
                        char* panels) {
    const Sections s = sections(f);
    char* to = panels + panel * s.bytes;
    std::memset(to, 0, static_cast<size_t>(s.bytes));
    const bool nibbles = has_nibbles(f);
    const long size = scale_bytes(f);
    const long groups = f.group ? f.k / f.group : 0;  // groups of the arrays; padding has further ones, which stay zero
    const auto copy = [&](long at, const void* from, long column, long c, long bytes) {
        for (long g = 0; g < groups; ++g)
            std::memcpy(to + g * s.stride + at + c * bytes, static_cast<const char*>(from) + (column * groups + g) * bytes, static_cast<size_t>(bytes));
    };
    for (long c = 0; c < kPanel && panel * kPanel + c < f.n; ++c) {
        const long column = panel * kPanel + c;
        if (is_grouped(f)) {
            copy(s.scales, scales, column, c, size);
            if (f.offset != kNoOffset) copy(s.offsets, offsets, column, c, f.offset == kZero ? 1 : size);
        } else {
            std::memcpy(to + s.columns + c * 4, static_cast<const float*>(scales) + column, 4);
            if (f.scheme == kInt4) copy(s.offsets, offsets, column, c, 1), copy(s.factors, factors, column, c, 1);
        }
        for (long k = 0; k < f.k; ++k) {
            const int8_t value = values[column * f.k + k];
            char& byte = to[place(f, s, k, c)];
            if (nibbles)
                byte |= static_cast<char>((value & 15) << (k % 8 >= 4 ? 4 : 0));
            else
                byte = static_cast<char>(value + kShift);
        }
    }
}

void unpack_integer_column(const Form& f, const char* packed, long column, float* out) {
    const Sections s = sections(f);
    const char* panel = packed + first_panel(f) + column / kPanel * s.bytes;
    const auto* order = reinterpret_cast<const int32_t*>(packed + kFormBytes);
    const long c = column % kPanel;
    const auto type = static_cast<ScaleType>(f.scale_type);
    for (long k = 0; k < f.k; ++k) {
        const char* group = panel + k / s.k * s.stride;
        int32_t value;
        if (has_nibbles(f)) {
            const auto pair = static_cast<uint8_t>(panel[place(f, s, k, c)]);
            value = k % 8 >= 4 ? pair >> 4 : pair & 15;
            value = f.tabled ? f.table[value] : value - f.middle;
        } else {
            value = static_cast<uint8_t>(panel[place(f, s, k, c)]) - kShift;
        }
        if (f.scheme == kInt4 || f.offset == kZero) value -= reinterpret_cast<const int8_t*>(group + s.offsets)[c];
        if (f.scheme == kInt4) value *= reinterpret_cast<const uint8_t*>(group + s.factors)[c];
        const auto exact = static_cast<float>(value);
        float& to = out[f.ordered ? order[k] : k];
        if (!is_grouped(f))
            to = exact * reinterpret_cast<const float*>(panel + s.columns)[c];
        else if (f.offset == kMinimum)
            to = __builtin_fmaf(exact, number(type, group + s.scales, c), number(type, group + s.offsets, c));
        else
            to = exact * number(type, group + s.scales, c);
    }
}
}  // namespace baton
