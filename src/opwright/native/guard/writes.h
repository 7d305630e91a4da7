// Where somebody wrote and should not have, as both guards find it and Python reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// A byte of an allocation, or near it.
struct BadWrite {
    int64_t address, size, offset;
};

inline BadWrite bad_write(const void* address, size_t size, int64_t offset) {
    return {reinterpret_cast<int64_t>(address), static_cast<int64_t>(size), offset};
}

// Hands over at most `most` writes, three numbers each, and forgets all; how many there were to hand over.
inline int64_t hand_over(std::vector<BadWrite>& writes, int64_t* out, int64_t most) {
    int64_t count = 0;
    for (const BadWrite& p : writes) {
        if (count == most) break;
        out[3 * count] = p.address, out[3 * count + 1] = p.size, out[3 * count + 2] = p.offset;
        ++count;
    }
    writes.clear();
    return count;
}
