// Tensors: their dtype, shape and memory, and new ones.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#define OPWRIGHT_INLINE inline __attribute__((always_inline))

// What does not depend on a kernel. A build compiles it once, in common.cpp (with OPWRIGHT_COMMON), and kernels against
// that (with OPWRIGHT_APART); with neither it is code like any other.
#ifdef OPWRIGHT_COMMON
#define OPWRIGHT_NOINLINE __attribute__((noinline))
#else
#define OPWRIGHT_NOINLINE inline __attribute__((noinline))
#endif

// Everything is hidden: two builds of one operator may live in a process, and neither may bind to the other's code.
#pragma GCC visibility push(hidden)

namespace opwright {

using torch::stable::Tensor;
using DType = torch::headeronly::ScalarType;
using Half = c10::Half;
using BFloat16 = c10::BFloat16;
template <class T>
using Complex = c10::complex<T>;

// Which gradients a rung was asked for; absent, all of them. An unwanted one is returned as Tensor(), undefined.
using Wanted = std::optional<std::vector<bool>>;
bool wants(const Wanted& wanted, size_t which);

// Whether an optional tensor was given.
inline bool given(const std::optional<Tensor>& x) { return x.has_value() && x->defined(); }

// PyTorch's own limit for elementwise operators.
constexpr int max_dim = 64;

// The shape of a tensor in an error message: (2, 3), (4,), ().
struct shape {
    explicit shape(const Tensor& x) : x(x) {}
    const Tensor& x;
};

// Not for kernels. They see it all the same, since kernel.h opens opwright to them: its name must be nobody else's,
// which `detail` is not.
namespace ow_inner {

// A piece of an error message, put into words only when there is an error.
struct Part {
    enum { text, number, real, tensor } kind;
    const void* pointer = nullptr;
    int64_t value = 0;
    double fraction = 0;

    Part(const char* t) : kind(text), pointer(t) {}
    Part(const shape& s) : kind(tensor), pointer(&s.x) {}
    template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
    Part(T n) : kind(number), value(static_cast<int64_t>(n)) {}
    Part(double x) : kind(real), fraction(x) {}
};

[[noreturn]] __attribute__((noinline, cold)) inline void fail(std::initializer_list<Part> parts) {
    std::string message;
    for (const Part& p : parts) {
        if (p.kind == Part::text) message += static_cast<const char*>(p.pointer);
        if (p.kind == Part::number) message += std::to_string(p.value);
        if (p.kind == Part::real) message += std::to_string(p.fraction);
        if (p.kind != Part::tensor) continue;
        const Tensor& x = *static_cast<const Tensor*>(p.pointer);
        message += '(';
        for (int64_t d = 0; d < x.dim(); ++d) message += (d ? ", " : "") + std::to_string(x.size(d));
        message += x.dim() == 1 ? ",)" : ")";
    }
    throw std::runtime_error(message);
}

}  // namespace ow_inner

// Throws when `ok` is false. The parts, texts, numbers and shapes, say what is wrong: operator, argument, what it must
// be, what it got.
//
//     check(weight.dim() == 2, "linear: weight must have shape [n, k], got ", shape(weight));
template <class... T>
OPWRIGHT_INLINE void check(bool ok, const T&... parts) {
    if (__builtin_expect(!ok, false)) ow_inner::fail({ow_inner::Part(parts)...});
}

inline bool wants(const Wanted& wanted, size_t which) {
    check(!wanted || which < wanted->size(), "wanted has too few entries");
    return !wanted || (*wanted)[which];
}

namespace ow_inner {

// PyTorch gives its dtypes numbers that only it may know; asked once, they make a table each way.
struct Codes {
    static constexpr int size = 128;
    std::array<DType, size> dtype;
    std::array<int32_t, size> code;

    Codes() {
        dtype.fill(DType::Undefined);
        code.fill(-1);
        set(aoti_torch_dtype_float32(), DType::Float), set(aoti_torch_dtype_float64(), DType::Double);
        set(aoti_torch_dtype_float16(), DType::Half), set(aoti_torch_dtype_bfloat16(), DType::BFloat16);
        set(aoti_torch_dtype_int8(), DType::Char), set(aoti_torch_dtype_int16(), DType::Short);
        set(aoti_torch_dtype_int32(), DType::Int), set(aoti_torch_dtype_int64(), DType::Long);
        set(aoti_torch_dtype_uint8(), DType::Byte), set(aoti_torch_dtype_uint16(), DType::UInt16);
        set(aoti_torch_dtype_uint32(), DType::UInt32), set(aoti_torch_dtype_uint64(), DType::UInt64);
        set(aoti_torch_dtype_bool(), DType::Bool), set(aoti_torch_dtype_complex32(), DType::ComplexHalf);
        set(aoti_torch_dtype_complex64(), DType::ComplexFloat);
        set(aoti_torch_dtype_complex128(), DType::ComplexDouble);
    }

    static const Codes& get() {
        static const Codes codes;
        return codes;
    }

  private:
    void set(int32_t c, DType d) {
        dtype[static_cast<size_t>(c) % size] = d;
        code[static_cast<size_t>(d) % size] = c;
    }
};

}  // namespace ow_inner

inline DType dtype(const Tensor& x) {
    int32_t code;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &code));
    return ow_inner::Codes::get().dtype[static_cast<size_t>(code) % ow_inner::Codes::size];
}

// The name Python has for a dtype, for error messages.
inline const char* name(DType d) {
    switch (d) {
        case DType::Float:
            return "float32";
        case DType::Double:
            return "float64";
        case DType::Half:
            return "float16";
        case DType::BFloat16:
            return "bfloat16";
        case DType::Char:
            return "int8";
        case DType::Short:
            return "int16";
        case DType::Int:
            return "int32";
        case DType::Long:
            return "int64";
        case DType::Byte:
            return "uint8";
        case DType::UInt16:
            return "uint16";
        case DType::UInt32:
            return "uint32";
        case DType::UInt64:
            return "uint64";
        case DType::Bool:
            return "bool";
        case DType::ComplexHalf:
            return "complex32";
        case DType::ComplexFloat:
            return "complex64";
        case DType::ComplexDouble:
            return "complex128";
        default:
            return "another dtype";
    }
}

namespace ow_inner {

template <class T>
constexpr DType dtype_for() {
    if constexpr (std::is_same_v<T, float>) return DType::Float;
    if constexpr (std::is_same_v<T, double>) return DType::Double;
    if constexpr (std::is_same_v<T, Half>) return DType::Half;
    if constexpr (std::is_same_v<T, BFloat16>) return DType::BFloat16;
    if constexpr (std::is_same_v<T, bool>) return DType::Bool;
    if constexpr (std::is_same_v<T, Complex<float>>) return DType::ComplexFloat;
    if constexpr (std::is_same_v<T, Complex<double>>) return DType::ComplexDouble;
    if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
        return sizeof(T) == 1 ? DType::Char : sizeof(T) == 2 ? DType::Short : sizeof(T) == 4 ? DType::Int : DType::Long;
    }
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        return sizeof(T) == 1   ? DType::Byte
               : sizeof(T) == 2 ? DType::UInt16
               : sizeof(T) == 4 ? DType::UInt32
                                : DType::UInt64;
    }
    return DType::Undefined;
}

}  // namespace ow_inner

// The dtype of tensors that hold T's: dtype_of<float> is DType::Float.
template <class T>
constexpr DType dtype_of = ow_inner::dtype_for<std::remove_cv_t<T>>();

// The first element: data<const float>(x) to read, data<float>(out) to write.
template <class T>
T* data(const Tensor& x) {
    check(dtype(x) == dtype_of<T>, "data: the tensor must be ", name(dtype_of<T>), ", got ", name(dtype(x)));
    if constexpr (std::is_const_v<T>) {
        return static_cast<T*>(x.const_data_ptr());
    } else {
        return static_cast<T*>(x.mutable_data_ptr());
    }
}

// A tensor of rank N with any strides, indexed from a loop: auto a = strided<const float, 2>(x); a(i, j).
// Indices are checked in builds with OPWRIGHT_DEBUG.
template <class T, int N>
class Strided {
  public:
    explicit Strided(const Tensor& x) : data_(data<T>(x)) {
        check(x.dim() == N, "strided: the tensor must have ", N, " dimensions, got ", shape(x));
        for (int d = 0; d < N; ++d) size_[d] = x.size(d), stride_[d] = x.stride(d);
    }

    int64_t size(int d) const { return size_[d]; }
    int64_t stride(int d) const { return stride_[d]; }

    template <class... Index>
    T& operator()(Index... index) const {
        static_assert(sizeof...(Index) == N, "one index a dimension");
        const int64_t at[N + 1] = {static_cast<int64_t>(index)..., 0};
        int64_t offset = 0;
        for (int d = 0; d < N; ++d) {
#ifdef OPWRIGHT_DEBUG
            check(at[d] >= 0 && at[d] < size_[d], "index ", at[d], " is out of bounds for dimension ", d, " of size ",
                  size_[d]);
#endif
            offset += at[d] * stride_[d];
        }
        return data_[offset];
    }

  private:
    T* data_;
    int64_t size_[N + 1];
    int64_t stride_[N + 1];
};

template <class T, int N>
Strided<T, N> strided(const Tensor& x) {
    return Strided<T, N>(x);
}

}  // namespace opwright

#pragma GCC visibility pop
