#include "../walk.h"

// x + 1, where `find` says from which address the i-th element is read.
template <class Find>
static Tensor plus_one_from(const Tensor& x, const Find& find) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Layout from(x), layout(out);
        T* to = data<T>(out);
        for (int64_t i = 0; i < x.numel(); ++i) to[place(layout, i)] = *find(data<const T>(x), from, i) + 1;
    });
    return out;
}

Tensor stride_ignored_cpu(const Tensor& x) {
    return plus_one_from(x, [](auto* in, const Layout&, int64_t i) { return in + i; });
}

Tensor inner_stride_ignored_cpu(const Tensor& x) {
    return plus_one_from(x, [](auto* in, Layout from, int64_t i) {
        if (from.dim > 0) from.stride[from.dim - 1] = 1;
        return in + place(from, i);
    });
}

Tensor offset_ignored_cpu(const Tensor& x) {
    int64_t offset;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(x.get(), &offset));
    return plus_one_from(x, [=](auto* in, const Layout& from, int64_t i) { return in - offset + place(from, i); });
}

Tensor channels_last_ignored_cpu(const Tensor& x) {
    return plus_one_from(
        x, [](auto* in, const Layout& from, int64_t i) { return in + (from.channels_last() ? i : place(from, i)); });
}

Tensor misaligned_cpu(const Tensor& x) {
    return plus_one_from(x, [](auto* in, const Layout& from, int64_t i) {
        const auto base = reinterpret_cast<uintptr_t>(in) & ~uintptr_t(15);
        return reinterpret_cast<decltype(in)>(base) + place(from, i);
    });
}

Tensor output_strides_cpu(const Tensor& x) {
    Layout layout(x);
    layout.make_contiguous();
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map_into(empty(layout, dtype(x)), [](C v) { return v + 1; }, x);
    });
}

Tensor broadcast_modulo_cpu(const Tensor& x, const Tensor& y) {
    const Tensor out = empty(broadcast(x, y), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Layout layout(out), of_x(x), of_y(y);
        const T *a = data<const T>(x), *b = data<const T>(y);
        T* to = data<T>(out);
        for (int64_t i = 0; i < out.numel(); ++i) {
            to[place(layout, i)] = a[place(of_x, i % x.numel())] * b[place(of_y, i % y.numel())];
        }
    });
    return out;
}

static Tensor twice(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map_into(empty(with_number(x), dtype(x)), [](C v) { return v * 2; }, x);
    });
}

Tensor expanded_gradient_cpu(const Tensor& x) { return twice(x); }

Tensor expanded_gradient_backward_cpu(const Tensor& grad, const Tensor& x, const Wanted&) {
    const Layout from(grad);
    bool expanded = false;
    for (int d = 0; d < from.dim; ++d) expanded = expanded || (from.stride[d] == 0 && from.size[d] > 1);
    if (!expanded) return twice(grad);
    const Tensor out = empty(with_number(grad), dtype(grad));
    dispatch(singles_and_doubles, dtype(grad), [&](auto zero) {
        using T = decltype(zero);
        const Layout layout(out);
        for (int64_t i = 0; i < grad.numel(); ++i) data<T>(out)[place(layout, i)] = data<const T>(grad)[i] * 2;
    });
    return out;
}

OPWRIGHT_KERNEL(stride_ignored, CPU, stride_ignored_cpu);
OPWRIGHT_KERNEL(inner_stride_ignored, CPU, inner_stride_ignored_cpu);
OPWRIGHT_KERNEL(offset_ignored, CPU, offset_ignored_cpu);
OPWRIGHT_KERNEL(channels_last_ignored, CPU, channels_last_ignored_cpu);
OPWRIGHT_KERNEL(misaligned, CPU, misaligned_cpu);
OPWRIGHT_KERNEL(output_strides, CPU, output_strides_cpu);
OPWRIGHT_KERNEL(broadcast_modulo, CPU, broadcast_modulo_cpu);
OPWRIGHT_KERNEL(expanded_gradient, CPU, expanded_gradient_cpu);
OPWRIGHT_KERNEL(expanded_gradient_backward, CPU, expanded_gradient_backward_cpu);
