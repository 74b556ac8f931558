// The C functions about the library itself and about raw page bytes. The latter run on the caller's thread alone:
// a transfer must not wait for the step that computes meanwhile.
#include "api.h"

#include <cstring>

#include "dispatch.h"
#include "pool.h"

#ifndef BATON_SOURCES  // build.py gives it
#define BATON_SOURCES "unknown"
#endif

using namespace baton;

extern "C" {
int baton_version() { return 3; }
const char* baton_sources() { return BATON_SOURCES; }
int baton_supported() { return machine_supported(); }
int baton_built(int body) { return body_built(body); }
int baton_missing() { return body_missing(); }
int baton_usable(int body) { return body_usable(body); }
int baton_knows(int body, int operation) { return body_knows(body, static_cast<Operation>(operation)); }
int baton_chosen(int operation) { return body_chosen(static_cast<Operation>(operation)); }
int baton_choose(int body) { return choose_body(body); }
int baton_forced() { return forced_body(); }
int baton_threads() { return pool_threads(); }
void baton_set_threads(int threads, const int32_t* cores) { pool_set_threads(threads, cores); }

void baton_scatter(const int64_t* to, const int64_t* from, long spans, int64_t bytes, const int64_t* words, uint64_t* sums) {
    const Body& body = body_for(kCopy);
    for (long i = 0; i < spans; ++i) {
        char* page = to ? reinterpret_cast<char*>(to[i]) : nullptr;
        sums[i] = body.copy(page, reinterpret_cast<const char*>(from[i]), bytes, static_cast<uint64_t>(words[i]));
    }
}

uint64_t baton_checksum(int64_t address, int64_t bytes, int64_t word) {
    return body_for(kCopy).copy(nullptr, reinterpret_cast<const char*>(address), bytes, static_cast<uint64_t>(word));
}

void baton_copy(char* pool, int64_t from, int64_t to, int64_t bytes) { std::memmove(pool + to, pool + from, static_cast<size_t>(bytes)); }
}
