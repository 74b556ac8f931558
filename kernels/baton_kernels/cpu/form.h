// What a packed matrix is: its first kFormBytes bytes say it, so a matrix carries its own form and a model may mix them.
// Behind them lies the order of the inputs (if the form has one), then the panels of 32 columns. A stack is several
// matrices over the same inputs, whose outputs follow each other; its panels are whole packed matrices.
#pragma once
#include "calls.h"

namespace baton {
constexpr long kFormBytes = 128;
constexpr long kMostParts = 3;
constexpr long kDeep = 64;  // integer forms pad k to a multiple of it, and a segment's length is one

// fp32, pairs and amx are product paths. int8 and int4 have one fp32 scale per column, and sum integers over a whole
// segment; int4 multiplies each group by a small integer, which makes an int8 of it. The grouped ones have a scale of
// their own for each group of a column.
enum Scheme : int32_t { kDenseFp32 = 0, kDensePairs = 1, kDenseAmx = 2, kInt8 = 3, kInt4 = 4, kInt8Groups = 5, kInt4Groups = 6, kStack = 7, kSchemes = 8 };
enum Offset : int32_t { kNoOffset = 0, kZero = 1, kMinimum = 2 };  // per group: an integer taken away, a number added
enum ScaleType : int32_t { kScaleFp32 = 0, kScaleFp16 = 1, kScaleBf16 = 2 };

// The same fields as in forms.py, in the same order.
struct Form {
    char magic[8];
    int64_t n, k, bytes;  // outputs, inputs, and bytes of the whole matrix, these included
    int32_t scheme, group, segments, offset, scale_type;
    int32_t middle;    // nibbles without a table and without zeros of their own: the nibble that means 0
    int32_t ordered;   // input i of the matrix is element order[i] of a row
    int32_t tabled;    // a nibble is an index into `table`
    int8_t table[16];
    int64_t parts[kMostParts];  // distance in bytes of each matrix of a stack from here; 0: no more
};
static_assert(sizeof(Form) <= kFormBytes, "a form has its place");

// A panel is its groups one after the other, each with its weights and then what belongs to them, in the order in which
// products read it; int8 and int4 end with a scale per column. Weights: [k / 4][32][4] bytes, each an int8 + 128, or
// [k / 8][32][4] pairs of nibbles, of which the low one belongs to the first four of eight k. So bodies multiply
// unsigned weights by signed activations (or flip the highest bit of bytes before, quads.h), and what the weights have too
// much costs one subtraction of the row's own sum.
struct Sections {
    long groups = 0, segments = 0;
    long k = 0, stride = 0;  // inputs and bytes of a group; int8: of all of the panel's weights
    long scales = 0;         // grouped: [32], from the beginning of a group
    long offsets = 0;        // [32] int8, or as scales, from there too; int4 always has them
    long factors = 0;        // int4: uint8 [32], from there too
    long columns = 0;        // int8, int4: fp32 [32], from the beginning of the panel
    long bytes = 0;          // size of the panel
};

constexpr int32_t kShift = 128;  // that a stored byte has more than the int8 for which it stands

// What a weight as it is multiplied has more than the integer for which it stands; of_bytes: what one of eight bits has.
static inline int32_t too_large(const Form& f, int32_t of_bytes) {
    return f.scheme == kInt8 || f.scheme == kInt8Groups || f.tabled ? of_bytes : f.middle;
}
static inline bool is_dense(const Form& f) { return f.scheme <= kDenseAmx; }
static inline bool is_grouped(const Form& f) { return f.scheme == kInt8Groups || f.scheme == kInt4Groups; }
static inline bool has_nibbles(const Form& f) { return f.scheme == kInt4 || f.scheme == kInt4Groups; }
static inline long padded_k(const Form& f) { return is_dense(f) ? padded_depth(static_cast<Path>(f.scheme), f.k) : round_up(f.k, kDeep); }
static inline long scale_bytes(const Form& f) { return f.scale_type == kScaleFp32 ? 4 : 2; }
static inline long weight_bytes(const Form& f, long k) { return k * kPanel / (has_nibbles(f) ? 2 : 1); }  // bytes of a panel's k inputs
static inline long first_panel(const Form& f) { return kFormBytes + (f.ordered ? round_up(f.k * 4, 64) : 0); }

static inline Sections sections(const Form& f) {
    Sections s;
    const long kp = padded_k(f);
    s.segments = f.segments;
    if (is_dense(f)) {
        s.bytes = kp * kPanel * element_bytes(static_cast<Path>(f.scheme));
        return s;
    }
    s.groups = f.group ? kp / f.group : 0;
    s.k = f.group ? f.group : kp;
    s.scales = weight_bytes(f, s.k);
    s.offsets = s.scales + (is_grouped(f) ? kPanel * scale_bytes(f) : 0);
    s.factors = s.offsets + (f.offset == kMinimum ? kPanel * scale_bytes(f) : f.scheme == kInt4 || f.offset == kZero ? kPanel : 0);
    s.stride = round_up(s.factors + (f.scheme == kInt4 ? kPanel : 0), 64);
    s.columns = kp / s.k * s.stride;
    s.bytes = s.columns + (is_grouped(f) ? 0 : kPanel * 4);
    return s;
}

// Distance of the weights of input k from the beginning of their panel; k is a multiple of eight.
static inline long weights_at(const Form& f, const Sections& s, long k) { return k / s.k * s.stride + weight_bytes(f, k % s.k); }
}  // namespace baton
