// What an elementwise kernel on the GPU reads and writes: tensors of known and of unknown type, numbers, results.
#pragma once

#include <opwright/walk.cuh>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

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
struct TilePosition {
    const Tiles<N>& tiles;
    uint32_t begin[2];
    uint32_t at[N];

    __device__ TilePosition(const Tiles<N>& tiles, int width) : tiles(tiles) {
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
    __device__ void stage(const TilePosition<N>& place) const {
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
    __device__ Compute<T> in_tile(const TilePosition<N>& place, uint32_t a, uint32_t b) const {
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
    __device__ void stage(const TilePosition<N>&) const {}
    template <int N>
    __device__ C in_tile(const TilePosition<N>&, uint32_t, uint32_t) const {
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

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop
