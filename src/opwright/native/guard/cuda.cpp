// Memory for the check on a GPU: every allocation lies between two bands of known bytes and begins as known bytes
// itself, so that a write beside it and a read before a write both show. It is slow: each step waits for the GPU.
#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "writes.h"

namespace {

constexpr size_t band = 512;  // and with it PyTorch's alignment

std::mutex guard;
std::map<char*, size_t> live;
std::vector<BadWrite> outside;
uint8_t fill_with = 0, surround_with = 0;

// The first byte of a band that is not as it was; -1 when all are. What surrounds it is read off its far end.
int64_t look(const char* from, bool before) {
    uint8_t bytes[band];
    if (cudaMemcpy(bytes, from, band, cudaMemcpyDeviceToHost) != cudaSuccess) return -1;
    const uint8_t expected = bytes[before ? 0 : band - 1];
    for (size_t i = 0; i < band; ++i) {
        const size_t at = before ? band - 1 - i : i;
        if (bytes[at] != expected) return static_cast<int64_t>(at);
    }
    return -1;
}

void examine(char* address, size_t size) {
    const int64_t before = look(address - band, true), after = look(address + size, false);
    if (before >= 0) outside.push_back(bad_write(address, size, before - static_cast<int64_t>(band)));
    if (after >= 0) outside.push_back(bad_write(address, size, static_cast<int64_t>(size) + after));
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void* opwright_cuda_alloc(ssize_t size, int device, cudaStream_t) {
    const std::lock_guard<std::mutex> lock(guard);
    char* base = nullptr;
    cudaSetDevice(device);
    const size_t bytes = static_cast<size_t>(size);
    if (cudaMalloc(reinterpret_cast<void**>(&base), bytes + 2 * band) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    cudaMemset(base, surround_with, band);
    cudaMemset(base + band, fill_with, bytes);
    cudaMemset(base + band + bytes, surround_with, band);
    cudaDeviceSynchronize();
    live[base + band] = bytes;
    return base + band;
}

__attribute__((visibility("default"))) void opwright_cuda_free(void* address, ssize_t, int device, cudaStream_t) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto found = live.find(static_cast<char*>(address));
    if (found == live.end()) return;
    cudaSetDevice(device);
    cudaDeviceSynchronize();
    examine(found->first, found->second);
    live.erase(found);
    cudaFree(static_cast<char*>(address) - band);
}

// From now on memory begins as bytes `fill` between bands of bytes `around`; what was found before is forgotten.
__attribute__((visibility("default"))) void opwright_guard_start(uint8_t fill, uint8_t around) {
    const std::lock_guard<std::mutex> lock(guard);
    fill_with = fill, surround_with = around;
    outside.clear();
}

// What was written outside the allocations: address, size and offset of each, at most `most` of them.
__attribute__((visibility("default"))) int64_t opwright_guard_outside(int64_t* out, int64_t most) {
    const std::lock_guard<std::mutex> lock(guard);
    cudaDeviceSynchronize();
    for (const auto& [address, size] : live) examine(address, size);
    return hand_over(outside, out, most);
}
}
