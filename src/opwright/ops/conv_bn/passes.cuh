// The passes on the GPU. A thread stays with its channels, whose numbers it holds in registers; sums are taken in the
// same order each time. What a pass has read last lies in the cache: the next one goes the other way.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <opwright/kernel.h>

#include "passes.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

constexpr int threads = 256;
// Packs side by side that a block takes at most: of 16 bytes as many as fill a line of the cache, or as many single
// elements as a warp has threads.
template <int V>
constexpr int most_across = V == 1 ? 32 : 8;

// What a thread reads and writes at once: an element, or 16 bytes.
template <class T, int V>
using Pack = std::conditional_t<V == 1, T, uint4>;

template <class To, class From>
__device__ __forceinline__ To bits(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

// How a grid walks over the planes, `V` elements at a time: blockIdx.x and the rows of a block share what there is of a
// channel, blockIdx.y with blockIdx.z and the columns of a block are channels.
struct Walk {
    int64_t channels, places;
    int steps;   // packs of a channel, or rows of all channels where they lie last
    int plane;   // packs of one plane
    int across;  // threads side by side that have channels of their own; 1 where places lie side by side
    int rows;    // of these in a block
    bool backwards;
    unsigned magic, shift;  // i / plane = (i + the high half of i · magic) >> shift
};

template <class T, int V, bool Last>
struct Steps {
    static constexpr int own = Last ? V : 1;  // channels of a thread
    const Walk& w;
    int64_t first, channel;  // of the block, and of the thread
    int at, step, count;     // of its packs of a channel, or of its rows
    bool inside, turned = false;

    __device__ explicit Steps(const Walk& w) : w(w) {
        const int column = threadIdx.x % w.across, row = threadIdx.x / w.across;
        const int64_t sheet = blockIdx.z * int64_t(gridDim.y) + blockIdx.y;
        first = sheet * w.across * own, channel = first + column * own;
        inside = channel < w.channels;
        at = blockIdx.x * w.rows + row, step = gridDim.x * w.rows;
        count = inside && at < w.steps ? (w.steps - 1 - at) / step + 1 : 0;
    }
    // The number of a step among the thread's own, which go the other way round where they are `turned`.
    __device__ __forceinline__ int own_number(int n) const { return turned ? count - 1 - n : n; }
    __device__ __forceinline__ int64_t offset(int n) const {
        int i = at + own_number(n) * step;
        if (w.backwards) i = w.steps - 1 - i;
        if constexpr (Last) return i * w.channels + channel;
        const int image = static_cast<int>((__umulhi(unsigned(i), w.magic) + unsigned(i)) >> w.shift);
        return (image * w.channels + channel) * w.places + int64_t(i - image * w.plane) * V;
    }
};

// Packs that a thread reads twice: its first ones stay in shared memory from one time to the other.
template <class T, int V>
struct Kept {
    Pack<T, V>* memory;
    int room;
    __device__ __forceinline__ bool has(int number) const { return number < room; }
    __device__ __forceinline__ Pack<T, V>& operator[](int number) const { return memory[number * blockDim.x]; }
};
struct Nothing {};  // is kept where passes are launched one by one

template <class T, int V>
__device__ __forceinline__ Pack<T, V> load(const void* from, int64_t at) {
    return *reinterpret_cast<const Pack<T, V>*>(static_cast<const T*>(from) + at);
}

// Two halves are one word, and one instruction each way.
template <class T, int V>
__device__ __forceinline__ void widen(const Pack<T, V>& pack, Compute<T> (&numbers)[V]) {
    if constexpr (V == 1) {
        numbers[0] = static_cast<Compute<T>>(pack);
    } else {
        const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (std::is_same_v<T, BFloat16>) {
                numbers[2 * i] = __uint_as_float(words[i] << 16);
                numbers[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
            } else if constexpr (std::is_same_v<T, Half>) {
                const float2 both = __half22float2(bits<__half2>(words[i]));
                numbers[2 * i] = both.x, numbers[2 * i + 1] = both.y;
            } else {
                numbers[i] = __uint_as_float(words[i]);
            }
        }
    }
}
template <class T, int V>
__device__ __forceinline__ void store(void* to, int64_t at, const Compute<T> (&numbers)[V]) {
    Pack<T, V>* const place = reinterpret_cast<Pack<T, V>*>(static_cast<T*>(to) + at);
    if constexpr (V == 1) {
        *place = static_cast<T>(numbers[0]);
    } else {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (std::is_same_v<T, BFloat16>) {
                words[i] = bits<uint32_t>(__floats2bfloat162_rn(numbers[2 * i], numbers[2 * i + 1]));
            } else if constexpr (std::is_same_v<T, Half>) {
                words[i] = bits<uint32_t>(__floats2half2_rn(numbers[2 * i], numbers[2 * i + 1]));
            } else {
                words[i] = __float_as_uint(numbers[i]);
            }
        }
        __stwb(place, uint4{words[0], words[1], words[2], words[3]});  // one store, where an assignment may become four
    }
}

template <class T>
__device__ __forceinline__ Compute<T> number(const Numbers& of, int64_t channel, Compute<T> otherwise) {
    if (!of.data) return otherwise;
    if (of.wide) return static_cast<const Compute<T>*>(of.data)[channel];
    return static_cast<Compute<T>>(static_cast<const T*>(of.data)[channel]);
}
// The numbers of several channels side by side.
template <class T, int K>
__device__ __forceinline__ void numbers_of(const Numbers& of, int64_t channel, Compute<T> otherwise,
                                           Compute<T> (&out)[K]) {
    using C = Compute<T>;
    if constexpr (K % 4 == 0 && sizeof(C) == 4) {
        const C* from = static_cast<const C*>(of.data) + channel;
        if (of.data && of.wide && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll
            for (int k = 0; k < K; k += 4) {
                const float4 four = *reinterpret_cast<const float4*>(from + k);
                out[k] = four.x, out[k + 1] = four.y, out[k + 2] = four.z, out[k + 3] = four.w;
            }
            return;
        }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) out[k] = number<T>(of, channel + k, otherwise);
}
template <class T>
__device__ __forceinline__ void put(const Numbers& of, int64_t channel, Compute<T> value) {
    if (!of.data) return;
    if (of.wide) {
        static_cast<Compute<T>*>(of.data)[channel] = value;
    } else {
        static_cast<T*>(of.data)[channel] = static_cast<T>(value);
    }
}

__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1.0 / sqrt(x); }
__device__ __forceinline__ float error_function(float x) { return erff(x); }
__device__ __forceinline__ double error_function(double x) { return erf(x); }
__device__ __forceinline__ float exp_minus_one(float x) { return expm1f(x); }
__device__ __forceinline__ double exp_minus_one(double x) { return expm1(x); }

// None, relu and leaky_relu are one: so much of what is below 0.
template <class C>
__device__ __forceinline__ C below_zero(const Channels& c) {
    return c.activation == Activation::none ? C(1) : c.activation == Activation::relu ? C(0) : static_cast<C>(c.slope);
}
__device__ __forceinline__ bool is_linear(const Channels& c) { return c.activation <= Activation::leaky_relu; }

template <class C>
__device__ __forceinline__ C smooth(const Channels& c, C z) {
    if (c.activation == Activation::elu) return z > C(0) ? z : static_cast<C>(c.slope) * exp_minus_one(z);
    if (c.activation == Activation::silu) return z * simd::sigmoid(z);
    return C(0.5) * z * (C(1) + error_function(z * C(0.70710678118654752440)));
}
template <class C>
__device__ __forceinline__ C smooth_derivative(const Channels& c, C z) {
    if (c.activation == Activation::elu) return z > C(0) ? C(1) : static_cast<C>(c.slope) * simd::exp(z);
    if (c.activation == Activation::silu) {
        const C s = simd::sigmoid(z);
        return s * (C(1) + z * (C(1) - s));
    }
    return C(0.5) * (C(1) + error_function(z * C(0.70710678118654752440))) +
           z * C(0.39894228040143267794) * simd::exp(C(-0.5) * z * z);
}

// --- normalise, add, activate ----------------------------------------------------------------------------------------

// What differs between calls that are common, so that each is compiled by itself: an activation that is `linear` on
// either side of 0, and whether something is added. `any` asks as it goes.
enum class Applies { linear, linear_added, any };

// `root` comes as the variance.
template <Applies A, class T, int V, bool Last, class K>
__device__ __forceinline__ void apply_of(const Steps<T, V, Last>& s, const K& kept, const Apply& q,
                                         Compute<T> (&centre)[Steps<T, V, Last>::own],
                                         Compute<T> (&root)[Steps<T, V, Last>::own]) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    C gamma[S::own], beta[S::own];
    const Channels& c = q.channels;
    numbers_of<T>(c.bias, s.channel, 0, beta);
    numbers_of<T>(c.gamma, s.channel, 1, gamma);
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        centre[k] -= beta[k];
        root[k] = inverse_root(root[k] + static_cast<C>(c.eps));
    }
    numbers_of<T>(c.beta, s.channel, 0, beta);
    const bool linear = A != Applies::any || is_linear(c);
    const bool adds = A == Applies::linear_added || (A == Applies::any && q.residual);
    const C below = below_zero<C>(c);
    const bool flat = below == C(0);
    const auto take = [&](int64_t at, const Pack<T, V>& from, const Pack<T, V>& added) {
        C y[V], residual[V];
        widen<T>(from, y);
        if (adds) widen<T>(added, residual);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            C z = fma((y[v] - centre[k]) * root[k], gamma[k], beta[k]);  // γ / √var alone may be too small for C
            if (adds) z += residual[v];
            if (linear) {
                y[v] = z < C(0) ? (flat ? C(0) : below * z) : z;
            } else {
                y[v] = smooth(c, z);
            }
        }
        store<T, V>(q.out, at, y);
    };
    const auto read = [&](int number, int64_t at) {
        if constexpr (!std::is_same_v<K, Nothing>) {
            if (kept.has(s.own_number(number))) return kept[s.own_number(number)];
        }
        return load<T, V>(q.y, at);
    };
    constexpr int unroll = A == Applies::linear ? 4 : 2;
    const Pack<T, V> none = {};
    int i = 0;
    for (; i + unroll <= s.count; i += unroll) {
        Pack<T, V> y[unroll], residual[unroll];
        int64_t at[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            at[u] = s.offset(i + u);
            y[u] = read(i + u, at[u]);
            residual[u] = adds ? load<T, V>(q.residual, at[u]) : none;
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) take(at[u], y[u], residual[u]);
    }
    for (; i < s.count; ++i) {
        const int64_t at = s.offset(i);
        take(at, read(i, at), adds ? load<T, V>(q.residual, at) : none);
    }
}

template <class T, int V, bool Last, Applies A>
__global__ void __launch_bounds__(threads) apply_all(Walk walk, Apply q) {
    using S = Steps<T, V, Last>;
    const S s(walk);
    if (!s.inside) return;
    Compute<T> centre[S::own], var[S::own];
    numbers_of<T>(q.channels.mean, s.channel, 0, centre);
    numbers_of<T>(q.channels.var, s.channel, 0, var);
    apply_of<A>(s, Nothing(), q, centre, var);
}

// --- which of them ---------------------------------------------------------------------------------------------------

// Packs are as wide as memory is read, or one element.
template <class T>
constexpr int widest = std::is_same_v<T, double> ? 1 : 16 / int(sizeof(T));

}  // namespace conv_bn

#pragma GCC visibility pop
