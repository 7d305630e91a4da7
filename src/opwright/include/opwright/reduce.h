// Sums over the dimensions that an operand was broadcast along: what its gradient needs.
#pragma once

#include <opwright/map.h>
#include <opwright/sum.h>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

struct Axis {
    int64_t size;
    int64_t stride;  // bytes, in the input
    int64_t out;     // elements, in the result; 0 where the axis is summed over
};

// Axes from the fastest to the slowest; neighbours that are stepped through alike are merged.
struct Axes {
    int count = 0;
    Axis axis[max_dim];

    void add(const Axis& a) {
        int at = count++;
        for (; at > 0 && axis[at - 1].stride > a.stride; --at) axis[at] = axis[at - 1];
        axis[at] = a;
    }

    void merge() {
        int kept = 0;
        for (int k = 0; k < count; ++k) {
            const Axis a = axis[k];
            Axis& last = axis[kept > 0 ? kept - 1 : 0];
            const bool merges = kept > 0 && a.stride == last.stride * last.size && a.out == last.out * last.size;
            if (merges) last.size *= a.size;
            if (!merges) axis[kept++] = a;
        }
        count = kept;
    }

    Axis take_fastest() {
        if (count == 0) return {1, 0, 0};
        const Axis fastest = axis[0];
        std::copy(axis + 1, axis + count, axis);
        --count;
        return fastest;
    }

    int64_t numel() const {
        int64_t n = 1;
        for (int k = 0; k < count; ++k) n *= axis[k].size;
        return n;
    }

    int64_t offset(int64_t position, int64_t Axis::* step) const {
        int64_t at = 0;
        for (int k = 0; k < count; ++k) at += position % axis[k].size * (axis[k].*step), position /= axis[k].size;
        return at;
    }
};

// A sum to a smaller shape. One axis, the inner, is walked in pieces: when it is kept, a piece is a stretch of results;
// when it is summed over, a piece is added to a few running sums in turn, which are added up in the end. Sums are in
// double: exact enough for any number of floats, and memory is slower still.
struct Sum {
    using Body = void (*)(const void* function, const char* numbers, double* sums, int64_t n, int64_t lanes);
    static constexpr int64_t piece = 512;
    static constexpr int64_t lanes = 64;

    Body body;  // adds function(numbers) to so many sums in turn
    const void* function;
    const char* data;
    char* out;
    Conversion convert;
    int64_t bytes, number;  // of an element, of a number
    Axes kept, summed;
    Axis inner;

    void run(int64_t numel);

  private:
    bool to_one() const { return inner.out == 0; }
    int64_t pieces() const { return (inner.size + piece - 1) / piece; }
    int64_t length(int64_t which) const { return std::min(piece, inner.size - which * piece); }
    void add(int64_t stretch, int64_t begin, int64_t end, double* sums) const;
    void finish(int64_t stretch, double* sums) const;
};

template <class F, class C>
struct AddTo {
    static OPWRIGHT_INLINE void run(const void* function, const char* numbers, double* sums, int64_t n, int64_t lanes) {
        const F f = *static_cast<const F*>(function);
        const C* x = reinterpret_cast<const C*>(numbers);
        for (; n > 0; n -= lanes, x += lanes) {
            const int64_t m = std::min(n, lanes);
            OPWRIGHT_INDEPENDENT
            for (int64_t i = 0; i < m; ++i) sums[i] += static_cast<double>(f(x[i]));
        }
    }
};

Tensor sum_tensor(const Tensor& x, Layout to, DType numbers, Sum::Body body, const void* function);

}  // namespace ow_inner

// function(x) summed to a smaller shape that broadcasts to its own, in one pass and without a tensor for function(x).
// The function takes and gives float (for float, half and bfloat16 tensors) or double. The result is contiguous and has
// the dtype of x; where there is nothing to sum, it is that of map.
//
//     Tensor grad_bias = sum_to(bias, [](float g) { return 2 * g; }, grad);
template <class F>
Tensor sum_to(const Layout& shape, const F& function, const Tensor& x) {
    using C = typename ow_inner::Signature<F>::First;
    static_assert(std::is_same_v<C, float> || std::is_same_v<C, double>, "sums are of float or double");
    if (Layout(x).same_shape(shape)) return map(function, x);
    using Body = ow_inner::AddTo<F, C>;
    return ow_inner::sum_tensor(x, shape, dtype_of<C>,
                                ow_inner::best<Body, const void*, const char*, double*, int64_t, int64_t>(), &function);
}

// function(x, y, …) of several tensors that broadcast together, summed as above, by way of a tensor for its values.
//
//     Tensor grad_weight = sum_to(weight, [](float g, float x) { return g * x; }, grad, x);
template <class F, class... More>
Tensor sum_to(const Layout& shape, const F& function, const Tensor& x, const Tensor& y, const More&... more) {
    using C = typename ow_inner::Signature<F>::First;
    const Tensor values = map(function, x, y, more...);
    if (Layout(values).same_shape(shape)) return values;
    return sum_to(shape, [](C value) { return value; }, values);
}

#ifndef OPWRIGHT_APART

namespace ow_inner {

// Adds the terms from begin to end of one stretch of results.
OPWRIGHT_NOINLINE void Sum::add(int64_t stretch, int64_t begin, int64_t end, double* sums) const {
    alignas(64) char elements[piece * 16], numbers[piece * 16];
    const char* base = data + kept.offset(to_one() ? stretch : stretch / pieces(), &Axis::stride);
    for (int64_t term = begin; term < end; ++term) {
        const int64_t which = to_one() ? term % pieces() : stretch % pieces();
        const char* x = base + summed.offset(to_one() ? term / pieces() : term, &Axis::stride);
        x += which * piece * inner.stride;
        const int64_t n = length(which);
        if (inner.stride != bytes) gather(elements, x, inner.stride, bytes, n), x = elements;
        if (convert.widen) convert.widen(numbers, x, n), x = numbers;
        body(function, x, sums, n, to_one() ? lanes : n);
    }
}

// Writes a stretch of results.
OPWRIGHT_NOINLINE void Sum::finish(int64_t stretch, double* sums) const {
    const int64_t which = to_one() ? 0 : stretch % pieces();
    int64_t n = to_one() ? lanes : length(which);
    int64_t at = kept.offset(to_one() ? stretch : stretch / pieces(), &Axis::out) + which * piece * inner.out;
    if (to_one()) {
        for (; n > 1; n /= 2) {
            for (int64_t i = 0; i < n / 2; ++i) sums[i] += sums[i + n / 2];
        }
    }
    for (int64_t i = 0; i < n; ++i, at += inner.out) {
        const float single = static_cast<float>(sums[i]);
        const char* value = number == 4 ? reinterpret_cast<const char*>(&single) : reinterpret_cast<char*>(&sums[i]);
        if (convert.narrow) {
            convert.narrow(out + at * bytes, value, 1);
        } else {
            std::memcpy(out + at * bytes, value, static_cast<size_t>(bytes));
        }
    }
}

OPWRIGHT_NOINLINE void Sum::run(int64_t numel) {
    kept.merge();
    summed.merge();
    // Along memory if possible; but a short sum for each of many results is better done for many results at once.
    const bool along_sum = kept.count == 0 || (summed.count > 0 && summed.axis[0].stride < kept.axis[0].stride &&
                                               summed.axis[0].size >= 32);
    inner = (along_sum ? summed : kept).take_fastest();
    const int64_t stretches = kept.numel() * (to_one() ? 1 : pieces());
    const int64_t terms = summed.numel() * (to_one() ? pieces() : 1);
    // Few results and many terms: the terms are divided too, by the sizes alone, so that threads do not change a sum.
    const int64_t parts = numel <= grain ? 1 : std::max<int64_t>(1, std::min(terms, 16 / stretches));
    std::vector<double> partial(parts > 1 ? stretches * parts * piece : 0);
    const int64_t tasks_a_grain = std::max<int64_t>(1, grain * stretches * parts / std::max<int64_t>(numel, 1));
    parallel(0, stretches * parts, tasks_a_grain, [&](int64_t begin, int64_t end) {
        double own[piece];
        for (int64_t task = begin; task < end; ++task) {
            double* sums = parts > 1 ? &partial[task * piece] : own;
            std::fill_n(sums, to_one() ? lanes : std::min(piece, inner.size), 0.0);
            const int64_t part = task % parts;
            add(task / parts, terms * part / parts, terms * (part + 1) / parts, sums);
            if (parts == 1) finish(task, sums);
        }
    });
    for (int64_t stretch = 0; parts > 1 && stretch < stretches; ++stretch) {
        double* sums = &partial[stretch * parts * piece];
        for (int64_t i = piece; i < parts * piece; ++i) sums[i % piece] += sums[i];
        finish(stretch, sums);
    }
}

OPWRIGHT_NOINLINE Tensor sum_tensor(const Tensor& x, Layout to, DType numbers, Sum::Body body, const void* function) {
    const Layout in(x);
    to.make_contiguous();
    check(in.dim >= to.dim, "sum_to: x must have at least ", to.dim, " dimensions, got ", shape(x));
    Tensor result = empty(to, dtype(x));
    Sum sum;
    sum.body = body;
    sum.function = function;
    sum.data = static_cast<const char*>(x.const_data_ptr());
    sum.out = static_cast<char*>(result.mutable_data_ptr());
    sum.convert = conversion(dtype(x), numbers);
    sum.number = numbers == DType::Float ? 4 : 8;
    sum.bytes = sum.convert.widen ? 2 : sum.number;
    for (int d = 0; d < in.dim; ++d) {
        const int e = d - (in.dim - to.dim);
        const bool keep = e >= 0 && to.size[e] == in.size[d];
        check(keep || e < 0 || to.size[e] == 1, "sum_to: x must have been broadcast to ", shape(x));
        if (keep && in.size[d] != 1) sum.kept.add({in.size[d], in.stride[d] * sum.bytes, to.stride[e]});
        if (!keep) sum.summed.add({in.size[d], in.stride[d] * sum.bytes, 0});
    }
    if (to.numel() > 0) sum.run(in.numel());
    return result;
}

}  // namespace ow_inner

#endif

}  // namespace opwright

#pragma GCC visibility pop
