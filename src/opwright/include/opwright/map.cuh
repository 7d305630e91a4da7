// Elementwise operators on the GPU: a function of numbers over tensors of any strides.
#pragma once

#include <opwright/walk.cuh>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace detail {

// A thread takes one vector of 16 bytes: with all threads of a GPU under way, more at once only makes it slower. Where
// elements are taken one by one, several are under way at once.
constexpr int threads = 256;
template <class T>
constexpr int lanes = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
constexpr int singles = 4;

template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
    T at[V];
};

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

// Tiles for operands that lie across each other: read along one dimension, written along another.
constexpr int tile_rows = 8;
template <class T>
constexpr int tile_width = sizeof(T) < 4 ? 64 : 32;
// A word more than the width, so that neither rows nor columns share a bank.
template <class T>
constexpr int tile_pitch = tile_width<T> + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);

extern __shared__ char shared_memory[];

// Where a block works: the tile's place in every operand.
template <int N>
struct Place {
    const Tiles<N>& tiles;
    uint32_t begin[2];
    uint32_t at[N];

    __device__ Place(const Tiles<N>& tiles, int width) : tiles(tiles) {
        const uint32_t row = tiles.count[0].divide(blockIdx.x), rest = tiles.count[1].divide(row);
        begin[0] = (blockIdx.x - row * tiles.count[0].by) * width;
        begin[1] = (row - rest * tiles.count[1].by) * width;
        tiles.rest.find(rest, at);
    }
    __device__ bool holds(uint32_t a, uint32_t b) const {
        return begin[0] + a < tiles.size[0] && begin[1] + b < tiles.size[1];
    }
    __device__ uint32_t offset(int i, uint32_t a, uint32_t b) const {
        return at[i] + (begin[0] + a) * tiles.stride[0][i] + (begin[1] + b) * tiles.stride[1][i];
    }
    template <class T>
    __device__ T* buffer(int i) const {
        const int before = __popc(tiles.staged & ((1u << i) - 1));
        return reinterpret_cast<T*>(shared_memory) + before * tile_width<T> * tile_pitch<T>;
    }
};

// The inputs of a kernel: a tensor of known type, one whose type is known at run time only, or a number. `slot` says
// which of the offsets is the tensor's; 0 is the result's.
template <class T, int slot>
struct In {
    const T* data;
    __device__ Compute<T> one(int64_t at) const { return static_cast<Compute<T>>(data[at]); }
    template <int V>
    __device__ Batch<T, V, 1> straight(int64_t at) const {
        return {{*reinterpret_cast<const Vector<T, V>*>(data + at)}};
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
                batch.vector[u] = *reinterpret_cast<const Vector<T, V>*>(data + at[u][slot]);
            }
        }
        return batch;
    }
    // Reads a tile along this input's own fast dimension, if it is one that goes through shared memory.
    template <int N>
    __device__ void stage(const Place<N>& place) const {
        if (!(place.tiles.staged >> slot & 1)) return;
        T* const tile = place.template buffer<T>(slot);
        constexpr int width = tile_width<T>;
#pragma unroll
        for (int i = 0; i < width; i += tile_rows) {
#pragma unroll
            for (int j = 0; j < width; j += 32) {
                const uint32_t a = i + threadIdx.y, b = j + threadIdx.x;
                if (place.holds(a, b)) tile[a * tile_pitch<T> + b] = data[place.offset(slot, a, b)];
            }
        }
    }
    template <int N>
    __device__ Compute<T> in_tile(const Place<N>& place, uint32_t a, uint32_t b) const {
        const bool staged = place.tiles.staged >> slot & 1;
        return static_cast<Compute<T>>(staged ? place.template buffer<T>(slot)[a * tile_pitch<T> + b]
                                              : data[place.offset(slot, a, b)]);
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
    template <int V>
    __device__ Repeated<C> straight(int64_t) const {
        return {value};
    }
    template <int V, int U, int N>
    __device__ Repeated<C> strided(const uint32_t (&)[U][N], uint32_t) const {
        return {value};
    }
    template <int N>
    __device__ void stage(const Place<N>&) const {}
    template <int N>
    __device__ C in_tile(const Place<N>&, uint32_t, uint32_t) const {
        return value;
    }
};

// What a function gives: one number, or several by several(a, b, …).
template <class C, int K>
struct Several {
    C at[K];
};
template <class C>
__device__ __forceinline__ const C& pick(const C& value, int) {
    return value;
}
template <class C, int K>
__device__ __forceinline__ const C& pick(const Several<C, K>& values, int which) {
    return values.at[which];
}

// The K results of a kernel, in slots 0 to K - 1.
template <class T, int K>
struct Out {
    static constexpr int results = K;
    T* data[K];
    template <class C>
    __device__ void write(int which, int64_t at, const C& value) const {
        data[which][at] = static_cast<T>(pick(value, which));
    }
    // function of the batches' elements, one vector at offset(u, which) for each u and each result.
    template <int V, int U, class Offset, class F, class... B>
    __device__ __forceinline__ void write_all(const Offset& offset, const F& function, const B&... batch) const {
#pragma unroll
        for (int u = 0; u < U; ++u) {
            Vector<T, V> result[K];
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const auto value = function(batch(u, v)...);
#pragma unroll
                for (int k = 0; k < K; ++k) result[k].at[v] = static_cast<T>(pick(value, k));
            }
#pragma unroll
            for (int k = 0; k < K; ++k) *reinterpret_cast<Vector<T, V>*>(data[k] + offset(u, k)) = result[k];
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
            const int64_t at = offset(u, 0);
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
    const Place<N> place(tiles, tile_width<T>);
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

}  // namespace detail

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
__device__ __forceinline__ detail::Several<C, 1 + sizeof...(Rest)> several(C first, Rest... rest) {
    return {{first, static_cast<C>(rest)...}};
}

// out = function(inputs…), element by element, with broadcasting. An input is a tensor or a number. The function takes
// and gives numbers of the type to compute in, float for half and bfloat16: write its parameters with `auto`. out may
// have any strides and may be one of the inputs, but must not overlap them otherwise. The types that it is compiled for
// are the floating-point ones, or those that stand first: map_into(floating + integers, out, …).
template <int K, class F, class... T, class... Input>
void map_into(Types<T...> types, const Into<K>& out, const F& function, const Input&... inputs) {
    using namespace detail;
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
    (detail::collect(tensors, count, static_cast<const detail::AsInput<Rest>&>(rest)), ...);
    Layout layouts[1 + sizeof...(Rest)];
    for (int i = 0; i < count; ++i) layouts[i] = Layout(*tensors[i]);
    const bool numbers = count == 1 && sizeof...(Rest) > 0;
    return map_into(empty(detail::result_layout(layouts, count, numbers), dtype(first)), function, first, rest...);
}

}  // namespace opwright

#pragma GCC visibility pop
