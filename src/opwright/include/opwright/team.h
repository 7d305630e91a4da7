// Threads that go through a loop side by side and wait for each other between its steps.
#pragma once

#include <opwright/call.h>

#include <chrono>
#include <thread>

#pragma GCC visibility push(hidden)

namespace opwright {

// The number of threads that PyTorch would use.
inline int64_t threads() {
    uint32_t count = 1;
    TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&count));
    return std::max<int64_t>(1, count);
}

// A team of one or more threads, all of which run: nobody is waited for who has not come.
class Team {
  public:
    int64_t size() const { return size_; }

    // Returns when every member has called it. Memory written before it is seen after it.
    void wait() {
        if (size_ == 1) return;
        const int64_t round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        spin([&] { return round_.load(std::memory_order_acquire) != round; });
    }

    // Runs body(team, member) on at most so many of PyTorch's threads, members being numbered from 0. A thread that
    // PyTorch starts late, or not at all (inside another parallel region, in a pool that is busy), is left out: a
    // team is closed before it begins. The body must not throw.
    template <class Body>
    static void run(int64_t wanted, const Body& body) {
        Team team;
        wanted = std::min<int64_t>(wanted, 1024);
        if (wanted <= 1) return body(team, int64_t(0));
        parallel(0, wanted, 1, [&](int64_t begin, int64_t end) {
            const int64_t member = team.join(wanted, end - begin);
            if (member >= 0) body(team, member);
        });
    }

  private:
    // Who waits this long for the others goes on without those who have not come.
    static constexpr std::chrono::milliseconds patience{2};
    static constexpr int64_t closed = int64_t(1) << 40, one = int64_t(1) << 20;

    int64_t size_ = 1;
    std::atomic<int64_t> door_{0};  // closed? · members · the parts of PyTorch's range that they stand for
    alignas(64) std::atomic<int64_t> open_{0};
    alignas(64) std::atomic<int64_t> arrived_{0};
    alignas(64) std::atomic<int64_t> round_{0};

    // The number of a new member, or -1 for who comes late.
    OPWRIGHT_NOINLINE int64_t join(int64_t wanted, int64_t part) {
        const int64_t before = door_.fetch_add(one + part, std::memory_order_acq_rel);
        if (before & closed) return -1;
        const int64_t member = before / one;
        if (member > 0) {
            spin([&] { return open_.load(std::memory_order_acquire) != 0; });
            return member;
        }
        const auto end = std::chrono::steady_clock::now() + patience;
        spin([&] { return door_.load() % one >= wanted || std::chrono::steady_clock::now() > end; });
        size_ = (door_.fetch_or(closed, std::memory_order_acq_rel) & (closed - 1)) / one;
        open_.store(1, std::memory_order_release);
        return 0;
    }

    // Waits without giving up the processor for some microseconds, then lets others have it.
    template <class Ready>
    OPWRIGHT_NOINLINE static void spin(const Ready& ready) {
        for (int i = 0; !ready(); ++i) {
            if (i > 2000) {
                std::this_thread::yield();
                continue;
            }
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    }
};

}  // namespace opwright

#pragma GCC visibility pop
