// Views of tensors and contiguous copies, by PyTorch's own operators.
#pragma once

#include <opwright/kernel.h>

#pragma GCC visibility push(hidden)

namespace opwright {

// An uninitialised, contiguous tensor on the CPU: empty({2, 3}, DType::Float).
inline Tensor empty(std::initializer_list<int64_t> sizes, DType dtype) {
    Layout layout;
    for (const int64_t n : sizes) layout.size[layout.dim++] = n;
    layout.make_contiguous();
    return empty(layout, dtype);
}

// x itself, or a copy where its elements do not lie side by side.
inline Tensor contiguous(const Tensor& x) {
    return Layout(x).contiguous() ? x : call("aten::contiguous", "", x, torch::headeronly::MemoryFormat::Contiguous);
}

inline Tensor copied(const Tensor& x) {
    return call("aten::clone", "", x, std::optional(torch::headeronly::MemoryFormat::Contiguous));
}

inline Tensor transposed(const Tensor& x) { return call("aten::t", "", x); }

inline Tensor reshaped(const Tensor& x, std::initializer_list<int64_t> sizes) {
    return call("aten::reshape", "", x, std::vector<int64_t>(sizes));
}

inline Tensor narrowed(const Tensor& x, int64_t dimension, int64_t start, int64_t length) {
    return call("aten::narrow", "", x, dimension, start, length);
}

inline Tensor product(const Tensor& a, const Tensor& b) { return call("aten::mm", "", a, b); }

// x Wᵀ + b, rounded once.
inline Tensor projected(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    return call("aten::linear", "", x, weight, bias);
}

inline Tensor sum_of_rows(const Tensor& x) {
    return call("aten::sum", "dim_IntList", x, std::optional(std::vector<int64_t>{0}), false, std::optional<DType>());
}

// Whether an optional argument was given.
inline bool given(const std::optional<Tensor>& x) { return x.has_value() && x->defined(); }

}  // namespace opwright

#pragma GCC visibility pop
