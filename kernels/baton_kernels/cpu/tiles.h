// The few operations on matrix tiles that products and attention are written over. Tiles 0 and 1 are sums of up to sixteen
// rows of sixteen 32-bit words; 2 holds up to 64 bytes of these rows, 3 the sixteen columns that they are multiplied by, a
// row for each four bytes. If the compiler has the instructions, these are used; otherwise Lanes emulate them. Integers
// are exact. Pairs of bf16 follow the manual's order, with equal bits: per output the even and the odd elements make one
// chain of fused multiply-adds each, both from zero, whose sum is added to the output once; denormals are zero in and out.
//
// Four of the eight tiles are used, and each is dropped as soon as it has been read. A core keeps tiles in few registers,
// which its two hardware threads share: a tile that holds something takes one, and each load or product in flight another.
// With eight tiles in use, a core whose other thread has tiles too computes one instruction after the other, at less than
// half of its speed (bench/tiles.py).
#pragma once

namespace baton::BODY {

#ifdef __AMX_BF16__
// Configures the calling thread's tiles while it lives; the processor keeps them. A dot product takes `depth` bytes of each of `rows`.
class Tiles {
public:
    explicit Tiles(long rows = kTile, long depth = 64) {
        Shape shape{};
        shape.palette = 1;
        for (int t = 0; t < 4; ++t) {
            shape.row_bytes[t] = static_cast<uint16_t>(t == 2 ? depth : 64);
            shape.rows[t] = static_cast<uint8_t>(t < 3 ? rows : depth / 4);
        }
        __asm__ volatile("ldtilecfg %0" ::"m"(shape));
    }
    ~Tiles() { __asm__ volatile("tilerelease"); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    template <int T> INLINE void zero() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(T)); }
    template <int T> INLINE void drop() { zero<T>(); }  // a tile of zeros takes no register
    template <int T> INLINE void load(const void* from, long stride) {
        __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
    }
    // The same, past the first-level cache, where it would displace what is read again sooner.
    template <int T> INLINE void load_past(const void* from, long stride) {
        __asm__ volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
    }
    template <int T> INLINE void store(void* to, long stride) {
        __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
    }
    template <int C, int A, int B> INLINE void dot() {
        __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
    // Signed bytes of rows by unsigned ones of columns.
    template <int C, int A, int B> INLINE void dot_unsigned() {
        __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
    template <int C, int A, int B> INLINE void dot_signed() {
        __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }

private:
    struct alignas(64) Shape {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
};
#else
class Tiles {
public:
    explicit Tiles(long rows = kTile, long depth = 64) : rows_(rows), depth_(depth), at_() {}
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    template <int T> void zero() {
        for (int r = 0; r < 16; ++r) baton::BODY::store(at_[T][r], ints(0));
    }
    template <int T> void drop() { zero<T>(); }
    template <int T> void load(const void* from, long stride) {
        constexpr bool kRows = T == 2;
        for (long r = 0; r < (T < 3 ? rows_ : depth_ / 4); ++r)
            __builtin_memcpy(at_[T][r], static_cast<const char*>(from) + r * stride, static_cast<size_t>(kRows ? depth_ : 64));
    }
    template <int T> void load_past(const void* from, long stride) { load<T>(from, stride); }
    template <int T> void store(void* to, long stride) {
        for (long r = 0; r < rows_; ++r)
            baton::BODY::store(reinterpret_cast<uint32_t*>(static_cast<char*>(to) + r * stride), baton::BODY::load(at_[T][r]));
    }
    template <int C, int A, int B> void dot() { dot(at_[C], at_[A], at_[B]); }
    template <int C, int A, int B> void dot_unsigned() {
        dot_bytes(at_[C], at_[A], at_[B], [](Ints b) { return b & ints(0x00FF00FFu); }, [](Ints b) { return right<8>(b) & ints(0x00FF00FFu); });
    }
    template <int C, int A, int B> void dot_signed() {
        dot_bytes(at_[C], at_[A], at_[B], [](Ints b) { return even_bytes(b); }, [](Ints b) { return odd_bytes(b); });
    }

private:
    template <class Even, class Odd>
    void dot_bytes(uint32_t (&c)[16][16], const uint32_t (&a)[16][16], const uint32_t (&b)[16][16], Even even, Odd odd) {
        for (long m = 0; m < rows_; ++m) {
            Ints sum = baton::BODY::load(c[m]);
            for (long k = 0; k < depth_ / 4; ++k) {
                const Ints x = ints(a[m][k]), w = baton::BODY::load(b[k]);
                sum = sum + dot_words(even(w), even_bytes(x)) + dot_words(odd(w), odd_bytes(x));
            }
            baton::BODY::store(c[m], sum);
        }
    }

    static __attribute__((noinline)) void dot(uint32_t (&c)[16][16], const uint32_t (&a)[16][16], const uint32_t (&b)[16][16]) {
        constexpr int R = kTileRows >= 12 ? 4 : 2;
        for (int m = 0; m < 16; m += R) {
            Lanes even[R], odd[R];
            for (int r = 0; r < R; ++r) even[r] = odd[r] = set(0.0f);
            for (int k = 0; k < 16; ++k) {
                const Ints pair = baton::BODY::load(b[k]);
                const Lanes low = floats(left<16>(pair)), high = floats(pair & ints(0xFFFF0000u));
                for (int r = 0; r < R; ++r) {
                    even[r] = fma(floats(ints(a[m + r][k] << 16)), low, even[r]);
                    odd[r] = fma(floats(ints(a[m + r][k] & 0xFFFF0000u)), high, odd[r]);
                }
            }
            for (int r = 0; r < R; ++r)
                baton::BODY::store(c[m + r], bits(floats(baton::BODY::load(c[m + r])) + (even[r] + odd[r])));
        }
    }

    long rows_, depth_;
    alignas(64) uint32_t at_[4][16][16];
};
#endif
}  // namespace baton::BODY
