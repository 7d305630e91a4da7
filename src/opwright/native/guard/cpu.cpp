// An allocator for the check: every tensor on the CPU lies between two bands of known bytes and begins as known bytes,
// so that a write outside it is seen, and a read of what nobody wrote can be made to show.
//
// Python talks to it through C functions; while it is not started, PyTorch's own allocator serves.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <pthread.h>

#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "writes.h"

namespace {

constexpr size_t band = 4096;
constexpr size_t watched = size_t{8} << 20;  // larger tensors are not followed write by write
constexpr size_t frames = size_t{16} << 10;  // of the stack above a loop: the kernel's own variables, and room to spare

struct Block {
    size_t size;
    uint8_t around;
    uint64_t number;
};

// What the chunks of a parallel loop have written to a block so far.
struct Writes {
    uint64_t number;
    std::vector<uint8_t> before;
    std::vector<int32_t> owner;
};

std::mutex guard;
std::map<void*, Block> blocks;
std::map<void*, Writes> writes;
Writes on_stack;
std::vector<BadWrite> outside;
std::vector<BadWrite> twice;
uint8_t inside_byte = 0xff;
uint8_t around_byte = 0xff;
uint64_t next_number = 1;
int64_t live_bytes = 0;
bool started = false;

void examine(void* data, const Block& block) {
    const uint8_t* const user = static_cast<uint8_t*>(data);
    for (size_t i = 0; i < band; ++i) {
        // The nearest byte first, on either side.
        const int64_t end = static_cast<int64_t>(block.size);
        if (user[block.size + i] != block.around) {
            outside.push_back(bad_write(data, block.size, end + static_cast<int64_t>(i)));
            return;
        }
        if (user[-1 - static_cast<int64_t>(i)] != block.around) {
            outside.push_back(bad_write(data, block.size, -1 - static_cast<int64_t>(i)));
            return;
        }
    }
}

void release(void* data) {
    if (data == nullptr) return;
    {
        const std::lock_guard<std::mutex> lock(guard);
        const auto found = blocks.find(data);
        if (found != blocks.end()) {
            examine(data, found->second);
            live_bytes -= static_cast<int64_t>(found->second.size);
            blocks.erase(found);
            writes.erase(data);
        }
    }
    std::free(static_cast<uint8_t*>(data) - band);
}

// What a chunk changed, and whether another chunk had changed it before.
void compare(Writes& w, const uint8_t* now, void* block, size_t size, int64_t chunk) {
    if (std::memcmp(w.before.data(), now, size) == 0) return;
    bool told = false;
    for (size_t i = 0; i < size; ++i) {
        if (now[i] == w.before[i]) continue;
        if (w.owner[i] >= 0 && w.owner[i] != chunk && !told) {
            twice.push_back(bad_write(block, size, static_cast<int64_t>(i)));
            told = true;
        }
        w.owner[i] = static_cast<int32_t>(chunk);
        w.before[i] = now[i];
    }
}

// The bytes from an address to where this thread's stack began.
size_t stack_above(const void* address) {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
    void* lowest = nullptr;
    size_t size = 0;
    pthread_attr_getstack(&attributes, &lowest, &size);
    pthread_attr_destroy(&attributes);
    const uintptr_t end = reinterpret_cast<uintptr_t>(lowest) + size, at = reinterpret_cast<uintptr_t>(address);
    return at >= reinterpret_cast<uintptr_t>(lowest) && at < end ? end - at : 0;
}

class Guarded final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t size) override {
        const c10::Device cpu(c10::DeviceType::CPU);
        if (size == 0) return {nullptr, nullptr, &release, cpu};
        const size_t whole = (size + 2 * band + 63) / 64 * 64;
        if (whole < size) throw std::bad_alloc();
        uint8_t* const raw = static_cast<uint8_t*>(std::aligned_alloc(64, whole));
        if (raw == nullptr) throw std::bad_alloc();
        uint8_t* const data = raw + band;
        const std::lock_guard<std::mutex> lock(guard);
        std::memset(raw, around_byte, band);
        std::memset(data, inside_byte, size);
        std::memset(data + size, around_byte, whole - band - size);
        blocks[data] = {size, around_byte, next_number++};
        live_bytes += static_cast<int64_t>(size);
        return {data, data, &release, cpu};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

Guarded guarded;
c10::Allocator* usual = nullptr;

}  // namespace

extern "C" {

#define OPWRIGHT_API __attribute__((visibility("default")))

// New tensors are filled with the byte `inside` and lie between bytes `around`, from now until opwright_guard_stop.
OPWRIGHT_API void opwright_guard_start(uint8_t inside, uint8_t around) {
    const std::lock_guard<std::mutex> lock(guard);
    inside_byte = inside;
    around_byte = around;
    outside.clear();
    twice.clear();
    if (!started) {
        usual = c10::GetCPUAllocator();
        c10::SetCPUAllocator(&guarded, 255);
        started = true;
    }
}

OPWRIGHT_API void opwright_guard_stop() {
    const std::lock_guard<std::mutex> lock(guard);
    if (started) c10::SetCPUAllocator(usual, 255);
    started = false;
    writes.clear();
}

// The tensors that were written outside of: so many, and of each its address, size and the offset of a byte.
OPWRIGHT_API int64_t opwright_guard_outside(int64_t* found, int64_t room) {
    const std::lock_guard<std::mutex> lock(guard);
    for (const auto& [data, block] : blocks) examine(data, block);
    return hand_over(outside, found, room);
}

// The bytes that two chunks of one parallel loop both wrote to, likewise.
OPWRIGHT_API int64_t opwright_guard_twice(int64_t* found, int64_t room) {
    const std::lock_guard<std::mutex> lock(guard);
    return hand_over(twice, found, room);
}

OPWRIGHT_API int64_t opwright_guard_live() {
    const std::lock_guard<std::mutex> lock(guard);
    return live_bytes;
}

// How the processor treats floating-point numbers: its rounding, and whether it flushes subnormal ones to zero.
OPWRIGHT_API uint32_t opwright_guard_float_mode() {
#ifdef __SSE__
    return _mm_getcsr() & ~uint32_t{0x3f};  // without the flags, which any operation may raise
#else
    return static_cast<uint32_t>(std::fegetround());
#endif
}

OPWRIGHT_API void opwright_guard_usual_float_mode() {
#ifdef __SSE__
    _mm_setcsr(0x1f80);
#else
    std::fesetround(FE_TONEAREST);
#endif
}

// Called by kernel.h's parallel loop in check mode: with -1 before the first chunk, then after each with its number.
// What lies above the loop on the stack belongs to functions that wait for it: only a chunk can change it, through a
// variable that it shares with the others.
OPWRIGHT_API void opwright_guard_between(int64_t chunk, const void* above) {
    const std::lock_guard<std::mutex> lock(guard);
    const size_t size = std::min(frames, stack_above(above));
    const uint8_t* const stack = static_cast<const uint8_t*>(above);
    if (chunk < 0) {
        on_stack = {0, std::vector<uint8_t>(stack, stack + size), std::vector<int32_t>(size, -1)};
    } else if (on_stack.before.size() == size) {
        compare(on_stack, stack, nullptr, size, chunk);
    }
    if (chunk < 0) writes.clear();
    for (const auto& [data, block] : blocks) {
        if (block.size > watched) continue;
        const uint8_t* const now = static_cast<uint8_t*>(data);
        Writes& w = writes[data];
        if (w.number != block.number) {
            w = {block.number, std::vector<uint8_t>(now, now + block.size), std::vector<int32_t>(block.size, -1)};
            continue;
        }
        compare(w, now, data, block.size, chunk);
    }
}

}  // extern "C"
