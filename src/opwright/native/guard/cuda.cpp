// Memory for the check on a GPU: every allocation lies between two bands of known bytes and begins as known bytes
// itself, so that a write beside it and a read before a write both show. It is slow: each step waits for the GPU.
#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "writes.h"

namespace {

constexpr size_t band = 4096;  // a multiple of PyTorch's alignment

struct Block {
    size_t size;
    uint8_t around;
};

std::mutex guard;
std::map<char*, Block> live;
std::vector<BadWrite> outside;
uint8_t fill_with = 0, surround_with = 0;
size_t held = 0, allowed = std::numeric_limits<size_t>::max();

// A device is the current one for as long as this lives: PyTorch does not expect an allocator to change it.
class On {
  public:
    explicit On(int device) {
        if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
        cudaSetDevice(device);
    }
    ~On() { cudaSetDevice(before_); }

  private:
    int before_ = 0;
};

// The first byte of a band that is not as it was, which it then is again; -1 when all are. A band may have been written
// over as a whole, with equal bytes.
int64_t look(char* from, bool before, uint8_t around) {
    uint8_t bytes[band];
    if (cudaMemcpy(bytes, from, band, cudaMemcpyDeviceToHost) != cudaSuccess) return -1;
    for (size_t i = 0; i < band; ++i) {
        const size_t at = before ? band - 1 - i : i;
        if (bytes[at] == around) continue;
        cudaMemset(from, around, band);
        return static_cast<int64_t>(at);
    }
    return -1;
}

void examine(char* address, const Block& block) {
    const int64_t before = look(address - band, true, block.around);
    const int64_t after = look(address + block.size, false, block.around), size = static_cast<int64_t>(block.size);
    if (before >= 0) outside.push_back(bad_write(address, block.size, before - static_cast<int64_t>(band)));
    if (after >= 0) outside.push_back(bad_write(address, block.size, size + after));
}

// What a graph is captured from must live as long as the graph, which only PyTorch's own allocator sees to.
bool is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
    cudaGetLastError();  // it asked about the default stream while another one is captured
    return true;
}

[[noreturn]] void out_of_memory(size_t bytes) {
    throw std::runtime_error("CUDA out of memory: " + std::to_string(bytes) + " bytes more than the " +
                             std::to_string(held) + " that are watched");
}

}  // namespace

extern "C" {

// Raises rather than to give nothing: PyTorch takes a null pointer for memory.
__attribute__((visibility("default"))) void* opwright_cuda_alloc(ssize_t size, int device, cudaStream_t stream) {
    const std::lock_guard<std::mutex> lock(guard);
    if (is_captured(stream)) throw std::runtime_error("memory that is watched cannot be captured in a CUDA graph");
    const On on(device);
    const size_t bytes = static_cast<size_t>(size);
    if (bytes > allowed || held > allowed - bytes) out_of_memory(bytes);
    char* base = nullptr;
    if (cudaMalloc(reinterpret_cast<void**>(&base), bytes + 2 * band) != cudaSuccess) {
        cudaGetLastError();
        out_of_memory(bytes);
    }
    cudaMemset(base, surround_with, band);
    cudaMemset(base + band, fill_with, bytes);
    cudaMemset(base + band + bytes, surround_with, band);
    cudaDeviceSynchronize();
    live[base + band] = {bytes, surround_with};
    held += bytes;
    return base + band;
}

__attribute__((visibility("default"))) void opwright_cuda_free(void* address, ssize_t, int device, cudaStream_t) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto found = live.find(static_cast<char*>(address));
    if (found == live.end()) return;
    const On on(device);
    cudaDeviceSynchronize();
    examine(found->first, found->second);
    held -= found->second.size;
    live.erase(found);
    cudaFree(static_cast<char*>(address) - band);
}

// From now on memory begins as bytes `fill` between bands of bytes `around`; what was found before is forgotten.
__attribute__((visibility("default"))) void opwright_guard_start(uint8_t fill, uint8_t around) {
    const std::lock_guard<std::mutex> lock(guard);
    fill_with = fill, surround_with = around;
    outside.clear();
}

// No more than so many bytes at a time from now on.
__attribute__((visibility("default"))) void opwright_guard_limit(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(guard);
    allowed = bytes;
}

// What was written outside the allocations: address, size and offset of each, at most `most` of them.
__attribute__((visibility("default"))) int64_t opwright_guard_outside(int64_t* out, int64_t most) {
    const std::lock_guard<std::mutex> lock(guard);
    cudaDeviceSynchronize();
    for (const auto& [address, block] : live) examine(address, block);
    return hand_over(outside, out, most);
}
}
