// Our own exp, log and bf16 rounding over Lanes: polynomials of fused multiply-adds, so that every body gives the same
// bits (library functions and reciprocal instructions differ between machines). About 1 unit in the last place.
#pragma once

namespace baton::BODY {
constexpr float kInfinity = __builtin_inff();

INLINE Lanes magnitude(Lanes x) { return floats(bits(x) & ints(0x7FFFFFFFu)); }

// e^x; 0 below -87.3, the largest power that it can represent above 88.3; NaN stays NaN.
INLINE Lanes exp(Lanes x) {
    const Lanes low = set(-87.3f), magic = set(12582912.0f);
    const Mask under = less(x, low);
    x = min(set(88.3f), max(low, x));
    const Lanes shifted = fma(x, set(1.44269504f), magic);
    const Lanes n = shifted - magic;
    Lanes r = fma(n, set(-0.693359375f), x);
    r = fma(n, set(2.12194440e-4f), r);
    Lanes p = set(1.9875691500e-4f);
    p = fma(p, r, set(1.3981999507e-3f));
    p = fma(p, r, set(8.3334519073e-3f));
    p = fma(p, r, set(4.1665795894e-2f));
    p = fma(p, r, set(1.6666665459e-1f));
    p = fma(p, r, set(5.0000001201e-1f));
    p = fma(p, r * r, r) + set(1.0f);
    const Ints power = left<23>(bits(shifted) - ints(0x4B400000u - 127u));
    return select(under, set(0.0f), p * floats(power));
}

// Natural logarithm of a normal positive number; 0 and denormals give -inf.
INLINE Lanes log(Lanes x) {
    const Mask none = less(x, set(1.17549435e-38f));
    const Ints raw = bits(x);
    Lanes e = convert(right<23>(raw) - ints(126));
    Lanes m = floats((raw & ints(0x007FFFFFu)) | ints(0x3F000000u));  // [0.5, 1)
    const Mask small = less(m, set(0.707106781f));
    e = select(small, e - set(1.0f), e);
    m = select(small, m + m, m) - set(1.0f);
    Lanes p = set(7.0376836292e-2f);
    p = fma(p, m, set(-1.1514610310e-1f));
    p = fma(p, m, set(1.1676998740e-1f));
    p = fma(p, m, set(-1.2420140846e-1f));
    p = fma(p, m, set(1.4249322787e-1f));
    p = fma(p, m, set(-1.6668057665e-1f));
    p = fma(p, m, set(2.0000714765e-1f));
    p = fma(p, m, set(-2.4999993993e-1f));
    p = fma(p, m, set(3.3333331174e-1f));
    const Lanes z = m * m;
    Lanes y = p * m * z;
    y = fma(e, set(-2.12194440e-4f), y);
    y = fma(z, set(-0.5f), y);
    const Lanes result = fma(e, set(0.693359375f), m + y);
    return select(none, set(-kInfinity), result);
}

INLINE float log(float x) {
    alignas(64) float out[16];
    store(out, log(set(x)));
    return out[0];
}

// Rounds to bf16, nearest even, kept as the upper half of an fp32; NaN stays a quiet NaN.
INLINE Ints round_bits(Lanes x) {
    const Ints raw = bits(x);
    const Ints up = raw + ints(0x7FFFu) + (right<16>(raw) & ints(1u));
    return select(is_nan(x), raw | ints(0x00400000u), up) & ints(0xFFFF0000u);
}

INLINE Lanes silu(Lanes x) { return x / (set(1.0f) + exp(set(0.0f) - x)); }

// x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x / (1 + e^-2u).
INLINE Lanes gelu_tanh(Lanes x) {
    const Lanes inner = fma(x * x * x, set(0.044715f), x);
    return x / (set(1.0f) + exp(inner * set(-1.59576912f)));
}

INLINE Lanes activated(Lanes x, int activation) { return activation == kGeluTanh ? gelu_tanh(x) : silu(x); }

// (up + 1) * gate / (1 + e^-1.702 gate), where the gate is at most 7 and up is brought into +-7; NaN stays NaN.
INLINE Lanes clamped_swiglu(Lanes gate, Lanes up) {
    const Lanes limit = set(7.0f);
    gate = min(limit, gate);
    up = min(limit, max(set(-7.0f), up));
    return (up + set(1.0f)) * (gate / (set(1.0f) + exp(gate * set(-1.702f))));
}

// The inputs of the second product of an MLP that has a gate.
INLINE Lanes gated(Lanes gate, Lanes up, int activation) {
    return activation == kClampedSwiglu ? clamped_swiglu(gate, up) : activated(gate, activation) * up;
}

// Hyperbolic tangent: an odd polynomial near zero, else (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x.
INLINE Lanes tanh(Lanes x) {
    const Lanes size = magnitude(x), square = x * x;
    Lanes p = set(-5.70498872745e-3f);
    p = fma(p, square, set(2.06390887954e-2f));
    p = fma(p, square, set(-5.37397155531e-2f));
    p = fma(p, square, set(1.33314422036e-1f));
    p = fma(p, square, set(-3.33332819422e-1f));
    const Lanes near = fma(p * square, x, x), e = exp(size * set(-2.0f));
    const Lanes far = (set(1.0f) - e) / (set(1.0f) + e);
    return select(less(size, set(0.625f)), near, floats(bits(far) | (bits(x) & ints(0x80000000u))));
}

// Brings numbers smoothly into +-limit.
INLINE Lanes capped(Lanes x, Lanes limit) { return tanh(x / limit) * limit; }

// Sum of squares in one fixed order: lane i takes every element i mod 64, then the tree.
INLINE float sum_squares(const float* x, long n) {
    Lanes a[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
    long i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; ++j) { const Lanes v = load(x + i + 16 * j); a[j] = fma(v, v, a[j]); }
    for (int j = 0; i < n; i += 16, ++j) { const Lanes v = load_first(x + i, n - i, 0.0f); a[j] = fma(v, v, a[j]); }
    return tree_sum((a[0] + a[1]) + (a[2] + a[3]));
}

// Sum of term(16 numbers) in the same order; beyond the end, numbers are `fill`, of which the term must be 0.
template <class Term>
INLINE float sum_of(const float* x, long n, float fill, Term term) {
    Lanes a[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
    for (long i = 0; i < n; i += 16) {
        Lanes& sum = a[i / 16 % 4];
        sum = sum + term(load_first(x + i, n - i, fill));
    }
    return tree_sum((a[0] + a[1]) + (a[2] + a[3]));
}
}  // namespace baton::BODY
