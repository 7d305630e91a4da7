// The arithmetic of one hidden unit on the GPU, in float or double.
#pragma once

#include <opwright/kernel.h>

namespace lltm {

// i and o after their functions, g before it: elu' of a rounded elu would have lost its digits near -1.
template <class C>
struct Gates {
    C i, o, g;
};

__device__ __forceinline__ float expm1_of(float x) { return ::expm1f(x); }
__device__ __forceinline__ double expm1_of(double x) { return ::expm1(x); }
__device__ __forceinline__ float exp_of(float x) { return ::expf(x); }
__device__ __forceinline__ double exp_of(double x) { return ::exp(x); }
__device__ __forceinline__ float tanh_of(float x) { return ::tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return ::tanh(x); }

template <class C>
__device__ __forceinline__ Gates<C> activate(C i, C o, C g) {
    return {simd::sigmoid(i), simd::sigmoid(o), g};
}

template <class C>
__device__ __forceinline__ C elu_of(C x) {
    return x > C(0) ? x : expm1_of(x);
}

// From the gradients of h and c after the step to those of the pre-activations and of c before it.
template <class C>
__device__ __forceinline__ Gates<C> gradients(const Gates<C>& z, C c, C d_h, C& d_c) {
    const C t = tanh_of(c);
    d_c += d_h * z.o * (C(1) - t * t);
    return {d_c * elu_of(z.g) * z.i * (C(1) - z.i), d_h * t * z.o * (C(1) - z.o),
            d_c * z.i * (z.g > C(0) ? C(1) : exp_of(z.g))};
}

// A tensor whose elements are T's or, where the state is kept wider, C's; null for none.
template <class T, class C>
struct Either {
    T* narrow = nullptr;
    C* wide = nullptr;

    Either() = default;
    explicit Either(const Tensor& x) {
        if (!x.defined()) return;
        if (dtype(x) == dtype_of<T>) {
            narrow = static_cast<T*>(const_cast<void*>(x.const_data_ptr()));
        } else {
            check(dtype(x) == dtype_of<C>, "lltm: the state must be ", name(dtype_of<T>), " or ", name(dtype_of<C>),
                  ", got ", name(dtype(x)));
            wide = static_cast<C*>(const_cast<void*>(x.const_data_ptr()));
        }
    }

    __device__ __forceinline__ explicit operator bool() const { return narrow || wide; }
    __device__ __forceinline__ C operator[](int64_t i) const { return narrow ? static_cast<C>(narrow[i]) : wide[i]; }
    __device__ __forceinline__ void put(int64_t i, C value) const {
        if (narrow) {
            narrow[i] = static_cast<T>(value);
        } else {
            wide[i] = value;
        }
    }
};

}  // namespace lltm
