// How the operands of an elementwise operator are walked on the GPU: which dimensions, in which order, by which
// strides.
#pragma once

#include <opwright/dispatch.h>
#include <opwright/layout.h>

#include <opwright/launch.cuh>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

constexpr int max_operands = 8;
// Dimensions that cannot be merged: each has at least two elements, so that no memory holds more of them.
constexpr int max_walked = 40;

// The first operands are the results. Dimensions from the fastest to the slowest of the first, strides in elements.
struct Walk {
    int64_t numel = 1;
    int operands = 0;
    int dim = 0;
    void* data[max_operands];
    DType dtype[max_operands];
    int64_t bytes[max_operands];
    int64_t size[max_walked];
    int64_t stride[max_walked][max_operands];

    Walk(const Tensor* const* tensors, int count, int results);

    bool mixed() const {
        bool same = true;
        for (int i = 1; i < operands; ++i) same = same && dtype[i] == dtype[0];
        return !same;
    }

    // One row, in which every operand lies without gaps.
    bool is_straight() const {
        bool yes = dim == 1;
        for (int i = 0; yes && i < operands; ++i) yes = stride[0][i] == 1;
        return yes;
    }

    bool aligned(size_t to) const {
        bool yes = true;
        for (int i = 0; i < operands; ++i) yes = yes && reinterpret_cast<uintptr_t>(data[i]) % to == 0;
        return yes;
    }

    // Whether the fastest dimension can be walked in vectors: every operand lies along it without gaps, or repeats.
    bool has_rows(int vector) const {
        bool yes = size[0] % vector == 0 && stride[0][0] == 1;
        for (int i = 0; yes && i < operands; ++i) {
            if (stride[0][i] == 0) continue;
            yes = stride[0][i] == 1 && reinterpret_cast<uintptr_t>(data[i]) % (vector * bytes[i]) == 0;
            for (int k = 1; yes && k < dim; ++k) yes = stride[k][i] % vector == 0;
        }
        return yes;
    }

    // The dimension that some input lies along without gaps while the result lies along the fastest: what a transposed
    // matrix has. 0 when there is none, or too little of it to make tiles.
    int crossing(int results) const {
        if (dim < 2 || stride[0][0] != 1 || size[0] < 16) return 0;
        for (int i = results; i < operands; ++i) {
            if (stride[0][i] <= 1) continue;
            for (int k = 1; k < dim; ++k) {
                if (stride[k][i] == 1 && size[k] >= 16) return k;
            }
        }
        return 0;
    }

    Walk without(int first, int second) const {
        Walk rest = *this;
        rest.dim = 0;
        rest.numel = numel / size[first] / size[second];
        for (int k = 0; k < dim; ++k) {
            if (k == first || k == second) continue;
            std::copy_n(stride[k], operands, rest.stride[rest.dim]);
            rest.size[rest.dim++] = size[k];
        }
        if (rest.dim == 0) {
            std::fill_n(rest.stride[0], operands, 0);
            rest.size[rest.dim++] = 1;
        }
        return rest;
    }

    // visit(part) for parts so small that 32 bits number their elements and reach each of them.
    template <class Visit>
    void in_parts(const Visit& visit) const {
        int widest = 0;
        if (is_small(widest)) return visit(*this);
        Walk half = *this;
        const int64_t kept = size[widest] / 2;
        half.size[widest] = kept;
        half.numel = numel / size[widest] * kept;
        half.in_parts(visit);
        half.size[widest] = size[widest] - kept;
        half.numel = numel - half.numel;
        for (int i = 0; i < operands; ++i) {
            half.data[i] = static_cast<char*>(data[i]) + kept * stride[widest][i] * bytes[i];
        }
        half.in_parts(visit);
    }

  private:
    bool is_small(int& widest) const {
        constexpr int64_t limit = int64_t(1) << 31;
        bool small = numel < limit - (1 << 20);  // and no index past the end overflows
        int64_t most = 0;
        for (int i = 0; i < operands; ++i) {
            int64_t last = 0;
            for (int k = 0; k < dim; ++k) last += (size[k] - 1) * stride[k][i];
            small = small && last < limit;
        }
        for (int k = 0; k < dim; ++k) {
            int64_t reach = size[k];
            for (int i = 0; i < operands; ++i) reach = std::max(reach, (size[k] - 1) * stride[k][i]);
            if (size[k] > 1 && reach > most) most = reach, widest = k;
        }
        return small;
    }
};

OPWRIGHT_NOINLINE int64_t size_of(DType d) {
    switch (d) {
        case DType::Bool:
        case DType::Char:
        case DType::Byte:
            return 1;
        case DType::Half:
        case DType::BFloat16:
        case DType::Short:
        case DType::UInt16:
            return 2;
        case DType::Float:
        case DType::Int:
        case DType::UInt32:
            return 4;
        case DType::ComplexDouble:
            return 16;
        default:
            return 8;
    }
}

OPWRIGHT_NOINLINE Walk::Walk(const Tensor* const* tensors, int count, int results) : operands(count) {
    check(count <= max_operands, OnDevice::name(), ": map takes at most ", max_operands - 1, " tensors, got ",
          count - 1);
    const Layout out(*tensors[0]);
    int64_t all[max_dim][max_operands];
    bool flat = true;
    for (int i = 0; i < count; ++i) {
        const Tensor& x = *tensors[i];
        data[i] = i < results ? x.mutable_data_ptr() : const_cast<void*>(x.const_data_ptr());
        dtype[i] = opwright::dtype(x);
        bytes[i] = size_of(dtype[i]);
        const Layout own(x);
        check(i >= results || own.same_shape(out), OnDevice::name(), ": the results of map must have one shape, got ",
              shape(*tensors[0]), " and ", shape(x));
        if (own.same_shape(out) && own.row_major()) {
            for (int d = 0; d < out.dim; ++d) all[d][i] = own.stride[d];
            continue;
        }
        flat = false;
        bool fits = own.dim <= out.dim;
        for (int d = 0; d < out.dim; ++d) {
            const int e = d - (out.dim - own.dim);
            fits = fits && (e < 0 || own.size[e] == 1 || own.size[e] == out.size[d]);
            all[d][i] = broadcast_stride(own, out, d);
        }
        check(fits, OnDevice::name(), ": input ", i, " of map must broadcast to the result, got ", shape(x));
    }
    if (flat) {
        numel = size[0] = out.numel();
        dim = 1;
        std::fill_n(stride[0], operands, 1);
        return;
    }
    // By the strides of the result, without dimensions of size 1, neighbours that every operand steps through alike as
    // one.
    int order[max_dim];
    int kept = 0;
    numel = out.numel();
    if (numel == 0) return;  // whatever its strides
    for (int d = out.dim - 1; d >= 0; --d) {
        if (out.size[d] == 1) continue;
        for (int i = 0; i < results; ++i) {
            check(all[d][i] != 0, OnDevice::name(), ": a result of map must not repeat elements");
        }
        int at = kept++;
        for (; at > 0 && all[order[at - 1]][0] > all[d][0]; --at) order[at] = order[at - 1];
        order[at] = d;
    }
    for (int k = 0; k < kept; ++k) {
        const int d = order[k];
        bool merges = dim > 0;
        for (int i = 0; merges && i < operands; ++i) merges = all[d][i] == stride[dim - 1][i] * size[dim - 1];
        if (merges) {
            size[dim - 1] *= out.size[d];
            continue;
        }
        check(dim < max_walked, OnDevice::name(), ": map takes at most ", max_walked, " dimensions that do not merge");
        std::copy_n(all[d], operands, stride[dim]);
        size[dim++] = out.size[d];
    }
    if (dim == 0) {
        std::fill_n(stride[0], operands, 1);
        size[dim++] = 1;
    }
}

// Division by a number that is known before the kernel runs, as a multiplication. Right below 2³¹.
struct Divider {
    uint32_t by = 1, magic = 0, shift = 0;

    Divider() = default;
    explicit Divider(uint32_t d) : by(d) {
        while ((uint64_t(1) << shift) < d) ++shift;
        magic = static_cast<uint32_t>(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - d)) / d + 1);
    }
    __device__ uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

// From the number of a vector to where each of N operands has it. Passed to a kernel by value.
template <int N>
struct Steps {
    uint32_t vectors;
    int32_t dim;
    uint32_t repeats = 0;  // a bit for each operand that does not move along the fastest dimension
    struct {
        Divider size;
        uint32_t stride[N];
    } step[max_walked];

    Steps(const Walk& walk, int vector) : vectors(static_cast<uint32_t>(walk.numel / vector)), dim(walk.dim) {
        for (int k = 0; k < dim; ++k) {
            const int64_t length = k == 0 ? vector : 1;
            step[k].size = Divider(static_cast<uint32_t>(walk.size[k] / length));
            for (int i = 0; i < N; ++i) step[k].stride[i] = static_cast<uint32_t>(walk.stride[k][i] * length);
        }
        for (int i = 0; i < N; ++i) repeats |= uint32_t(walk.stride[0][i] == 0) << i;
    }

    __device__ void find(uint32_t number, uint32_t (&at)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) at[i] = 0;
        for (int k = 0; k + 1 < dim; ++k) {
            const uint32_t rest = step[k].size.divide(number), index = number - rest * step[k].size.by;
            number = rest;
#pragma unroll
            for (int i = 0; i < N; ++i) at[i] += index * step[k].stride[i];
        }
#pragma unroll
        for (int i = 0; i < N; ++i) at[i] += number * step[dim - 1].stride[i];
    }
};

// Tiles across two dimensions, the fastest of the result (0) and the fastest of some inputs (1).
template <int N>
struct Tiles {
    uint32_t size[2];
    Divider count[2];  // of tiles
    uint32_t stride[2][N];
    uint32_t staged = 0;  // a bit for each input that goes through shared memory
    Steps<N> rest;

    Tiles(const Walk& walk, int across, int width, int results) : rest(walk.without(0, across), 1) {
        for (int axis = 0; axis < 2; ++axis) {
            const int k = axis == 0 ? 0 : across;
            size[axis] = static_cast<uint32_t>(walk.size[k]);
            count[axis] = Divider(static_cast<uint32_t>(ceil_div(walk.size[k], width)));
            for (int i = 0; i < N; ++i) stride[axis][i] = static_cast<uint32_t>(walk.stride[k][i]);
        }
        for (int i = results; i < N; ++i) staged |= uint32_t(stride[1][i] == 1 && stride[0][i] > 1) << i;
    }
    int64_t blocks() const { return int64_t(rest.vectors) * count[0].by * count[1].by; }
};

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop
