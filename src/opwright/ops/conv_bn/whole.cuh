// All of a forward's passes in one launch, and all of a gradient's: blocks wait for each other between them. A launch
// costs the host as much as a small layer takes the GPU, and here there is one where there were three.
#pragma once

#include <cooperative_groups.h>

#include "joins.cuh"

#pragma GCC visibility push(hidden)

namespace conv_bn {

constexpr int whole_threads = 512;

// What a block of a whole pass keeps, with room for so many packs of each thread.
template <class T, int V>
__device__ __forceinline__ Kept<T, V> keeping(int room) {
    static_assert(sizeof(Pack<T, V>) == sizeof(uint4));
    extern __shared__ uint4 packs[];
    return {packs + threadIdx.x, room};
}

// Statistics, and what follows from them. A thread has the same packs both times: the first of them stay in shared
// memory, the last lie in the cache, so that the second time begins with these.
template <class T, int V, bool Last, Applies A>
__global__ void __launch_bounds__(whole_threads)
    normalise_whole(Walk walk, int room, Compute<T>* parts, Apply q, Compute<T>* mean, Compute<T>* var) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    S s(walk);
    const Kept<T, V> kept = keeping<T, V>(room);
    statistics_of<whole_threads>(s, kept, static_cast<const T*>(q.y), parts);
    cooperative_groups::this_grid().sync();
    // Every block joins the parts of its own channels, and one of them tells.
    __shared__ C means[most_across<V> * S::own], vars[most_across<V> * S::own];
    const int side = walk.across * S::own, me = threadIdx.x;
    const int64_t channel = s.first + me % side;
    const Moments<C> all = join_parts<whole_threads>(parts, gridDim.x, walk.channels, channel, side, true);
    if (me < side) {
        means[me] = all.mean, vars[me] = all.deviations / all.n;
        if (blockIdx.x == 0 && channel < walk.channels) mean[channel] = means[me], var[channel] = vars[me];
    }
    __syncthreads();
    if (!s.inside) return;
    C centre[S::own], spread[S::own];
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        const int own = int(s.channel - s.first) + k;
        centre[k] = means[own], spread[k] = vars[own];
    }
    s.turned = true;
    apply_of<A>(s, kept, q, centre, spread);
}

template <class T, int V, bool Last, Derives D>
__global__ void __launch_bounds__(whole_threads)
    differentiate_whole(Walk walk, int room, Compute<T>* parts, Gradient q) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    S s(walk);
    const Slope<T, V, Last, D> slope(q, s.inside ? s.channel : 0);
    const Kept<T, V> kept = keeping<T, V>(room);
    reduce_of<whole_threads>(s, slope, kept, q, parts);
    cooperative_groups::this_grid().sync();
    __shared__ C sums[most_across<V> * S::own], products[most_across<V> * S::own];
    const int side = walk.across * S::own, me = threadIdx.x;
    const int64_t channel = s.first + me % side;
    C found[2];
    join_sums_of<whole_threads>(parts, gridDim.x, walk.channels, channel, side, found);
    if (me < side) {
        sums[me] = found[0], products[me] = found[1];
        if (blockIdx.x == 0 && channel < walk.channels) put_gradients<T>(q, channel, found);
    }
    __syncthreads();
    if (!s.inside) return;
    C sum[S::own], product[S::own];
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        const int own = int(s.channel - s.first) + k;
        sum[k] = sums[own], product[k] = products[own];
    }
    s.turned = true;
    back_of(s, slope, kept, q, sum, product);
}

}  // namespace conv_bn

#pragma GCC visibility pop
