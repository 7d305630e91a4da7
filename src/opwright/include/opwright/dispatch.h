// From a dtype known at run time to a C++ type.
#pragma once

#include <opwright/tensor.h>

#pragma GCC visibility push(hidden)

namespace opwright {

template <class... T>
struct Types {};

template <class... T, class... U>
constexpr Types<T..., U...> operator+(Types<T...>, Types<U...>) {
    return {};
}

constexpr Types<float, double, Half, BFloat16> floating;
constexpr Types<int8_t, int16_t, int32_t, int64_t, uint8_t> integers;
constexpr Types<bool> boolean;
constexpr Types<Complex<float>, Complex<double>> complex;

// Calls body with a zero of the type that the dtype names; an error when it is none of the types.
//
//     dispatch(floating + integers, dtype(x), [&](auto zero) {
//         using T = decltype(zero);
//         fill(data<T>(out), x.numel());
//     });
template <class First, class... Rest, class Body>
auto dispatch(Types<First, Rest...>, DType dtype, const Body& body) -> decltype(body(First())) {
    if (dtype == dtype_of<First>) return body(First());
    if constexpr (sizeof...(Rest) > 0) {
        return dispatch(Types<Rest...>(), dtype, body);
    } else {
        check(false, "no kernel for ", name(dtype));
        return body(First());
    }
}

// The type to compute in: float for half and bfloat16, which only store; T itself otherwise.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

// Calls body with a zero of the type to compute in: float for tensors of float, half and bfloat16, double for
// double. Enough for map and sum_to, which convert as they load and store, and half the code of a dispatch over all
// four.
template <class Body>
auto compute(const Tensor& x, const Body& body) {
    const DType d = dtype(x);
    if (d == DType::Double) return body(double());
    check(d == DType::Float || d == DType::Half || d == DType::BFloat16, "no kernel for ", name(d));
    return body(float());
}

}  // namespace opwright

#pragma GCC visibility pop
