// Elementwise operators on the GPU: a function of numbers over tensors of any strides.
#pragma once

#include <opwright/walk.cuh>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace detail {

// Vectors of 16 bytes, and how many of them a thread has under way at once.
#ifndef OPWRIGHT_THREADS
#define OPWRIGHT_THREADS 256
#endif
#ifndef OPWRIGHT_IN_FLIGHT
#define OPWRIGHT_IN_FLIGHT 4
#endif
constexpr int threads = OPWRIGHT_THREADS;
template <class T>
constexpr int lanes = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
constexpr int in_flight(int inputs) { return inputs > OPWRIGHT_IN_FLIGHT ? 1 : OPWRIGHT_IN_FLIGHT / (inputs ? inputs : 1); }

template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
    T at[V];
};

// 16 bytes at once. With OPWRIGHT_STREAM, past the caches: what is read once need not stay there.
template <class V>
__device__ __forceinline__ V read_vector(const void* from) {
#if OPWRIGHT_STREAM & 1
    if constexpr (sizeof(V) == 16) {
        const uint4 bits = __ldcs(static_cast<const uint4*>(from));
        V v;
        memcpy(&v, &bits, 16);
        return v;
    }
#endif
    return *static_cast<const V*>(from);
}

template <class V>
__device__ __forceinline__ void write_vector(void* to, const V& v) {
#if OPWRIGHT_STREAM & 2
    if constexpr (sizeof(V) == 16) {
        uint4 bits;
        memcpy(&bits, &v, 16);
        __stcs(static_cast<uint4*>(to), bits);
        return;
    }
#endif
    *static_cast<V*>(to) = v;
}

// What a thread has read of one input: U vectors of V elements.
template <class T, int V, int U>
struct Batch {
    Vector<T, V> vector[U];
    __device__ Compute<T> operator()(int u, int v) const { return static_cast<Compute<T>>(vector[u].at[v]); }
};

template <class C>
struct Repeated {
    C value;
    __device__ C operator()(int, int) const { return value; }
};

// The inputs of a kernel: a tensor of known type, one whose type is known at run time only, or a number. `slot` says
// which of the offsets is the tensor's; 0 is the result's.
template <class T, int slot>
struct In {
    const T* data;
    __device__ Compute<T> one(int64_t at) const { return static_cast<Compute<T>>(data[at]); }
    template <int V, int U>
    __device__ Batch<T, V, U> straight(int64_t at) const {
        Batch<T, V, U> batch;
#pragma unroll
        for (int u = 0; u < U; ++u) {
            batch.vector[u] = read_vector<Vector<T, V>>(data + at + u * threads * V);
        }
        return batch;
    }
    template <int V, int U, int N>
    __device__ Batch<T, V, U> strided(const uint32_t (&at)[U][N], uint32_t repeats) const {
        Batch<T, V, U> batch;
        if (V > 1 && (repeats >> slot & 1)) {
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const T value = data[at[u][slot]];
#pragma unroll
                for (int v = 0; v < V; ++v) batch.vector[u].at[v] = value;
            }
        } else {
#pragma unroll
            for (int u = 0; u < U; ++u) {
                batch.vector[u] = read_vector<Vector<T, V>>(data + at[u][slot]);
            }
        }
        return batch;
    }
};

template <class C, int slot>
struct AnyIn {
    const void* data;
    DType dtype;
    __device__ C read(int64_t at) const {
        if (dtype == DType::Half) return static_cast<C>(static_cast<const Half*>(data)[at]);
        if (dtype == DType::BFloat16) return static_cast<C>(static_cast<const BFloat16*>(data)[at]);
        return static_cast<const C*>(data)[at];
    }
    template <int V, int U, int N>
    __device__ auto strided(const uint32_t (&at)[U][N], uint32_t) const {
        Batch<C, 1, U> batch;
#pragma unroll
        for (int u = 0; u < U; ++u) batch.vector[u].at[0] = read(at[u][slot]);
        return batch;
    }
};

template <class C>
struct Fixed {
    C value;
    __device__ C one(int64_t) const { return value; }
    template <int V, int U>
    __device__ Repeated<C> straight(int64_t) const {
        return {value};
    }
    template <int V, int U, int N>
    __device__ Repeated<C> strided(const uint32_t (&)[U][N], uint32_t) const {
        return {value};
    }
};

template <class T>
struct Out {
    T* data;
    template <class C>
    __device__ void write(int64_t at, const C& value) const {
        data[at] = static_cast<T>(value);
    }
    // function of the batches' elements, one vector at offset(u) for each u.
    template <int V, int U, class Offset, class F, class... B>
    __device__ __forceinline__ void write_all(const Offset& offset, const F& function, const B&... batch) const {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            Vector<T, V> result;
#pragma unroll
            for (int v = 0; v < V; ++v) result.at[v] = static_cast<T>(function(batch(u, v)...));
            write_vector(data + offset(u), result);
        }
    }
};

template <class C>
struct AnyOut {
    void* data;
    DType dtype;
    template <int V, int U, class Offset, class F, class... B>
    __device__ __forceinline__ void write_all(const Offset& offset, const F& function, const B&... batch) const {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const C value = static_cast<C>(function(batch(u, 0)...));
            const int64_t at = offset(u);
            if (dtype == DType::Half) {
                static_cast<Half*>(data)[at] = static_cast<Half>(value);
            } else if (dtype == DType::BFloat16) {
                static_cast<BFloat16*>(data)[at] = static_cast<BFloat16>(value);
            } else {
                static_cast<C*>(data)[at] = value;
            }
        }
    }
};

// Everything in one row: no index but the element's own number.
template <int V, int U, class F, class O, class... I>
__global__ void __launch_bounds__(threads) map_straight(int64_t n, F function, O out, I... in) {
    constexpr int64_t work = int64_t(threads) * V * U;
    const int64_t begin = blockIdx.x * work;
    if (begin + work <= n) {
        const int64_t at = begin + threadIdx.x * V;
        out.template write_all<V, U>([at](int u) { return at + u * threads * V; }, function,
                                     in.template straight<V, U>(at)...);
    } else {
        for (int64_t at = begin + threadIdx.x; at < n; at += threads) out.write(at, function(in.one(at)...));
    }
}

// Any strides, in vectors of V elements along the fastest dimension.
template <int V, int U, int N, class F, class O, class... I>
__global__ void __launch_bounds__(threads) map_strided(__grid_constant__ const Steps<N> steps, F function, O out, I... in) {
    const uint32_t begin = blockIdx.x * uint32_t(threads * U) + threadIdx.x;
    if (begin + (U - 1) * threads < steps.vectors) {
        uint32_t at[U][N];
#pragma unroll
        for (int u = 0; u < U; ++u) steps.find(begin + u * threads, at[u]);
        out.template write_all<V, U>([&](int u) { return at[u][0]; }, function,
                                     in.template strided<V, U>(at, steps.repeats)...);
    } else {
        for (uint32_t i = begin; i < steps.vectors; i += threads) {
            uint32_t at[1][N];
            steps.find(i, at[0]);
            out.template write_all<V, 1>([&](int) { return at[0][0]; }, function,
                                         in.template strided<V, 1>(at, steps.repeats)...);
        }
    }
}

// Numbers the tensors among the inputs from 1 on; 0 is a number's.
template <class... Input>
struct Slots {
    static constexpr int inputs = (0 + ... + int(std::is_same_v<Input, Tensor>));
    static constexpr int of(size_t which) {
        constexpr bool tensor[] = {std::is_same_v<Input, Tensor>..., false};
        int slot = 0;
        for (size_t i = 0; i <= which; ++i) slot += tensor[i];
        return tensor[which] ? slot : 0;
    }
};

template <class T, int slot>
In<T, slot> input(const Walk& walk, const Tensor&) {
    return {static_cast<const T*>(walk.data[slot])};
}
template <class T, int slot>
Fixed<Compute<T>> input(const Walk&, double number) {
    return {static_cast<Compute<T>>(number)};
}
template <class C, int slot>
AnyIn<C, slot> any_input(const Walk& walk, const Tensor&) {
    return {walk.data[slot], walk.dtype[slot]};
}
template <class C, int slot>
Fixed<C> any_input(const Walk&, double number) {
    return {static_cast<C>(number)};
}

template <class T, class F, size_t... I, class... Input>
void map_walk(const Walk& walk, const F& function, std::index_sequence<I...>, const Input&... inputs) {
    using S = Slots<Input...>;
    constexpr int V = lanes<T>, N = S::inputs + 1, U = in_flight(S::inputs);
    const Out<T> out{static_cast<T*>(walk.data[0])};
    if (walk.is_straight() && walk.aligned(V * sizeof(T))) {
        launch(map_straight<V, U, F, Out<T>, decltype(input<T, S::of(I)>(walk, inputs))...>,
               {ceil_div(walk.numel, threads * V * U), threads}, walk.numel, function, out,
               input<T, S::of(I)>(walk, inputs)...);
        return;
    }
    const bool rows = V > 1 && walk.has_rows(V);
    walk.in_parts([&](const Walk& part) {
        const auto go = [&](auto kernel, const Steps<N>& steps) {
            launch(kernel, {ceil_div(steps.vectors, threads * U), threads}, steps, function,
                   Out<T>{static_cast<T*>(part.data[0])}, input<T, S::of(I)>(part, inputs)...);
        };
        if (rows) {
            go(map_strided<V, U, N, F, Out<T>, decltype(input<T, S::of(I)>(part, inputs))...>, Steps<N>(part, V));
        } else {
            go(map_strided<1, U, N, F, Out<T>, decltype(input<T, S::of(I)>(part, inputs))...>, Steps<N>(part, 1));
        }
    });
}

template <class C, class F, size_t... I, class... Input>
void map_mixed(const Walk& walk, const F& function, std::index_sequence<I...>, const Input&... inputs) {
    using S = Slots<Input...>;
    constexpr int N = S::inputs + 1;
    walk.in_parts([&](const Walk& part) {
        const Steps<N> steps(part, 1);
        launch(map_strided<1, 2, N, F, AnyOut<C>, decltype(any_input<C, S::of(I)>(part, inputs))...>,
               {ceil_div(steps.vectors, threads * 2), threads}, steps, function,
               AnyOut<C>{part.data[0], part.dtype[0]}, any_input<C, S::of(I)>(part, inputs)...);
    });
}

inline void collect(const Tensor** tensors, int& count, const Tensor& x) { tensors[count++] = &x; }
inline void collect(const Tensor**, int&, double) {}

template <class Input>
using AsInput = std::conditional_t<std::is_same_v<Input, Tensor>, Tensor, double>;

}  // namespace detail

// out = function(inputs…), element by element, with broadcasting. An input is a tensor or a number. The function takes
// and gives numbers of the type to compute in, float for half and bfloat16: write its parameters with `auto`. out may
// have any strides and may be one of the inputs, but must not overlap them otherwise.
template <class F, class... T, class... Input>
const Tensor& map_into(Types<T...> types, const Tensor& out, const F& function, const Input&... inputs) {
    using namespace detail;
    static_assert((std::is_same_v<Input, Tensor> || ...), "at least one input is a tensor");
    const Tensor* tensors[1 + sizeof...(Input)] = {&out};
    int count = 1;
    (collect(tensors, count, static_cast<const AsInput<Input>&>(inputs)), ...);
    const Walk walk(tensors, count);
    if (walk.numel == 0) return out;
    constexpr auto index = std::index_sequence_for<Input...>();
    if (walk.mixed()) {
        map_mixed<float>(walk, function, index, static_cast<const AsInput<Input>&>(inputs)...);
    } else {
        dispatch(types, walk.dtype[0], [&](auto zero) {
            map_walk<decltype(zero)>(walk, function, index, static_cast<const AsInput<Input>&>(inputs)...);
        });
    }
    return out;
}

template <class F, class... Input>
const Tensor& map_into(const Tensor& out, const F& function, const Input&... inputs) {
    return map_into(floating, out, function, inputs...);
}

// A new tensor function(inputs…) with the dtype of the first input and the strides PyTorch would give it.
//
//     Tensor hypot_cuda(const Tensor& x, const Tensor& y) {
//         return map([] __device__(auto a, auto b) { return sqrt(a * a + b * b); }, x, y);
//     }
template <class F, class... Rest>
Tensor map(const F& function, const Tensor& first, const Rest&... rest) {
    const Tensor* tensors[1 + sizeof...(Rest)] = {&first};
    int count = 1;
    (detail::collect(tensors, count, static_cast<const detail::AsInput<Rest>&>(rest)), ...);
    Layout layouts[1 + sizeof...(Rest)];
    for (int i = 0; i < count; ++i) layouts[i] = Layout(*tensors[i]);
    const bool numbers = count == 1 && sizeof...(Rest) > 0;
    return map_into(empty(detail::result_layout(layouts, count, numbers), dtype(first)), function, first, rest...);
}

}  // namespace opwright

#pragma GCC visibility pop
