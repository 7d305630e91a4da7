// Elementwise operators on the GPU: a function of numbers over tensors of any strides.
#pragma once

#include <opwright/operands.cuh>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// Everything in one row: no index but the element's own number.
template <int V, class F, class O, class... I>
__global__ void __launch_bounds__(threads) map_straight(int64_t n, F function, O out, I... in) {
    constexpr int64_t work = int64_t(threads) * V;
    const int64_t begin = blockIdx.x * work;
    if (begin + work <= n) {
        const int64_t at = begin + threadIdx.x * V;
        out.template write_all<V, 1>([at](int, int) { return at; }, function, in.template straight<V>(at)...);
    } else {
        for (int64_t at = begin + threadIdx.x; at < n; at += threads) {
            const auto value = function(in.one(at)...);
            for (int k = 0; k < O::results; ++k) out.write(k, at, value);
        }
    }
}

// Any strides, in vectors of V elements along the fastest dimension.
template <int V, int U, int N, class F, class O, class... I>
__global__ void __launch_bounds__(threads)
    map_strided(__grid_constant__ const Steps<N> steps, F function, O out, I... in) {
    const uint32_t begin = blockIdx.x * uint32_t(threads * U) + threadIdx.x;
    if (begin + (U - 1) * threads < steps.vectors) {
        uint32_t at[U][N];
#pragma unroll
        for (int u = 0; u < U; ++u) steps.find(begin + u * threads, at[u]);
        out.template write_all<V, U>([&](int u, int k) { return at[u][k]; }, function,
                                     in.template strided<V, U>(at, steps.repeats)...);
    } else {
        for (uint32_t i = begin; i < steps.vectors; i += threads) {
            uint32_t at[1][N];
            steps.find(i, at[0]);
            out.template write_all<V, 1>([&](int, int k) { return at[0][k]; }, function,
                                         in.template strided<V, 1>(at, steps.repeats)...);
        }
    }
}

// A tile of the result, whose inputs lie across it.
template <class T, int N, class F, class O, class... I>
__global__ void __launch_bounds__(32 * tile_rows)
    map_tiled(__grid_constant__ const Tiles<N> tiles, F function, O out, I... in) {
    const TilePosition<N> place(tiles, tile_width<T>);
    (in.stage(place), ...);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < tile_width<T>; j += tile_rows) {
#pragma unroll
        for (int i = 0; i < tile_width<T>; i += 32) {
            const uint32_t a = i + threadIdx.x, b = j + threadIdx.y;
            if (!place.holds(a, b)) continue;
            const auto value = function(in.in_tile(place, a, b)...);
#pragma unroll
            for (int k = 0; k < O::results; ++k) out.write(k, place.offset(k, a, b), value);
        }
    }
}

// Numbers the tensors among the inputs from K on, after the results; 0 is a number's.
template <int K, class... Input>
struct Slots {
    static constexpr int inputs = (0 + ... + int(std::is_same_v<Input, Tensor>));
    static constexpr int of(size_t which) {
        constexpr bool tensor[] = {std::is_same_v<Input, Tensor>..., false};
        int slot = K - 1;
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

template <class T, int K, size_t... I>
Out<T, K> output(const Walk& walk, std::index_sequence<I...>) {
    return {{static_cast<T*>(walk.data[I])...}};
}

template <class T, int K, class F, size_t... I, class... Input>
void map_walk(const Walk& walk, const F& function, std::index_sequence<I...>, const Input&... inputs) {
    using S = Slots<K, Input...>;
    using O = Out<T, K>;
    constexpr int V = lanes<T>, N = S::inputs + K, one = singles;
    constexpr auto outputs = std::make_index_sequence<K>();
    if (walk.is_straight() && walk.aligned(V * sizeof(T))) {
        launch(map_straight<V, F, O, decltype(input<T, S::of(I)>(walk, inputs))...>,
               {ceil_div(walk.numel, threads * V), threads}, walk.numel, function, output<T, K>(walk, outputs),
               input<T, S::of(I)>(walk, inputs)...);
        return;
    }
    const int across = walk.crossing(K);
    walk.in_parts([&](const Walk& part) {
        const O out = output<T, K>(part, outputs);
        if (across > 0) {
            const Tiles<N> tiles(part, across, tile_width<T>, K);
            const size_t shared = size_t(__builtin_popcount(tiles.staged)) * tile_width<T> * tile_pitch<T> * sizeof(T);
            launch(map_tiled<T, N, F, O, decltype(input<T, S::of(I)>(part, inputs))...>,
                   {tiles.blocks(), dim3(32, tile_rows), shared}, tiles, function, out,
                   input<T, S::of(I)>(part, inputs)...);
            return;
        }
        const bool rows = V > 1 && part.has_rows(V);
        const Steps<N> steps(part, rows ? V : 1);
        launch(rows ? map_strided<V, 1, N, F, O, decltype(input<T, S::of(I)>(part, inputs))...>
                    : map_strided<1, one, N, F, O, decltype(input<T, S::of(I)>(part, inputs))...>,
               {ceil_div(steps.vectors, threads * (rows ? 1 : one)), threads}, steps, function, out,
               input<T, S::of(I)>(part, inputs)...);
    });
}

template <class C, class F, size_t... I, class... Input>
void map_mixed(const Walk& walk, const F& function, std::index_sequence<I...>, const Input&... inputs) {
    using S = Slots<1, Input...>;
    constexpr int N = S::inputs + 1;
    walk.in_parts([&](const Walk& part) {
        const Steps<N> steps(part, 1);
        launch(map_strided<1, 2, N, F, AnyOut<C>, decltype(any_input<C, S::of(I)>(part, inputs))...>,
               {ceil_div(steps.vectors, threads * 2), threads}, steps, function, AnyOut<C>{part.data[0], part.dtype[0]},
               any_input<C, S::of(I)>(part, inputs)...);
    });
}

inline void collect(const Tensor** tensors, int& count, const Tensor& x) { tensors[count++] = &x; }
inline void collect(const Tensor**, int&, double) {}

template <class Input>
using AsInput = std::conditional_t<std::is_same_v<Input, Tensor>, Tensor, double>;

}  // namespace ow_inner

// Several results of one pass: map_into(into(p, q), … { return several(a, b); }, …). They have one shape and one dtype.
template <int K>
struct Into {
    const Tensor* at[K];
};
template <class... Out>
Into<sizeof...(Out)> into(const Out&... out) {
    return {{&out...}};
}
template <class C, class... Rest>
__device__ __forceinline__ ow_inner::Several<C, 1 + sizeof...(Rest)> several(C first, Rest... rest) {
    return {{first, static_cast<C>(rest)...}};
}

// out = function(inputs…), element by element, with broadcasting. An input is a tensor or a number. The function takes
// and gives numbers of the type to compute in, float for half and bfloat16: write its parameters with `auto`. out may
// have any strides and may be one of the inputs, but must not overlap them otherwise. The types that it is compiled for
// are the floating-point ones, or those that stand first: map_into(floating + integers, out, …).
template <int K, class F, class... T, class... Input>
void map_into(Types<T...> types, const Into<K>& out, const F& function, const Input&... inputs) {
    using namespace ow_inner;
    static_assert((std::is_same_v<Input, Tensor> || ...), "at least one input is a tensor");
    const Tensor* tensors[K + sizeof...(Input)];
    std::copy_n(out.at, K, tensors);
    int count = K;
    (collect(tensors, count, static_cast<const AsInput<Input>&>(inputs)), ...);
    const Walk walk(tensors, count, K);
    if (walk.numel == 0) return;
    constexpr auto index = std::index_sequence_for<Input...>();
    if (walk.mixed()) {
        check(K == 1, OnDevice::name(), ": several results of map must have the dtype of the inputs");
        for (int i = 0; i < count; ++i) {
            const DType d = walk.dtype[i];
            check(d == DType::Float || d == DType::Half || d == DType::BFloat16, OnDevice::name(),
                  ": map takes float, half and bfloat16 together, and no other mixture");
        }
        if constexpr (K == 1) {
            map_mixed<float>(walk, function, index, static_cast<const AsInput<Input>&>(inputs)...);
        }
    } else {
        dispatch(types, walk.dtype[0], [&](auto zero) {
            map_walk<decltype(zero), K>(walk, function, index, static_cast<const AsInput<Input>&>(inputs)...);
        });
    }
}

template <int K, class F, class... Input>
void map_into(const Into<K>& out, const F& function, const Input&... inputs) {
    map_into(floating, out, function, inputs...);
}

template <class F, class... T, class... Input>
const Tensor& map_into(Types<T...> types, const Tensor& out, const F& function, const Input&... inputs) {
    map_into(types, into(out), function, inputs...);
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
    (ow_inner::collect(tensors, count, static_cast<const ow_inner::AsInput<Rest>&>(rest)), ...);
    Layout layouts[1 + sizeof...(Rest)];
    for (int i = 0; i < count; ++i) layouts[i] = Layout(*tensors[i]);
    const bool numbers = count == 1 && sizeof...(Rest) > 0;
    return map_into(empty(ow_inner::result_layout(layouts, count, numbers), dtype(first)), function, first, rest...);
}

}  // namespace opwright

#pragma GCC visibility pop
