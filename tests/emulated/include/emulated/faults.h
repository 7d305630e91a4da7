// What the compiler's own checks find in a kernel: an index outside of an array, an address that is not aligned. They
// call these, with where it is.
#pragma once

#include <emulated/threads.h>

#include <cstdio>

namespace emulated {

struct Source {
    const char* file;
    uint32_t line, column;
};

[[noreturn]] inline void fault(const Source& at, const std::string& said) {
    const std::string whole = said + " (" + at.file + ", line " + std::to_string(at.line) + ")";
    if (Machine::get().is_running()) Machine::get().fail(whole);
    std::fprintf(stderr, "outside of a kernel: %s\n", whole.c_str());
    std::abort();
}

}  // namespace emulated

extern "C" {
__attribute__((weak, visibility("hidden"))) void __ubsan_handle_out_of_bounds(const emulated::Source* at, void* index) {
    emulated::fault(*at, "has the index " + std::to_string(reinterpret_cast<intptr_t>(index)) + " beyond an array");
}
__attribute__((weak, visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(const emulated::Source* at, void* to) {
    emulated::fault(*at, to == nullptr ? "takes a null pointer" : "takes at once what is not aligned for that");
}
}
