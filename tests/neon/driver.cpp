// Runs the kernel library on the emulated machine for a Python process on this one (emulated.py): it reads calls from stdin,
// makes them, and writes what they return and which bytes they changed. It has the caller's memory at the caller's addresses:
// where the library touches a block that is not there yet, the handler of the fault asks the caller for its pages.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
constexpr uint64_t kPage = 4096, kPages = 16, kBlock = kPage * kPages;
constexpr int kMostBlocks = 1 << 16, kMostInts = 40, kMostFloats = 8;

// What the caller sends. Functions of the procedure call standard take the first eight integers in registers and the others
// behind each other on the stack, and floats in registers of their own: so one signature fits all functions of the library.
struct Call {
    char name[32];
    char result[8];  // the first is the letter of library.py
    int64_t ints[kMostInts];
    float floats[kMostFloats];
};

struct Block {
    char *at, *before;  // the library's memory, and what the caller had there
    uint64_t present;   // a bit for each of its pages
};
Block blocks[kMostBlocks];
int block_count = 0;
volatile char asking = 0;  // one thread asks at a time

[[noreturn]] void fail(const char* why, uint64_t what) {
    dprintf(2, "driver: %s %llx\n", why, static_cast<unsigned long long>(what));
    _exit(3);
}

void get(void* to, uint64_t bytes) {
    for (auto* p = static_cast<char*>(to); bytes;) {
        const ssize_t n = read(0, p, bytes);
        if (n <= 0) _exit(0);  // the caller has gone
        p += n, bytes -= static_cast<uint64_t>(n);
    }
}

void put(const void* from, uint64_t bytes) {
    for (auto* p = static_cast<const char*>(from); bytes;) {
        const ssize_t n = write(1, p, bytes);
        if (n <= 0) _exit(0);
        p += n, bytes -= static_cast<uint64_t>(n);
    }
}

void put_number(int64_t number) { put(&number, 8); }

char* map() {
    void* got = mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) fail("no memory for a block of", kBlock);
    return static_cast<char*>(got);
}

// Moves a block that is filled already: another thread that touches it finds either nothing or all of it.
char* move(char* from, uint64_t at) {
    void* got = mremap(from, kBlock, kBlock, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(at));
    if (got != reinterpret_cast<void*>(at)) fail("cannot have the caller's memory at", at);
    return static_cast<char*>(got);
}

void bring(int, siginfo_t* info, void*) {
    const uint64_t address = reinterpret_cast<uint64_t>(info->si_addr), at = address / kBlock * kBlock;
    while (__atomic_test_and_set(&asking, __ATOMIC_ACQUIRE)) {}
    int known = 0;
    while (known < block_count && blocks[known].at != reinterpret_cast<char*>(at)) ++known;
    if (known < block_count) {  // another thread brought it meanwhile, or the caller has no such page
        if (!(blocks[known].present >> (address - at) / kPage & 1)) fail("the library touches what the caller does not have:", address);
    } else {
        if (block_count == kMostBlocks) fail("too much memory in one call", address);
        put("F", 1);
        put_number(static_cast<int64_t>(at));
        Block& block = blocks[block_count];
        get(&block.present, 8);
        if (!(block.present >> (address - at) / kPage & 1)) fail("the library touches what the caller does not have:", address);
        block.before = map();
        for (uint64_t page = 0; page < kPages; ++page)
            if (block.present >> page & 1) get(block.before + page * kPage, kPage);
        char* filled = map();
        std::memcpy(filled, block.before, kBlock);
        block.at = move(filled, at);
        for (uint64_t page = 0; page < kPages; ++page)
            if (!(block.present >> page & 1)) mprotect(block.at + page * kPage, kPage, PROT_NONE);
        ++block_count;
    }
    __atomic_clear(&asking, __ATOMIC_RELEASE);
}

// Sends the words that the call changed, and forgets the caller's memory.
void give_back() {
    for (int b = 0; b < block_count; ++b) {
        const Block& block = blocks[b];
        for (uint64_t page = 0; page < kBlock; page += kPage) {
            if (!(block.present >> page / kPage & 1) || !std::memcmp(block.at + page, block.before + page, kPage)) continue;
            for (uint64_t i = page, from; i < page + kPage; i += 8) {
                for (from = i; i < page + kPage && std::memcmp(block.at + i, block.before + i, 8); i += 8) {}
                if (i == from) continue;
                put_number(reinterpret_cast<int64_t>(block.at + from)), put_number(static_cast<int64_t>(i - from));
                put(block.at + from, i - from);
            }
        }
        munmap(block.at, kBlock), munmap(block.before, kBlock);
    }
    block_count = 0;
    put_number(0);
}

template <class Result>
Result make(const void* function, const Call& c) {
    const int64_t* i = c.ints;
    const float* f = c.floats;
    using F = Result (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t, float, float, float, float);
    return reinterpret_cast<F>(reinterpret_cast<uintptr_t>(function))(
        i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14], i[15], i[16], i[17], i[18], i[19], i[20], i[21],
        i[22], i[23], i[24], i[25], i[26], i[27], i[28], i[29], i[30], i[31], f[0], f[1], f[2], f[3]);
}
}  // namespace

// The library's memset, instead of glibc's: that one clears blocks with DC ZVA, and qemu 7.2 loses such a block where it faults.
extern "C" __attribute__((optimize("no-tree-loop-distribute-patterns"))) void* memset(void* to, int byte, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) static_cast<char*>(to)[i] = static_cast<char>(byte);
    return to;
}

int main(int, char** arguments) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (!library) {
        std::fprintf(stderr, "driver: %s\n", dlerror());
        return 3;
    }
    struct sigaction action {};
    action.sa_sigaction = bring;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    for (Call call;;) {
        get(&call, sizeof call);
        const void* function = dlsym(library, call.name);
        if (!function) fail("the library lacks a function", 0);
        int64_t value = 0;
        const char* text = nullptr;
        if (*call.result == 'd') {
            const double number = make<double>(function, call);
            std::memcpy(&value, &number, 8);
        } else {
            value = make<int64_t>(function, call);
        }
        if (*call.result == 'm') text = reinterpret_cast<const char*>(value);
        put("R", 1);
        put_number(value);
        put_number(text ? static_cast<int64_t>(std::strlen(text)) : -1);
        if (text) put(text, std::strlen(text));
        give_back();
    }
}
