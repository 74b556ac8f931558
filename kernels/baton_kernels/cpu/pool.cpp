// See pool.h. A worker counts itself in before it looks whether a job is open, and the caller closes the job before it
// waits for the count. So a worker that wakes late finds the job closed, and the caller never waits for a sleeping worker.
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace baton {
namespace {
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr size_t kLargePage = 2 << 20;
constexpr size_t kFetched = 128 << 10;  // bytes that a waiting thread fetches at most: they fit its second-level cache

struct Free {
    void operator()(char* p) const { std::free(p); }
};

struct Memory {
    std::unique_ptr<char, Free> bytes;
    size_t size = 0;

    char* at_least(size_t wanted) {
        if (wanted > size) {
            const size_t page = wanted < kLargePage ? 4096 : kLargePage, rounded = (wanted + page - 1) / page * page;
            bytes.reset();
            size = 0;
            bytes.reset(static_cast<char*>(std::aligned_alloc(page, rounded)));
            if (!bytes) throw std::bad_alloc();
            size = rounded;
            if (page == kLargePage) madvise(bytes.get(), rounded, MADV_HUGEPAGE);  // if the kernel refuses, small pages serve
        }
        return bytes.get();
    }
};

// Consecutive units of a call. Each thread begins with a share of its own, so it reads weights as they lie in memory.
struct alignas(64) Share {
    std::atomic<long> next{0};
    long end = 0;
};

class Pool {
public:
    ~Pool() { stop(); }

    void start(int threads, std::vector<int> cores) {
        stop();
        stopping_ = false;
        cores_ = std::move(cores);
        memory_.resize(static_cast<size_t>(threads));
        shares_ = std::vector<Share>(static_cast<size_t>(threads));
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    }

    void stop() {
        {
            const std::lock_guard lock(sleep_);
            stopping_ = true;
            ++epoch_;
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
        workers_.clear();
    }

    bool is(int threads, const std::vector<int>& cores) const { return threads == this->threads() && cores == cores_; }

    void run(long units, UnitFunction function, void* context) {
        const FlushDenormals flush;
        if (units <= 1 || workers_.empty()) {
            for (long u = 0; u < units; ++u) function(context, u, 0);
            return;
        }
        function_ = function;
        context_ = context;
        const long shares = threads();
        for (long i = 0; i < shares; ++i) {
            auto& share = shares_[static_cast<size_t>(i)];
            share.next = units * i / shares, share.end = units * (i + 1) / shares;
        }
        open_ = true;
        ++epoch_;
        if (sleepers_ > 0) {
            { const std::lock_guard lock(sleep_); }
            wake_.notify_all();
        }
        take(0);
        open_ = false;
        for (int spins = 0; active_ > 0; ++spins)
            if (spins < 20000) wait_briefly(); else std::this_thread::yield();
    }

    void expect_weights(const char* weights, size_t bytes) { soon_ = weights, soon_bytes_ = bytes; }

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    std::mutex turn;
    Memory shared;
    std::vector<Memory> memory_;

private:
    void take(int thread) {
        for (size_t i = 0; i < shares_.size(); ++i) {
            Share& share = shares_[(static_cast<size_t>(thread) + i) % shares_.size()];
            for (long u; (u = share.next.fetch_add(1)) < share.end;) function_(context_, u, thread);
        }
    }

    void work(int thread) {
        const FlushDenormals flush;
        if (!cores_.empty()) stay_on(cores_[static_cast<size_t>(thread)]);
        for (unsigned long seen = 0;;) {
            await(seen);
            seen = epoch_;
            if (stopping_) return;
            ++active_;
            if (open_) take(thread);
            --active_;
            expect(thread);
        }
    }

    // The beginning of this thread's share of what comes next; it is fetched while the thread waits.
    void expect(int thread) {
        const size_t bytes = soon_bytes_, from = bytes * static_cast<size_t>(thread) / shares_.size() & ~size_t{63};
        fetch_ = soon_ ? soon_ + from : nullptr;
        fetch_end_ = fetch_ + (bytes - from < kFetched ? bytes - from : kFetched);
    }

    // If the kernel refuses, the thread runs on any core: perhaps slower, never wrong.
    static void stay_on(int core) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }

    void await(unsigned long seen) {
        const auto deadline = std::chrono::steady_clock::now() + kSpin;
        do {
            for (int i = 0; i < 32; ++i) {
                if (epoch_ != seen) return;
                if (fetch_ && fetch_ < fetch_end_) {
                    fetch_soon(fetch_);
                    fetch_ += 64;
                } else {
                    wait_briefly();
                }
            }
        } while (std::chrono::steady_clock::now() < deadline);
        std::unique_lock lock(sleep_);
        ++sleepers_;
        wake_.wait(lock, [&] { return epoch_ != seen; });
        --sleepers_;
    }

    static inline thread_local const char *fetch_ = nullptr, *fetch_end_ = nullptr;
    std::atomic<const char*> soon_{nullptr};
    std::atomic<size_t> soon_bytes_{0};
    std::vector<std::thread> workers_;
    std::vector<int> cores_;  // empty: threads run on any core
    UnitFunction function_ = nullptr;
    void* context_ = nullptr;
    std::vector<Share> shares_ = std::vector<Share>(1);
    alignas(64) std::atomic<unsigned long> epoch_{0};
    std::atomic<bool> open_{false}, stopping_{false};
    std::atomic<int> active_{0}, sleepers_{0};
    std::mutex sleep_;
    std::condition_variable wake_;
};

Pool& pool() {
    static Pool* one = [] {
        auto* made = new Pool;  // never freed: workers may outlast static destruction
        made->start(1, {});
        return made;
    }();
    return *one;
}
}  // namespace

int pool_threads() { return pool().threads(); }

void pool_set_threads(int threads, const int* cores) {
    const Turn turn;
    std::vector<int> wanted;
    if (cores) wanted.assign(cores, cores + threads);
    if (!pool().is(threads, wanted)) pool().start(threads, std::move(wanted));
}

void pool_expect(const char* weights, size_t bytes) { pool().expect_weights(weights, bytes); }

void pool_run(long units, UnitFunction function, void* context) { pool().run(units, function, context); }

namespace {
double busy = 0.0;  // written only inside a Turn

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace

Turn::Turn() {
    pool().turn.lock();
    began_ = seconds_now();
}

Turn::~Turn() {
    busy += seconds_now() - began_;
    pool().turn.unlock();
}

double pool_busy_seconds() {
    const std::lock_guard lock(pool().turn);
    return busy;
}

char* shared_scratch(size_t bytes) { return pool().shared.at_least(bytes); }

void reserve_scratch(size_t bytes) {
    for (auto& memory : pool().memory_) memory.at_least(bytes);
}

float* thread_scratch(int thread) { return reinterpret_cast<float*>(pool().memory_[static_cast<size_t>(thread)].bytes.get()); }

FlushDenormals::FlushDenormals() : saved_(float_mode()) { set_float_mode(flushing(saved_)); }
FlushDenormals::~FlushDenormals() { set_float_mode(saved_); }
}  // namespace baton
