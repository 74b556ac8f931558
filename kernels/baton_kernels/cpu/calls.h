// The arguments of a kernel as plain data, and the table of functions that each body fills. api*.cpp check and plan a
// call, the pool hands out its units, a body computes them. Bodies use no templates of the standard library, because the
// linker would merge code compiled for different machines.
#pragma once
#include <cstdint>

namespace baton {
constexpr long kPanel = 32;      // columns of a packed weight that lie together
constexpr long kBlock = 32;      // slots of one softmax step
constexpr long kSegment = 512;   // slots after which a row's partial result is folded into its total
constexpr long kMaxDim = 576;    // largest dimension of a head
constexpr long kMaxQueries = 192; // rows times heads of one attention unit
constexpr long kUnitDims = kMaxQueries * 256;  // elements of the queries of a unit, unless a single row has more
constexpr long kTile = 16;       // rows and columns of a matrix tile, and pairs of its depth
enum Path { kFp32 = 0, kPairs = 1, kAmx = 2 };
enum Kv { kKvOwn = 0, kKvInt8 = 1, kKvFp8 = 2, kKvInt4 = 3 };  // how pages hold keys and values: as the path computes, or coded (page_codes.h)

enum Activation { kSilu = 0, kGeluTanh = 1, kClampedSwiglu = 2 };  // layer.py has their names in this order
enum Norm { kRmsNorm = 0, kLayerNorm = 1 };

static inline long round_up(long n, long unit) { return (n + unit - 1) / unit * unit; }
static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a > b ? a : b; }
// The first slot that the row at `slot` sees; a window of 0: all of them.
static inline long first_seen(long slot, long window) { return window ? most(0, slot + 1 - window) : 0; }
static inline long element_bytes(Path path) { return path == kFp32 ? 4 : 2; }  // bytes of an element of packed weights, keys and values
static inline long code_bytes(Kv kv, long codes) { return kv == kKvInt4 ? codes / 2 : codes; }
// Bytes of one head's keys, or of its values, in one layer of a page: the elements, and behind them the scales of codes.
static inline long head_bytes(Path path, Kv kv, long tokens, long dim) {
    return tokens * (kv == kKvOwn ? dim * element_bytes(path) : code_bytes(kv, dim) + 2);
}
static inline long padded_depth(Path path, long k) { return round_up(k, path == kFp32 ? 1 : path == kPairs ? 2 : 2 * kTile); }

struct Form;  // form.h

struct ProductCall {
    const float* x;
    const int32_t* rows_of;  // row r of the call is row rows_of[r] of x; null: r
    const void* weights;
    const float *bias, *residual;
    float* out;
    long rows, n, k;    // n: columns of out (gated: of each half)
    bool gated;         // columns c and n + c of the weights make one output
    int activation;     // gated: of the former
    long out_row;       // distance of two rows of out and residual
    const ProductCall* into;  // gated: the outputs become the rows of this product, packed as it reads them, and do not go to out
    // planned by api_products.cpp
    long tile_rows, tiles;     // x is packed in tiles of so many rows, zero rows at the end
    long block_tiles;          // tiles of one unit
    long threads;              // number of threads that take units
    long chunk_panels, chunks; // panels of one unit (gated: of each half), units per row block
    long depth;                // chain elements between two visits of the same outputs
    bool widen;                // weights are widened once per unit into scratch
    char* packed_x;
    // integer forms have these
    const Form* form;
    const int32_t* order;      // input i is element order[i] of a row; null: i
    long kp, x_block, group;   // padded k; inputs that share a scale of a row; inputs whose sum is kept
    long levels;               // levels of partial sums in scratch: a segment has one, the tree of segments the others
    float* x_scales;           // [tile][block][row]
    int32_t* x_sums;           // [tile][group][row]
    int32_t* x_begins;         // the same, times what unsigned weights have too much, negative: so the sum of a group begins
    const char* after;         // weights that the thread most likely reads behind the last panel; null: unknown
};

static inline const float* row_of(const ProductCall& call, long r) { return call.x + (call.rows_of ? call.rows_of[r] : r) * call.k; }

// The expert that computes every row: there is none, its weight is the sigmoid of a score, or 1.
enum Shared { kNoShared = 0, kGatedShared = 1, kWholeShared = 2 };

// The router's scores of rows, and what is chosen by them (experts.h).
struct RouteCall {
    const float* scores;  // [rows][experts], and behind them the score of the shared expert if there is one
    long experts, chosen;
    bool normalised;
    Shared shared;
    float factor;    // the weights of chosen experts are multiplied by it, at last
    int32_t* ids;    // [rows][chosen]
    float* weights;  // [rows][chosen], and one more of the shared expert
};

struct AttentionCall {
    const float* q;
    const char* pool;
    long layer_offset, page_stride, page_tokens, max_pages;
    const int32_t *tables, *starts, *counts, *first_row;
    long heads, kv_heads, dim;
    long window;          // slots that a row sees, its own the last; 0: all
    float scale, cap;     // both are for scores; a cap of 0: none
    const float* sinks;   // [heads] a score without a value, which each row of the head sees; null: none
    Kv kv;
    bool stretches;       // a score in fp32 is the sum of a chain for each kStretch elements, as for latents
    float* out;
    long tile_rows;       // rows of one unit
    const int32_t* units; // pairs (sequence, first local row)
    long unit_count, threads;
};

struct RotateCall {
    const float *qkv, *cos, *sin, *q_norm, *k_norm;  // cos null: nothing is rotated
    const int32_t *slots, *offset_in_page;
    const int64_t* page_of;
    long rows, heads, kv_heads, dim, page_tokens;
    float eps;
    char* pool;
    float* q_out;
    bool halves;  // keys and values are stored as bf16, unless they are coded
    Kv kv;
};

constexpr long kDeltaRanks = 4;  // rows of A that are multiplied together: their number is a multiple of it

// What one adapter adds to one product (deltas.h).
struct DeltaCall {
    const float* x;
    float* out;            // the part's first column
    const void *down, *up; // A, and the part's B
    long k, out_row;
    long ranks;            // ranks of all parts: distance of two rows of hidden states
    long rank, columns;    // rank and outputs of the part
    float scale;
    bool half;             // A and B are bf16, else fp32
};

struct SampleCall {
    const float* logits;
    const float* adjusted;         // rows that are drawn from instead; null: none
    const int32_t* adjusted_rows;  // for each row of logits its row in adjusted, or -1
    const float *temperature, *top_p, *min_p;
    const int32_t *top_k, *choice, *position;
    const uint64_t* seed;
    const int32_t *banned, *banned_starts, *n_top;
    long rows, vocab, n_max;
    int32_t* tokens;
    float* logprobs;
    int32_t* top_ids;
    float* top_logprobs;
    float* totals;  // the logarithm of the sum of each row's exponentials; null: not wanted
};

struct Body {
    const char* name;
    long most_tile_rows;
    long most_group_rows; // the same where every group has an end of its own
    long quad_words; // words that four int8 of a row take
    bool has_pairs;  // multiplies packed pairs directly, so weights need no widening
    bool byte_tiles; // multiplies integers on matrix tiles
    void (*pack_rows)(const ProductCall&, Path, long tile);
    void (*product)(const ProductCall&, Path, long unit, float* scratch);
    void (*pack_bytes)(const ProductCall&, long tile);
    void (*product_integer)(const ProductCall&, long unit, float* scratch);
    void (*gate)(const float* both, float* out, long rows, long n, int activation);
    void (*activate)(float* x, long n, int activation);
    void (*attention)(const AttentionCall&, Path, long unit, float* scratch);
    void (*rmsnorm)(const float* x, const float* weight, long k, float eps, float* out);
    void (*layernorm)(const float* x, const float* weight, const float* bias, long k, float eps, float* out);
    void (*add)(float* x, const float* y, const float* norm, long k, float eps, float factor);
    void (*cap)(float* x, long n, float limit);
    void (*clip)(float* x, long n, float limit);
    void (*route)(const RouteCall&, long row);
    void (*combine)(const float* y, const int32_t* places, const float* weights, long parts, long k, const float* residual, float* out);
    void (*rotate)(const RotateCall&, long row);
    void (*sample)(const SampleCall&, long row, float* scratch);  // 5 * round_up(vocab, 16) floats
    void (*log_exp)(const float* x, float* logs, float* exps, long n); // for tests
    uint64_t (*copy)(char* to, const char* from, long bytes, uint64_t word); // if `to` is null, it only computes the checksum
    void (*shrink)(const DeltaCall&, const int32_t* rows, long count, float* hidden, long first, long last);
    void (*expand)(const DeltaCall&, const int32_t* rows, long count, const float* hidden, long first, long last);
};

// Floats that one attention unit works in; carved up in attention.h.
constexpr long kQueryRows = kMaxQueries + 15;  // the last tile may begin at any query
constexpr long kQueryStride = kMaxDim + 16;  // elements between packed query rows: one constant for every dim, no cache aliasing
constexpr long kAttentionScratch =
    kQueryRows * (kQueryStride + 2 * kBlock + kMaxDim) + kMaxQueries * (5 + kMaxDim) + 2 * kMaxDim + 4 * kBlock * kMaxDim + 2 * kBlock;
// Weak: a library may be built without some of them (build.py), and their addresses are null then.
extern const Body body_plain __attribute__((weak)), body_avx2 __attribute__((weak)), body_avx512 __attribute__((weak)),
    body_avx512bf16 __attribute__((weak)), body_amx __attribute__((weak)), body_avx512vnni __attribute__((weak)), body_tiles __attribute__((weak)),
    body_neon __attribute__((weak));

// select.cpp: the `count` best of values by (value, lowest id), in order. ids, best and keys have room for vocab entries.
void best_of(const float* values, long vocab, long count, int32_t* ids, float* best, uint64_t* keys);
}  // namespace baton
