// Functions of rows: what stands along the last dimension, as numbers side by side, whatever the strides and the dtype
// of the tensors. Half and bfloat16 become float on the way; loops in the function become vectors.
#pragma once

#include <opwright/call.h>
#include <opwright/convert.h>
#include <opwright/layout.h>

#include <limits>
#include <memory>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// One operand: where its rows begin, and how its elements become numbers.
struct RowOperand {
    char* data;
    Layout layout;                     // strides in bytes, of the shape that all operands share
    int64_t bytes, stride, pitch = 0;  // of an element; along a row; from row to row where `even`
    bool even = true;
    Conversion convert;

    bool direct() const { return stride == bytes && !convert.widen; }
    int64_t offset(int64_t row) const;
};

struct RowWork {
    using Body = void (*)(const void* function, char* out, const char* const* in, int64_t n);
    Body body;
    const void* function;
    int64_t rows, length, number;  // of rows, of elements in one, of bytes of a number
    RowOperand out;                // with one element a row where `folds`
    RowOperand* in;
    int count;
    bool folds;

    void run() const;

  private:
    void run(int64_t begin, int64_t end) const;
};

RowOperand row_operand(const Tensor& x, const Layout& shape, DType numbers);
Layout row_shape(const Layout* inputs, int count);
Layout without_last(const Layout& shape);

template <class F>
struct RowSignature : RowSignature<decltype(&F::operator())> {};
template <class F, class R, class A, class... Rest>
struct RowSignature<R (F::*)(A, Rest...) const> {
    using Number = std::remove_const_t<std::remove_pointer_t<A>>;
    using Result = R;
};

template <class F, class C, class I>
struct RowBody;
template <class F, class C, size_t... I>
struct RowBody<F, C, std::index_sequence<I...>> {
    static OPWRIGHT_INLINE void run(const void* function, char* out, const char* const* in, int64_t n) {
        const F& f = *static_cast<const F*>(function);
        C* to = reinterpret_cast<C*>(out);
        if constexpr (std::is_void_v<typename RowSignature<F>::Result>) {
            f(to, reinterpret_cast<const C*>(in[I])..., n);
        } else {
            *to = f(reinterpret_cast<const C*>(in[I])..., n);
        }
    }
};

template <class F, class... Input>
Tensor over_rows(const F& function, const Tensor& first, const Input&... others) {
    using Signature = RowSignature<F>;
    using C = typename Signature::Number;
    static_assert(std::is_same_v<C, float> || std::is_same_v<C, double>, "rows are of float or double");
    constexpr bool folds = !std::is_void_v<typename Signature::Result>;
    constexpr int count = 1 + sizeof...(Input);
    const Layout layouts[] = {Layout(first), Layout(others)...};
    const Layout shape = row_shape(layouts, count);
    RowOperand in[] = {row_operand(first, shape, dtype_of<C>), row_operand(others, shape, dtype_of<C>)...};
    Tensor out = empty(folds ? without_last(shape) : shape, dtype(first));
    const int64_t length = shape.dim ? shape.size[shape.dim - 1] : 1;
    Layout outer = without_last(shape);
    using Body = RowBody<F, C, std::make_index_sequence<count>>;
    RowWork{best<Body, const void*, char*, const char* const*, int64_t>(), &function, outer.numel(), length, sizeof(C),
            row_operand(out, folds ? outer : shape, dtype_of<C>),          in,        count,         folds}
        .run();
    return out;
}

}  // namespace ow_inner

namespace ow_inner {

// Joins f(0) … f(n - 1), beginning with `start`, by running values that become vectors.
template <class C, class F, class Join>
OPWRIGHT_INLINE C join_over(int64_t n, C start, const F& f, const Join& join) {
    constexpr int64_t lanes = 32;
    C all = start;
    int64_t i = 0;
    if (n >= lanes) {
        C lane[lanes];
        for (C& each : lane) each = start;
        for (; i + lanes <= n; i += lanes) {
            OPWRIGHT_INDEPENDENT
            for (int64_t k = 0; k < lanes; ++k) lane[k] = join(lane[k], static_cast<C>(f(i + k)));
        }
        for (int64_t m = lanes / 2; m > 0; m /= 2) {
            for (int64_t k = 0; k < m; ++k) lane[k] = join(lane[k], lane[k + m]);
        }
        all = lane[0];
    }
    for (; i < n; ++i) all = join(all, static_cast<C>(f(i)));
    return all;
}

}  // namespace ow_inner

// f(0) + f(1) + … + f(n - 1), in double.
//
//     const double squares = sum_over(n, [&](int64_t i) { return x[i] * x[i]; });
template <class F>
OPWRIGHT_INLINE double sum_over(int64_t n, const F& f) {
    return ow_inner::join_over(n, 0.0, f, [](double a, double b) { return a + b; });
}

// The largest of f(0) … f(n - 1), and -infinity of nothing. A NaN is passed over.
template <class F>
OPWRIGHT_INLINE auto max_over(int64_t n, const F& f) {
    using C = std::decay_t<decltype(f(n))>;
    static_assert(std::is_floating_point_v<C>, "max_over: the function gives float or double");
    return ow_inner::join_over(n, -std::numeric_limits<C>::infinity(), f, [](C a, C b) { return b > a ? b : a; });
}

// A tensor made row by row: function(out, x, …, n) writes the n numbers of a row from those of the operands, which are
// broadcast together. The numbers are float, or double for tensors of that. The result has the dtype of x, and the
// strides of an elementwise one.
//
//     map_rows([](C* out, const C* x, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = x[i] / x[0]; }, x);
template <class F, class... Input>
Tensor map_rows(const F& function, const Tensor& x, const Input&... others) {
    static_assert(std::is_void_v<typename ow_inner::RowSignature<F>::Result>, "map_rows: the function writes to `out`");
    return ow_inner::over_rows(function, x, others...);
}

// A number for each row: function(x, …, n) gives it, for rows of no numbers too. The result has one dimension less, and
// is contiguous.
//
//     fold_rows([](const C* x, int64_t n) { return max_over(n, [&](int64_t i) { return x[i]; }); }, x);
template <class F, class... Input>
Tensor fold_rows(const F& function, const Tensor& x, const Input&... others) {
    static_assert(!std::is_void_v<typename ow_inner::RowSignature<F>::Result>, "fold_rows: the function returns");
    return ow_inner::over_rows(function, x, others...);
}

#ifndef OPWRIGHT_APART

namespace ow_inner {

OPWRIGHT_NOINLINE int64_t RowOperand::offset(int64_t row) const {
    if (even) return row * pitch;
    int64_t at = 0;
    for (int d = layout.dim - 1; d >= 0; --d) at += row % layout.size[d] * layout.stride[d], row /= layout.size[d];
    return at;
}

OPWRIGHT_NOINLINE Layout row_shape(const Layout* inputs, int count) { return result_layout(inputs, count, false); }

OPWRIGHT_NOINLINE Layout without_last(const Layout& shape) {
    Layout outer = shape;
    if (outer.dim) --outer.dim;
    outer.make_contiguous();
    return outer;
}

// `shape` may lack the last dimension, which then has one element.
OPWRIGHT_NOINLINE RowOperand row_operand(const Tensor& x, const Layout& shape, DType numbers) {
    RowOperand made;
    const Layout own(x);
    const auto bytes = static_cast<int64_t>(x.element_size());
    made.data = static_cast<char*>(const_cast<void*>(x.const_data_ptr()));
    made.layout.dim = std::max(0, shape.dim - 1);
    for (int d = 0; d < made.layout.dim; ++d) {
        made.layout.size[d] = shape.size[d];
        made.layout.stride[d] = broadcast_stride(own, shape, d) * bytes;
    }
    for (int d = made.layout.dim - 1, inner = -1; d >= 0; --d) {
        if (made.layout.size[d] == 1) continue;
        const int64_t stride = made.layout.stride[d];
        if (inner < 0) made.pitch = stride;
        made.even = made.even && (inner < 0 || stride == made.layout.stride[inner] * made.layout.size[inner]);
        inner = d;
    }
    made.bytes = bytes;
    made.stride = shape.dim ? broadcast_stride(own, shape, shape.dim - 1) * bytes : bytes;
    if (shape.dim && shape.size[shape.dim - 1] == 1) made.stride = bytes;
    made.convert = conversion(dtype(x), numbers);
    return made;
}

OPWRIGHT_NOINLINE void RowWork::run() const {
    parallel(0, rows, grain / std::max<int64_t>(length, 1) + 1, [&](int64_t begin, int64_t end) { run(begin, end); });
}

OPWRIGHT_NOINLINE void RowWork::run(int64_t begin, int64_t end) const {
    // For each operand that is not used as it lies: its numbers, and its elements side by side.
    const int64_t width = (std::max<int64_t>(length, 1) * number + 63) / 64 * 64;
    std::vector<char*> scratch_of(static_cast<size_t>(count));
    int64_t bytes = folds || out.direct() ? 64 : 2 * width;
    for (int k = 0; k < count; ++k) bytes += in[k].direct() ? 0 : 2 * width;
    const std::unique_ptr<char[]> memory(new char[static_cast<size_t>(bytes) + 64]);
    char* scratch = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
    for (int k = 0; k < count; ++k) {
        scratch_of[static_cast<size_t>(k)] = scratch;
        scratch += in[k].direct() ? 0 : 2 * width;
    }
    char* const result = scratch;  // a row, or a number where `folds`
    std::vector<const char*> rows_of(static_cast<size_t>(count));
    for (int64_t row = begin; row < end; ++row) {
        for (int k = 0; k < count; ++k) {
            const RowOperand& x = in[k];
            const char* from = x.data + x.offset(row);
            char* const numbers = scratch_of[static_cast<size_t>(k)];
            if (x.stride != x.bytes) {
                char* const elements = x.convert.widen ? numbers + width : numbers;
                gather(elements, from, x.stride, x.bytes, length);
                from = elements;
            }
            if (x.convert.widen) x.convert.widen(numbers, from, length), from = numbers;
            rows_of[static_cast<size_t>(k)] = from;
        }
        if (folds) {
            body(function, result, rows_of.data(), length);
            char* const to = out.data + row * out.bytes;
            if (out.convert.narrow) {
                out.convert.narrow(to, result, 1);
            } else {
                std::memcpy(to, result, static_cast<size_t>(out.bytes));
            }
            continue;
        }
        char* const to = out.data + out.offset(row);
        if (out.direct()) {
            body(function, to, rows_of.data(), length);
            continue;
        }
        body(function, result, rows_of.data(), length);
        const char* from = result;
        if (out.convert.narrow) {
            char* const elements = out.stride == out.bytes ? to : result + width;
            out.convert.narrow(elements, result, length);
            from = elements;
        }
        if (out.stride != out.bytes) scatter(to, from, out.stride, out.bytes, length, 0, 1);
    }
}

}  // namespace ow_inner

#endif

}  // namespace opwright

#pragma GCC visibility pop
