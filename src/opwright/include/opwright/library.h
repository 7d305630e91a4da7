// What a library with operators for C++ begins with: it tells opwright's own C++ what its operators are.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <cstdio>
#include <string>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// What stands in the way of operators that are said in `text`; nothing: they are there.
inline std::string introduce(const char* text, size_t length, const char* name) {
    const auto call = [](const char* op, StableIValue* stack) {
        return torch_call_dispatcher(op, "", stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS;
    };
    StringHandle handle;
    if (torch_new_string_handle(text, length, &handle) != AOTI_TORCH_SUCCESS) return "out of memory";
    StableIValue stack[1] = {torch::stable::detail::from(handle)};
    std::string trouble = std::string("opwright's own C++ is not in this process, or another version of it; load ") +
                          "libopwright_native.so, which lies beside " + name;
    if (call("opwright_native::load", stack)) {
        const auto said = torch::stable::detail::to<StringHandle>(stack[0]);
        size_t size = 0;
        const char* data = nullptr;
        if (torch_string_length(said, &size) == AOTI_TORCH_SUCCESS &&
            torch_string_c_str(said, &data) == AOTI_TORCH_SUCCESS) {
            trouble.assign(data, size);
        }
        torch_delete_string(said);
    }
    if (!trouble.empty()) std::fprintf(stderr, "opwright: %s: %s\n", name, trouble.c_str());
    return trouble;
}

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop

// Introduces the operators of a library when it is loaded, and lets programs ask what stood in the way.
#define OPWRIGHT_LIBRARY(target, text)                                                                     \
    static const std::string& opwright_trouble() {                                                         \
        static const std::string trouble = opwright::ow_inner::introduce(text, sizeof(text) - 1, #target); \
        return trouble;                                                                                    \
    }                                                                                                      \
    static const bool opwright_introduced = opwright_trouble().empty();                                    \
    extern "C" __attribute__((visibility("default"))) const char* opwright_trouble_of_##target() {         \
        (void)opwright_introduced;                                                                         \
        return opwright_trouble().empty() ? nullptr : opwright_trouble().c_str();                          \
    }                                                                                                      \
    static_assert(true, "")
