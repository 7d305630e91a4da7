// Arguments and results of kernels on their way across PyTorch's stable ABI. In files built with abi="aten" they may be
// of ATen's types: at::Tensor, at::TensorList, at::IntArrayRef and the like.
#pragma once

#include <opwright/tensor.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <tuple>
#ifdef OPWRIGHT_ATEN
#include <ATen/core/Tensor.h>
#endif

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// How a type crosses: as which one, and the ways there and back. Most cross as they are.
template <class T>
struct Crossing {
    using Stable = T;
    static const T& out(const T& value) { return value; }
    static T in(T value) { return value; }
};

template <class T>
using Stable = typename Crossing<T>::Stable;

#ifdef OPWRIGHT_ATEN

// A handle of the stable ABI points to an at::Tensor.
template <>
struct Crossing<at::Tensor> {
    using Stable = Tensor;
    static Tensor out(const at::Tensor& x) { return Tensor(reinterpret_cast<AtenTensorHandle>(new at::Tensor(x))); }
    static at::Tensor in(const Tensor& x) { return *reinterpret_cast<const at::Tensor*>(x.get()); }
};

template <class T>
struct Crossing<std::optional<T>> {
    using Stable = std::optional<ow_inner::Stable<T>>;
    static Stable out(const std::optional<T>& x) { return x ? Stable(Crossing<T>::out(*x)) : std::nullopt; }
    static std::optional<T> in(const Stable& x) { return x ? std::optional<T>(Crossing<T>::in(*x)) : std::nullopt; }
};

template <class T>
struct Crossing<std::vector<T>> {
    using Stable = std::vector<ow_inner::Stable<T>>;
    static Stable out(const std::vector<T>& from) {
        Stable to;
        for (const auto& each : from) to.push_back(Crossing<T>::out(each));
        return to;
    }
    static std::vector<T> in(const Stable& from) {
        std::vector<T> to;
        for (const auto& each : from) to.push_back(Crossing<T>::in(each));
        return to;
    }
};

#endif

// What is kept of an argument while the function runs. A reference to somebody's list keeps that list.
template <class T>
struct Owner {
    using type = T;
};
#ifdef OPWRIGHT_ATEN
template <class T>
struct Owner<c10::ArrayRef<T>> {
    using type = std::vector<T>;
};
template <class T>
struct Owner<std::optional<c10::ArrayRef<T>>> {
    using type = std::optional<std::vector<T>>;
};
template <class T>
struct Owner<at::OptionalArrayRef<T>> {
    using type = std::optional<std::vector<T>>;
};
#endif
template <class A>
using Owned = typename Owner<std::decay_t<A>>::type;

template <class T>
constexpr bool is_tensor = std::is_same_v<Stable<T>, Tensor>;
template <class T>
constexpr bool is_list_of_tensors = std::is_same_v<Stable<std::decay_t<T>>, std::vector<Tensor>>;
template <>
inline constexpr bool is_list_of_tensors<void> = false;

// What PyTorch hands over, to be owned. PyTorch's own conversion of a text loses it, up to version 2.14.
template <class T>
T taken(StableIValue from) {
    if constexpr (std::is_same_v<T, std::string>) {
        const auto handle = torch::stable::detail::to<StringHandle>(from);
        size_t length;
        const char* data;
        TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
        TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
        std::string text(data, length);
        TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
        return text;
    } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
        const auto inside = torch::stable::detail::to<StableIValue*>(from);
        if (!inside) return std::nullopt;
        T text = taken<std::string>(*inside);
        delete inside;
        return text;
    } else {
        return torch::stable::detail::to<T>(from);
    }
}

// An argument while the function runs, which may take it by value or by reference: Tensor& for what it writes to.
template <class A>
struct Argument {
    Owned<A> value;
    explicit Argument(StableIValue from) : value(Crossing<Owned<A>>::in(taken<Stable<Owned<A>>>(from))) {}
    decltype(auto) pass() {
        if constexpr (std::is_same_v<Owned<A>, std::decay_t<A>>) {
            return static_cast<A&&>(value);
        } else {
            return std::decay_t<A>(value);
        }
    }
};

// The first tensor of a call, on whose device a kernel for GPUs runs. The stack owns its handle.
template <class... A>
AtenTensorHandle first_tensor(const char* op, const StableIValue* stack) {
    constexpr bool tensor[] = {is_tensor<std::decay_t<A>>..., false};
    size_t first = 0;
    while (first < sizeof...(A) && !tensor[first]) ++first;
    check(first < sizeof...(A), op, ": a CUDA kernel must take a tensor, whose device it runs on");
    return torch::stable::detail::to<AtenTensorHandle>(stack[first]);
}

template <class T>
StableIValue returned(const T& result) {
    return torch::stable::detail::from(Crossing<T>::out(result));
}

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop
