// Shapes and strides of results, exactly those that PyTorch's own elementwise operators give.
#pragma once

#include <opwright/tensor.h>

#include <algorithm>

#if defined(__linux__) && !defined(OPWRIGHT_CUDA)
#include <sys/mman.h>
#endif

#pragma GCC visibility push(hidden)

namespace opwright {

// The shape and strides of a tensor, in elements.
struct Layout {
    int dim = 0;
    int64_t size[max_dim];
    int64_t stride[max_dim];

    Layout() {}
    Layout(const Tensor& x);
    Layout(const Layout& other) { *this = other; }
    Layout& operator=(const Layout& other) {
        dim = other.dim;
        std::copy_n(other.size, dim, size);
        std::copy_n(other.stride, dim, stride);
        return *this;
    }

    int64_t numel() const {
        int64_t n = 1;
        for (int d = 0; d < dim; ++d) n *= size[d];
        return n;
    }

    bool same_shape(const Layout& other) const {
        if (dim != other.dim) return false;
        for (int d = 0; d < dim; ++d) {  // a call of memcmp's would take longer
            if (size[d] != other.size[d]) return false;
        }
        return true;
    }

    // Strides exactly as make_contiguous gives them, also where they do not matter.
    bool row_major() const {
        int64_t step = 1;
        for (int d = dim - 1; d >= 0; --d) {
            if (stride[d] != step) return false;
            step *= std::max<int64_t>(size[d], 1);
        }
        return true;
    }
    bool contiguous() const;
    bool channels_last() const;
    void make_contiguous() {
        int64_t step = 1;
        for (int d = dim - 1; d >= 0; --d) stride[d] = step, step *= std::max<int64_t>(size[d], 1);
    }
};

namespace ow_inner {

// Whether the dimensions, taken in this order, lie in memory without gaps. Strides of dimensions of size 1 do not
// matter, and nothing matters when there are no elements.
template <class Order>
bool dense_in(const Layout& x, Order order) {
    int64_t expected = 1;
    bool yes = true;
    for (int k = 0; k < x.dim; ++k) {
        const int d = order(k);
        if (x.size[d] == 0) return true;
        yes = yes && (x.size[d] == 1 || x.stride[d] == expected);
        expected *= x.size[d];
    }
    return yes;
}

// Whether some order of the dimensions is dense: the one by strides, if any.
bool dense(const Layout& x);

}  // namespace ow_inner

namespace ow_inner {

// The stride of x along a dimension of `to`, a shape that it broadcasts to; 0 where it is repeated.
inline int64_t broadcast_stride(const Layout& x, const Layout& to, int dimension) {
    const int d = dimension - (to.dim - x.dim);
    return d < 0 || (x.size[d] == 1 && to.size[dimension] != 1) ? 0 : x.stride[d];
}

// Orders the dimensions of a result from fastest to slowest as PyTorch does: the first input that can tell two
// dimensions apart decides, by its strides and then by size; when none can, the later dimension is the faster.
void order_dimensions(const Layout& out, const Layout* inputs, int count, int* order);

Layout result_layout(const Layout* inputs, int count, bool with_number);

// Whether elementwise results of them are laid out as each of them is.
template <class... Layouts>
bool all_in_order(const Layout& first, const Layouts&... more) {
    return first.numel() > 0 && first.row_major() && ((more.same_shape(first) && more.row_major()) && ...);
}

template <class... Layouts>
Layout broadcast_layouts(const Layout& first, const Layouts&... more) {
    if (all_in_order(first, more...)) return first;
    const Layout layouts[] = {first, more...};
    return result_layout(layouts, 1 + sizeof...(Layouts), false);
}

}  // namespace ow_inner

// The layout of an elementwise result of these tensors: broadcast(x, y) for x + y.
template <class... Input>
Layout broadcast(const Input&... inputs) {
    return ow_inner::broadcast_layouts(static_cast<const Layout&>(inputs)...);
}

// The layout of a tensor combined with a Python number: with_number(x) for 2 * x. It differs from broadcast(x) in
// corner cases only (dimensions of size 0 or 1), but a fake kernel that disagrees with a real one breaks a compiled
// graph.
inline Layout with_number(const Layout& x) {
    return ow_inner::all_in_order(x) ? x : ow_inner::result_layout(&x, 1, true);
}

// An uninitialised tensor on the device that the kernel runs on: empty(broadcast(x), dtype(x)), in the layout of an
// elementwise result, or empty({rows, columns}, DType::Float), contiguous.
Tensor empty(const Layout& layout, DType dtype);
inline Tensor empty(std::initializer_list<int64_t> sizes, DType dtype) {
    Layout layout;
    for (const int64_t n : sizes) layout.size[layout.dim++] = n;
    layout.make_contiguous();
    return empty(layout, dtype);
}

#ifndef OPWRIGHT_APART

OPWRIGHT_NOINLINE Layout::Layout(const Tensor& x) : dim(static_cast<int>(x.dim())) {
    check(dim <= max_dim, "a tensor must have at most ", max_dim, " dimensions, got ", dim);
    int64_t *sizes, *strides;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(x.get(), &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(x.get(), &strides));
    for (int d = 0; d < dim; ++d) size[d] = sizes[d], stride[d] = strides[d];
}

namespace ow_inner {

OPWRIGHT_NOINLINE bool dense(const Layout& x) {
    int order[max_dim];
    int kept = 0;
    for (int d = 0; d < x.dim; ++d) {
        if (x.size[d] == 0) return true;
        if (x.size[d] == 1) continue;
        int at = kept++;
        for (; at > 0 && x.stride[order[at - 1]] > x.stride[d]; --at) order[at] = order[at - 1];
        order[at] = d;
    }
    int64_t expected = 1;
    for (int k = 0; k < kept; ++k) {
        if (x.stride[order[k]] != expected) return false;
        expected *= x.size[order[k]];
    }
    return true;
}

}  // namespace ow_inner

OPWRIGHT_NOINLINE bool Layout::contiguous() const {
    return ow_inner::dense_in(*this, [this](int k) { return dim - 1 - k; });
}

OPWRIGHT_NOINLINE bool Layout::channels_last() const {
    constexpr int order[] = {1, 3, 2, 0};
    return dim == 4 && ow_inner::dense_in(*this, [&](int k) { return order[k]; });
}

namespace ow_inner {

OPWRIGHT_NOINLINE void order_dimensions(const Layout& out, const Layout* inputs, int count, int* order) {
    for (int d = 0; d < out.dim; ++d) order[d] = out.dim - 1 - d;
    const auto compare = [&](int a, int b) {
        for (int i = 0; i < count; ++i) {
            const int64_t sa = broadcast_stride(inputs[i], out, a), sb = broadcast_stride(inputs[i], out, b);
            if (sa == 0 || sb == 0) continue;
            if (sa != sb) return sa < sb ? -1 : 1;
            if (out.size[a] > out.size[b]) return 1;
        }
        return 0;
    };
    // An insertion sort that walks past what it cannot compare: std::sort would want a strict order.
    for (int i = 1; i < out.dim; ++i) {
        int moving = i;
        for (int k = i - 1; k >= 0; --k) {
            const int c = compare(order[k], order[moving]);
            if (c < 0) break;
            if (c > 0) std::swap(order[k], order[moving]), moving = k;
        }
    }
}

OPWRIGHT_NOINLINE Layout result_layout(const Layout* inputs, int count, bool with_number) {
    Layout out = inputs[0];
    bool same = !with_number || out.dim == 0;
    for (int i = 1; i < count; ++i) {
        const Layout& x = inputs[i];
        if (out.same_shape(x)) continue;
        same = false;
        if (x.dim > out.dim) {
            const int grow = x.dim - out.dim;
            std::copy_backward(out.size, out.size + out.dim, out.size + x.dim);
            std::fill_n(out.size, grow, 1);
            out.dim = x.dim;
        }
        for (int d = 0; d < x.dim; ++d) {
            int64_t& n = out.size[d + out.dim - x.dim];
            check(n == x.size[d] || n == 1 || x.size[d] == 1, "shapes must broadcast, got sizes ", n, " and ",
                  x.size[d]);
            if (n == 1) n = x.size[d];
        }
    }

    const auto all = [&](auto property) { return std::all_of(inputs, inputs + count, property); };
    if (out.numel() > 0 && all([&](const Layout& x) { return x.same_shape(out) && x.row_major(); })) return out;
    if (same) {
        if (all([](const Layout& x) { return x.contiguous(); })) {
            out.make_contiguous();
            return out;
        }
        if (all([](const Layout& x) { return x.channels_last(); })) {
            out.stride[1] = 1;
            out.stride[3] = std::max<int64_t>(out.size[1], 1);
            out.stride[2] = out.stride[3] * std::max<int64_t>(out.size[3], 1);
            out.stride[0] = out.stride[2] * std::max<int64_t>(out.size[2], 1);
            return out;
        }
        if (all(dense) &&
            all([&](const Layout& x) { return std::equal(x.stride, x.stride + x.dim, inputs->stride); })) {
            return out;  // the strides of the first, which it began with
        }
    }

    int order[max_dim];
    order_dimensions(out, inputs, count, order);
    bool row_major = true;
    int64_t step = 1;
    for (int k = 0; k < out.dim; ++k) {
        row_major = row_major && order[k] == out.dim - 1 - k;
        out.stride[order[k]] = step;
        step *= out.size[order[k]];
    }
    if (row_major) out.make_contiguous();
    return out;
}

// Memory so large is fresh from the system every time, and its first touch takes longer than what is computed into it.
// Large pages, where the system lends them to who asks, halve that.
inline void ask_for_large_pages([[maybe_unused]] AtenTensorHandle x, [[maybe_unused]] int64_t numel) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t page = 1 << 21;
    int64_t bytes;
    if (numel < (32 << 20) / 16) return;  // of any dtype
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(x, &bytes));
    if (bytes < (32 << 20)) return;  // what malloc keeps for the next caller
    void* first;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(x, &first));
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(first) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(first) + static_cast<uintptr_t>(bytes)) / page * page;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice: refused, nothing is lost
#endif
}

}  // namespace ow_inner

OPWRIGHT_NOINLINE Tensor empty(const Layout& layout, DType dtype) {
#ifdef OPWRIGHT_CUDA
    static const int32_t type = aoti_torch_device_type_cuda();
    const int32_t index = ow_inner::OnDevice::current().index;
#else
    static const int32_t type = aoti_torch_device_type_cpu();
    constexpr int32_t index = 0;
#endif
    const int32_t code = ow_inner::Codes::get().code[static_cast<size_t>(dtype) % ow_inner::Codes::size];
    AtenTensorHandle handle = nullptr;
    const auto error = aoti_torch_empty_strided(layout.dim, layout.size, layout.stride, code, type, index, &handle);
#ifdef OPWRIGHT_CUDA
    // In the words that programs look for which try again with less.
    check(error == TORCH_SUCCESS, ow_inner::OnDevice::name(), ": CUDA out of memory: GPU ", index,
          " has no room for a result of ", layout.numel(), " elements, ", name(dtype));
#else
    check(error == TORCH_SUCCESS, "PyTorch makes no result of ", layout.numel(), " elements, ", name(dtype),
          "; is there memory for it?");
    ow_inner::ask_for_large_pages(handle, layout.numel());
#endif
    return Tensor(handle);
}

#endif

}  // namespace opwright

#pragma GCC visibility pop
