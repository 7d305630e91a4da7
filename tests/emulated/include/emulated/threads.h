// The threads of a block on one thread of the CPU: each has a stack of its own, and runs until it waits for others, at
// a barrier or in its warp, or ends. Blocks run one after another; those of a launch whose blocks wait for each other
// take turns between the barriers of all.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline uint3 threadIdx{}, blockIdx{};
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulated {

constexpr size_t most_threads = 1024, stack_bytes = 128 << 10, page = 4096;
constexpr size_t most_shared = 232448;

// What threads wait in: the same place of the source for all that meet there.
enum class Meets { nowhere, block, warp, grid };
struct Place {
    const char* what = "";
    int line = 0;
    unsigned mask = 0;  // of the lanes that meet
    bool operator==(const Place& other) const {
        return line == other.line && mask == other.mask && !std::strcmp(what, other.what);
    }
};

struct Thread {
    jmp_buf state;
    bool begun = false;  // its stack is in use: it goes on where it left off
    bool ended = false;
    Meets meets = Meets::nowhere;
    Place place;
    uint64_t given = 0, taken = 0;  // what it brought to the meeting, and what it got there
    int source = 0;                 // the lane that it takes it from
};

// The order of blocks, and of threads that could go on: as they are numbered, or drawn from a seed, which finds what
// depends on an order that nobody promises.
class Order {
  public:
    explicit Order(uint64_t seed) : state_(seed), drawn_(seed != 0) {}
    size_t draw(size_t below) {  // splitmix64
        if (!drawn_) return 0;
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return (z ^ (z >> 31)) % below;
    }
    template <class T>
    void shuffle(std::vector<T>& all) {
        for (size_t i = all.size(); drawn_ && i > 1; --i) std::swap(all[i - 1], all[draw(i)]);
    }

  private:
    uint64_t state_;
    bool drawn_;
};

// A block: its threads, who of them waits where, and what they share while another block has its turn.
struct Block {
    std::unique_ptr<Thread[]> threads = std::make_unique<Thread[]>(most_threads);
    uint3 index{};
    size_t count = 0, ended = 0, at_barrier = 0, at_grid = 0;
    std::deque<size_t> ready;
    std::array<int, most_threads / warpSize> gone{}, waiting{};  // of each warp: who has ended, and who waits in it
    std::vector<std::pair<char*, size_t>> shared;
    std::vector<char> kept;
    char* stacks = nullptr;

    Block() = default;
    Block(const Block&) = delete;
    ~Block() {
        if (stacks != nullptr) munmap(stacks, most_threads * stack_bytes);
    }
    // One piece of memory for all, and no page between them that nobody may touch: a system lends only so many pieces.
    char* stack(size_t number) {
        if (stacks == nullptr) {
            void* const memory = mmap(nullptr, most_threads * stack_bytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) std::abort();
            stacks = static_cast<char*>(memory);
        }
        return stacks + number * stack_bytes;
    }
    void begin(size_t number, const dim3& grid, size_t threads_of_it) {
        index = {unsigned(number % grid.x), unsigned(number / grid.x % grid.y), unsigned(number / grid.x / grid.y)};
        count = threads_of_it, ended = at_barrier = at_grid = 0;
        gone.fill(0), waiting.fill(0), ready.clear(), shared.clear(), kept.clear();
        for (size_t i = 0; i < count; ++i) {
            threads[i].ended = false, threads[i].meets = Meets::nowhere;
            ready.push_back(i);
        }
    }
    // What it shares, kept for its next turn, and laid there again.
    void keep() {
        kept.clear();
        for (const auto& [memory, bytes] : shared) kept.insert(kept.end(), memory, memory + bytes);
    }
    void lay() const {
        size_t from = 0;
        for (const auto& [memory, bytes] : shared) std::memcpy(memory, kept.data() + from, bytes), from += bytes;
    }
};

class Machine {
  public:
    static Machine& get() {
        static Machine machine;
        return machine;
    }

    // Runs the blocks of a grid, one after another. Raises what went wrong in a thread.
    template <class Body>
    void run(const dim3& grid, const dim3& block, size_t shared, uint64_t seed, const Body& body) {
        begin(grid, block, seed, body);
        block_ = &own_;
        for (const uint64_t number : numbers(grid)) {
            block_->begin(number, grid, count_);
            std::memset(dynamic_shared(), 0xff, std::min(shared + page, most_shared + page));  // NaN, -1
            run_block();
            look_behind(shared);
        }
    }
    // Runs blocks that wait for each other: each until it waits for the others or ends.
    template <class Body>
    void run_together(const dim3& grid, const dim3& block, size_t shared, uint64_t seed, const Body& body) {
        begin(grid, block, seed, body);
        const std::vector<uint64_t> all = numbers(grid);
        std::vector<std::unique_ptr<Block>> blocks;
        for (const uint64_t number : all) {
            blocks.push_back(std::make_unique<Block>());
            blocks.back()->begin(number, grid, count_);
            blocks.back()->shared.emplace_back(dynamic_shared(), shared + 64);
            blocks.back()->kept.assign(shared + 64, char(0xff));  // NaN, -1
        }
        for (size_t waiting = 1; waiting > 0;) {
            waiting = 0;
            for (const auto& each : blocks) {
                block_ = each.get();
                block_->lay();
                run_block();
                look_behind(shared);
                block_->keep();
                waiting += block_->at_grid > 0;
            }
            if (waiting > 0 && waiting < blocks.size()) raise("ended while other blocks wait for it");
            for (const auto& each : blocks) {
                block_ = each.get();
                block_->at_grid = 0;
                for (size_t i = 0; waiting > 0 && i < count_; ++i) go_on(i);
            }
        }
        block_ = &own_;
    }

    // What a block shares. What nobody has written there is NaN, or -1.
    static char* dynamic_shared() {
        alignas(1024) static char memory[most_shared + page];
        return memory;
    }
    void share(void* memory, size_t bytes) {
        for (const auto& known : block_->shared) {
            if (known.first == memory) return;
        }
        block_->shared.emplace_back(static_cast<char*>(memory), bytes);
        std::memset(memory, 0xff, bytes);
    }

    bool is_running() const { return current_ != nullptr; }
    int lane() const { return int(size_t(current_ - &block_->threads[0]) % warpSize); }

    // Waits until all who are to meet are there; gives the thread with what it has got.
    Thread& meet(Meets who, const Place& place, uint64_t given, int source = 0) {
        Thread& me = *current_;
        me.meets = who, me.place = place, me.given = given, me.source = source;
        if (who == Meets::warp && !(place.mask >> lane() & 1))
            fail("calls " + spelled(place) + " with a mask without itself");
        leave();
        return me;
    }

    // Ends the run with an error of the thread that is running.
    [[noreturn]] void fail(const std::string& said) {
        const uint3 t = threadIdx;
        failed_ = "thread " + spelled(t) + " " + said;
        leave();
        std::abort();
    }

  private:
    Block own_;  // of launches whose blocks run one after another
    Block* block_ = &own_;
    Thread* current_ = nullptr;
    jmp_buf home_;
    size_t count_ = 0;
    Order order_{0};
    void (*body_)(const void*) = nullptr;
    const void* context_ = nullptr;
    std::string failed_;

    void look_behind(size_t shared) {
        for (size_t i = shared; i < shared + 64; ++i) {
            if (dynamic_shared()[i] != char(0xff)) raise("wrote behind its dynamic shared memory");
        }
    }
    template <class Body>
    void begin(const dim3& grid, const dim3& block, uint64_t seed, const Body& body) {
        const auto call = [](const void* of) { (*static_cast<const Body*>(of))(); };
        body_ = call, context_ = &body;
        gridDim = grid, blockDim = block, order_ = Order(seed);
        count_ = size_t(block.x) * block.y * block.z;
    }
    std::vector<uint64_t> numbers(const dim3& grid) {
        std::vector<uint64_t> all(uint64_t(grid.x) * grid.y * grid.z);
        for (size_t i = 0; i < all.size(); ++i) all[i] = i;
        order_.shuffle(all);
        return all;
    }

    static std::string spelled(const uint3& at) {
        return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
    }
    static std::string spelled(const Place& place) {
        return std::string(place.what) + " in line " + std::to_string(place.line);
    }
    [[noreturn]] void raise(const std::string said) {
        for (size_t i = 0; i < most_threads; ++i)
            block_->threads[i].begun = false;  // nobody goes on with what they left
        block_ = &own_, current_ = nullptr;
        failed_.clear();
        throw std::runtime_error("emulated kernel, block " + spelled(blockIdx) + ": " + said);
    }

    // From a thread back to who runs the block.
    __attribute__((noinline)) void leave() {
        if (_setjmp(current_->state) == 0) _longjmp(home_, 1);
    }
    // From who runs the block to a thread, until it leaves.
    __attribute__((noinline)) void enter(Thread& thread) {
        if (_setjmp(home_) != 0) return;
        if (thread.begun) _longjmp(thread.state, 1);
        thread.begun = true;
        ucontext_t start;
        getcontext(&start);
        start.uc_stack.ss_sp = block_->stack(size_t(&thread - &block_->threads[0]));
        start.uc_stack.ss_size = stack_bytes;
        start.uc_link = nullptr;
        makecontext(&start, live, 0);
        setcontext(&start);
    }
    static void live() {
        for (Machine& machine = get();;) {
            try {
                machine.body_(machine.context_);
            } catch (const std::exception& e) {
                machine.failed_ = "thread " + spelled(threadIdx) + ": " + e.what();
            }
            machine.current_->ended = true;
            machine.leave();
        }
    }

    // Until all its threads have ended, or wait for other blocks.
    void run_block() {
        Block& b = *block_;
        blockIdx = b.index;
        while (b.ended + b.at_grid < count_) {
            if (b.ready.empty()) raise(stuck());
            std::swap(b.ready.front(), b.ready[order_.draw(b.ready.size())]);
            const size_t number = b.ready.front();
            b.ready.pop_front();
            Thread& thread = b.threads[number];
            current_ = &thread;
            threadIdx = {unsigned(number % blockDim.x), unsigned(number / blockDim.x % blockDim.y),
                         unsigned(number / blockDim.x / blockDim.y)};
            enter(thread);
            if (!failed_.empty()) raise(failed_);
            b.ended += thread.ended, b.at_barrier += thread.meets == Meets::block;
            b.at_grid += thread.meets == Meets::grid;
            if (b.at_barrier > 0 && b.at_barrier + b.ended == count_) open_barrier();
            const size_t warp = number / warpSize;
            b.gone[warp] += thread.ended, b.waiting[warp] += thread.meets == Meets::warp;
            if (thread.meets == Meets::warp) look_at_warp(warp, thread.place);
            for (size_t i = warp * warpSize; thread.ended && b.waiting[warp] > 0 && i < end_of(warp); ++i) {
                if (b.threads[i].meets == Meets::warp) look_at_warp(warp, b.threads[i].place);
            }
        }
        current_ = nullptr;
        if (b.at_grid > 0 && b.ended > 0)
            raise(std::to_string(b.ended) + " of its threads ended without the grid's barrier");
    }

    size_t end_of(size_t warp) const { return std::min((warp + 1) * warpSize, count_); }

    void go_on(size_t number) {
        block_->threads[number].meets = Meets::nowhere;
        block_->ready.push_back(number);
    }

    // A barrier counts for how many threads the condition holds.
    void open_barrier() {
        uint64_t holds = 0;
        const Place* place = nullptr;
        for (size_t i = 0; i < count_; ++i) {
            if (block_->threads[i].ended) continue;
            if (place == nullptr) place = &block_->threads[i].place;
            if (!(*place == block_->threads[i].place))
                raise("its threads meet in " + spelled(*place) + " and in " + spelled(block_->threads[i].place));
            holds += block_->threads[i].given != 0;
        }
        if (block_->ended > 0)
            raise(std::to_string(block_->ended) + " of its threads ended without " + spelled(*place));
        for (size_t i = 0; i < count_; ++i) {
            if (block_->threads[i].ended) continue;
            block_->threads[i].taken = holds, block_->threads[i].source = int(block_->at_barrier);
            go_on(i);
        }
        block_->at_barrier = 0;
    }

    // Lets the lanes of a mask go on, if all of them that have not ended are there.
    void look_at_warp(size_t warp, const Place place) {
        const int lanes = int(end_of(warp) - warp * warpSize);
        if (place.mask == ~0u && block_->waiting[warp] + block_->gone[warp] < lanes) return;
        std::array<size_t, warpSize> all;
        size_t count = 0;
        uint64_t ballot = 0;
        for (size_t i = warp * warpSize; i < end_of(warp); ++i) {
            const Thread& thread = block_->threads[i];
            if (!(place.mask >> i % warpSize & 1) || thread.ended) continue;
            if (thread.meets != Meets::warp || thread.place.mask != place.mask) return;
            if (!(thread.place == place))
                raise("lanes of a warp meet in " + spelled(place) + " and in " + spelled(thread.place));
            ballot |= uint64_t(thread.given != 0) << i % warpSize;
            all[count++] = i;
        }
        const bool moves = !std::strncmp(place.what, "__shfl", 6);
        for (size_t k = 0; k < count; ++k) {
            Thread& thread = block_->threads[all[k]];
            const size_t from = warp * warpSize + size_t(thread.source);
            thread.taken = ballot;
            if (!moves) continue;
            if (from >= end_of(warp) || block_->threads[from].ended || !(place.mask >> thread.source & 1))
                raise("lane " + std::to_string(all[k] % warpSize) + " reads in " + spelled(place) + " from lane " +
                      std::to_string(thread.source) + ", which is not there");
            thread.taken = block_->threads[from].given;
        }
        block_->waiting[warp] -= int(count);
        for (size_t k = 0; k < count; ++k) go_on(all[k]);
    }

    std::string stuck() const {
        std::string said = "its threads wait for each other for ever";
        std::vector<std::pair<std::string, size_t>> places;
        for (size_t i = 0; i < count_; ++i) {
            if (block_->threads[i].ended) continue;
            const std::string here = spelled(block_->threads[i].place);
            if (places.empty() || places.back().first != here) places.emplace_back(here, 0);
            ++places.back().second;
        }
        for (size_t i = 0; i < std::min<size_t>(places.size(), 4); ++i)
            said += ", " + std::to_string(places[i].second) + " in " + places[i].first;
        return said + "; " + std::to_string(block_->ended) + " of " + std::to_string(count_) + " have ended";
    }
};

}  // namespace emulated
