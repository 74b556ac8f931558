// The C functions around packed weights: their forms, packing, and gathering embedding rows.
#include <cstring>

#include "api.h"
#include "form.h"
#include "pack.h"
#include "pool.h"

using namespace baton;

extern "C" {

const char* baton_describe(Form* form) { return describe(*form); }

const char* baton_pack(const Form* form, int source, const void* weights, void* packed) {
    const Turn turn;
    std::memcpy(packed, form, sizeof(Form));
    char* panels = static_cast<char*>(packed) + first_panel(*form);
    parallel(round_up(form->n, kPanel) / kPanel, [&](long panel, int) {
        pack_panel(static_cast<Path>(form->scheme), static_cast<Source>(source), weights, form->n, form->k, panel, panels);
    });
    return nullptr;
}

const char* baton_pack_integers(const Form* form, const int8_t* values, const void* scales, const void* offsets, const uint8_t* factors,
                                const int32_t* order, void* packed) {
    const Turn turn;
    std::memset(packed, 0, kFormBytes);
    std::memcpy(packed, form, sizeof(Form));
    if (form->ordered) std::memcpy(static_cast<char*>(packed) + kFormBytes, order, static_cast<size_t>(form->k) * 4);
    char* panels = static_cast<char*>(packed) + first_panel(*form);
    parallel(round_up(form->n, kPanel) / kPanel, [&](long panel, int) { pack_integer_panel(*form, values, scales, offsets, factors, panel, panels); });
    return nullptr;
}

const char* baton_embed(const void* packed, const int32_t* tokens, long rows, float factor, float* out) {
    const Form& form = *static_cast<const Form*>(packed);
    if (form.scheme == kStack) return "packed: a stack has no rows of an embedding";
    for (long r = 0; r < rows; ++r)
        if (tokens[r] < 0 || tokens[r] >= form.n) return "tokens: an id lies outside the vocabulary";
    const Turn turn;
    const char* panels = static_cast<const char*>(packed) + first_panel(form);
    parallel(rows, [&](long r, int) {
        if (is_dense(form))
            unpack_column(static_cast<Path>(form.scheme), panels, form.k, tokens[r], out + r * form.k);
        else
            unpack_integer_column(form, static_cast<const char*>(packed), tokens[r], out + r * form.k);
        for (long i = 0; factor != 1.0f && i < form.k; ++i) out[r * form.k + i] *= factor;
    });
    return nullptr;
}
}
