// An allocator for the check: every tensor on the CPU lies between two bands of known bytes and begins as known bytes,
// so that a write outside it is seen, and a read of what nobody wrote can be made to show.
//
// Python talks to it through C functions; while it is not started, PyTorch's own allocator serves.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

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

namespace {

constexpr size_t band = 4096;
constexpr size_t watched = size_t{8} << 20;  // larger tensors are not followed write by write

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

struct Finding {
    void* block;
    size_t size;
    int64_t offset;
};

std::mutex guard;
std::map<void*, Block> blocks;
std::map<void*, Writes> writes;
std::vector<Finding> outside;
std::vector<Finding> twice;
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
            outside.push_back({data, block.size, end + static_cast<int64_t>(i)});
            return;
        }
        if (user[-1 - static_cast<int64_t>(i)] != block.around) {
            outside.push_back({data, block.size, -1 - static_cast<int64_t>(i)});
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
    int64_t count = 0;
    for (const Finding& f : outside) {
        if (count == room) break;
        found[3 * count] = reinterpret_cast<int64_t>(f.block);
        found[3 * count + 1] = static_cast<int64_t>(f.size);
        found[3 * count++ + 2] = f.offset;
    }
    outside.clear();
    return count;
}

// The places that two chunks of one parallel loop wrote to, likewise.
OPWRIGHT_API int64_t opwright_guard_twice(int64_t* found, int64_t room) {
    const std::lock_guard<std::mutex> lock(guard);
    int64_t count = 0;
    for (const Finding& f : twice) {
        if (count == room) break;
        found[3 * count] = reinterpret_cast<int64_t>(f.block);
        found[3 * count + 1] = static_cast<int64_t>(f.size);
        found[3 * count++ + 2] = f.offset;
    }
    twice.clear();
    return count;
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
OPWRIGHT_API void opwright_guard_between(int64_t chunk) {
    const std::lock_guard<std::mutex> lock(guard);
    if (chunk < 0) writes.clear();
    for (const auto& [data, block] : blocks) {
        if (block.size > watched) continue;
        const uint8_t* const now = static_cast<uint8_t*>(data);
        Writes& w = writes[data];
        if (w.number != block.number) {
            w = {block.number, std::vector<uint8_t>(now, now + block.size), std::vector<int32_t>(block.size, -1)};
            continue;
        }
        if (std::memcmp(w.before.data(), now, block.size) == 0) continue;
        bool told = false;
        for (size_t i = 0; i < block.size; ++i) {
            if (now[i] == w.before[i]) continue;
            if (w.owner[i] >= 0 && w.owner[i] != chunk && !told) {
                twice.push_back({data, block.size, static_cast<int64_t>(i)});
                told = true;
            }
            w.owner[i] = static_cast<int32_t>(chunk);
            w.before[i] = now[i];
        }
    }
}

}  // extern "C"
