// PyTorch's own operators by their names, through its stable ABI: aten::mm(a, b) is call("aten::mm", "", a, b). For any
// other, `call` takes all arguments of the schema. What takes a number that may be of any type (add's alpha, elu's) has
// no way through that ABI; a file built with abi="aten" can use at::Tensor and all of PyTorch instead.
#pragma once

#include <opwright/kernel.h>

#pragma GCC visibility push(hidden)

namespace opwright::ow_inner {

// A tensor of the same memory with another layout, which begins so many elements later. Who asks the dispatcher for it
// waits half a microsecond.
inline Tensor relaid(const Tensor& x, const Layout& layout, int64_t later = 0) {
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch__reinterpret_tensor(x.get(), layout.dim, layout.size, layout.stride, later, &made));
    return Tensor(made);
}

}  // namespace opwright::ow_inner

namespace opwright::aten {

using Sizes = std::vector<int64_t>;
using Tensors = std::vector<Tensor>;

// Products.
inline Tensor mm(const Tensor& a, const Tensor& b) { return call("aten::mm", "", a, b); }
inline Tensor bmm(const Tensor& a, const Tensor& b) { return call("aten::bmm", "", a, b); }
inline Tensor matmul(const Tensor& a, const Tensor& b) { return call("aten::matmul", "", a, b); }
inline Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias = {}) {
    return call("aten::linear", "", x, weight, bias);
}

// Views.
inline Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
    Layout layout(x);
    const bool inside = std::min(a, b) >= 0 && std::max(a, b) < layout.dim;
    if (!inside) return call("aten::transpose", "int", x, a, b);
    std::swap(layout.size[a], layout.size[b]), std::swap(layout.stride[a], layout.stride[b]);
    return ow_inner::relaid(x, layout);
}
inline Tensor t(const Tensor& x) { return x.dim() == 2 ? transpose(x, 0, 1) : call("aten::t", "", x); }
inline Tensor permute(const Tensor& x, const Sizes& order) { return call("aten::permute", "", x, order); }
inline Tensor reshape(const Tensor& x, const Sizes& sizes) {
    Layout layout;
    layout.dim = static_cast<int>(std::min<size_t>(sizes.size(), max_dim));
    std::copy_n(sizes.begin(), layout.dim, layout.size);
    layout.make_contiguous();
    const bool known =
        layout.numel() == x.numel() && std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= 0; });
    // What has to be copied, counted or refused is PyTorch's to say.
    if (!known || sizes.size() > max_dim || !Layout(x).contiguous()) return call("aten::reshape", "", x, sizes);
    return ow_inner::relaid(x, layout);
}
inline Tensor expand(const Tensor& x, const Sizes& sizes) { return call("aten::expand", "", x, sizes, false); }
inline Tensor unsqueeze(const Tensor& x, int64_t dim) { return call("aten::unsqueeze", "", x, dim); }
inline Tensor squeeze(const Tensor& x, int64_t dim) { return call("aten::squeeze", "dim", x, dim); }
inline Tensor select(const Tensor& x, int64_t dim, int64_t index) { return call("aten::select", "int", x, dim, index); }
inline Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
    Layout layout(x);
    const bool inside = dim >= 0 && dim < layout.dim && start >= 0 && length >= 0 && start <= layout.size[dim] - length;
    if (!inside) return call("aten::narrow", "", x, dim, start, length);
    layout.size[dim] = length;
    return ow_inner::relaid(x, layout, start * layout.stride[dim]);
}

// Copies.
inline Tensor contiguous(const Tensor& x) {  // x itself where its elements lie side by side
    return Layout(x).contiguous() ? x : call("aten::contiguous", "", x, torch::headeronly::MemoryFormat::Contiguous);
}
inline Tensor clone(const Tensor& x) {
    return call("aten::clone", "", x, std::optional(torch::headeronly::MemoryFormat::Contiguous));
}
inline Tensor to(const Tensor& x, DType dtype) {
    return call("aten::to", "dtype", x, dtype, false, false, std::optional<torch::headeronly::MemoryFormat>());
}
inline void copy_(Tensor& to, const Tensor& from) { call("aten::copy_", "", to, from, false); }
inline void zero_(Tensor& x) { call("aten::zero_", "", x); }
inline Tensor cat(const Tensors& tensors, int64_t dim = 0) { return call("aten::cat", "", tensors, dim); }
inline Tensor stack(const Tensors& tensors, int64_t dim = 0) { return call("aten::stack", "", tensors, dim); }

// Sums and their like, over some dimensions.
inline Tensor sum(const Tensor& x, const Sizes& dims, bool keepdim = false) {
    return call("aten::sum", "dim_IntList", x, std::optional(dims), keepdim, std::optional<DType>());
}
inline Tensor mean(const Tensor& x, const Sizes& dims, bool keepdim = false) {
    return call("aten::mean", "dim", x, std::optional(dims), keepdim, std::optional<DType>());
}
inline Tensor amax(const Tensor& x, const Sizes& dims, bool keepdim = false) {
    return call("aten::amax", "", x, dims, keepdim);
}
inline Tensor amin(const Tensor& x, const Sizes& dims, bool keepdim = false) {
    return call("aten::amin", "", x, dims, keepdim);
}
inline Tensor cumsum(const Tensor& x, int64_t dim) { return call("aten::cumsum", "", x, dim, std::optional<DType>()); }
inline Tensor softmax(const Tensor& x, int64_t dim) {
    return call("aten::softmax", "int", x, dim, std::optional<DType>());
}
inline Tensor log_softmax(const Tensor& x, int64_t dim) {
    return call("aten::log_softmax", "int", x, dim, std::optional<DType>());
}

// Elementwise.
inline Tensor mul(const Tensor& a, const Tensor& b) { return call("aten::mul", "Tensor", a, b); }
inline Tensor div(const Tensor& a, const Tensor& b) { return call("aten::div", "Tensor", a, b); }
inline Tensor exp(const Tensor& x) { return call("aten::exp", "", x); }
inline Tensor log(const Tensor& x) { return call("aten::log", "", x); }
inline Tensor tanh(const Tensor& x) { return call("aten::tanh", "", x); }
inline Tensor sigmoid(const Tensor& x) { return call("aten::sigmoid", "", x); }
inline Tensor relu(const Tensor& x) { return call("aten::relu", "", x); }
inline Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
    return call("aten::where", "self", condition, a, b);
}

// Indices and order.
inline Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
    return call("aten::index_select", "", x, dim, index);
}
inline Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
    return call("aten::gather", "", x, dim, index, false);
}
inline std::tuple<Tensor, Tensor> sort(const Tensor& x, int64_t dim, bool descending = false) {
    return call<std::tuple<Tensor, Tensor>>("aten::sort", "", x, dim, descending);
}
inline std::tuple<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true) {
    return call<std::tuple<Tensor, Tensor>>("aten::topk", "", x, k, dim, largest, true);
}

}  // namespace opwright::aten

#pragma GCC visibility pop
