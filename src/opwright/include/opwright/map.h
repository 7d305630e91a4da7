// Elementwise operators: a function of numbers over tensors of any strides.
#pragma once

#include <opwright/call.h>
#include <opwright/nest.h>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class F, class R, class... A>
struct Signature<R (F::*)(A...) const> {
    // The function over blocks: what the compiler makes vectors of.
    struct Body {
        static OPWRIGHT_INLINE void run(const void* function, char* const* block, int64_t n) {
            run(function, block, n, std::index_sequence_for<A...>());
        }
        template <size_t... I>
        static OPWRIGHT_INLINE void run(const void* function, char* const* block, int64_t n,
                                        std::index_sequence<I...>) {
            const F f = *static_cast<const F*>(function);
            R* const out = reinterpret_cast<R*>(block[0]);
            const std::tuple<const std::decay_t<A>*...> in(reinterpret_cast<const std::decay_t<A>*>(block[I + 1])...);
            OPWRIGHT_INDEPENDENT
            for (int64_t i = 0; i < n; ++i) out[i] = f(std::get<I>(in)[i]...);
        }
    };

    using First = std::decay_t<std::tuple_element_t<0, std::tuple<A...>>>;
    static constexpr size_t arity = sizeof...(A);
    static constexpr DType numbers[] = {dtype_of<R>, dtype_of<std::decay_t<A>>...};
    static constexpr int64_t bytes[] = {sizeof(R), sizeof(A)...};
};

// What does not depend on the function, compiled once a file.
void map_tensors(const Tensor* const* tensors, int operands, const DType* numbers, const int64_t* bytes,
                 Nest::Body body, const void* function);

}  // namespace ow_inner

// out = function(inputs…), element by element, with broadcasting. The function takes and gives numbers, float for half
// and bfloat16 tensors; out may have any strides and may be one of the inputs, but must not overlap them otherwise.
template <class F, class... Input>
const Tensor& map_into(const Tensor& out, const F& function, const Input&... inputs) {
    using S = ow_inner::Signature<F>;
    static_assert(S::arity == sizeof...(Input), "one parameter an input");
    static_assert(S::arity < ow_inner::max_operands, "at most seven inputs");
    const Tensor* const tensors[] = {&out, &inputs...};
    ow_inner::map_tensors(tensors, 1 + sizeof...(Input), S::numbers, S::bytes,
                          ow_inner::best<typename S::Body, const void*, char* const*, int64_t>(), &function);
    return out;
}

// A new tensor function(inputs…) with the dtype of the first input and the strides PyTorch would give it.
//
//     Tensor hypot_cpu(const Tensor& x, const Tensor& y) {
//         return map([](float a, float b) { return std::sqrt(a * a + b * b); }, x, y);
//     }
template <class F, class First, class... Rest>
Tensor map(const F& function, const First& first, const Rest&... rest) {
    return map_into(empty(broadcast(first, rest...), dtype(first)), function, first, rest...);
}

#ifndef OPWRIGHT_APART

namespace ow_inner {

// Few elements of operands that are all alike, in the order of their dimensions and of the numbers' own dtype: most
// calls of small tensors. Whether it was that.
inline bool map_few(const Tensor* const* tensors, int operands, const DType* numbers, Nest::Body body,
                    const void* function) {
    const int64_t *sizes = nullptr, *strides = nullptr;
    int64_t dim = 0, n = 1;
    char* block[max_operands];
    for (int i = 0; i < operands; ++i) {
        const AtenTensorHandle x = tensors[i]->get();
        int64_t rank;
        int64_t *own_sizes, *own_strides;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(x, &rank));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(x, &own_sizes));
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(x, &own_strides));
        if (dtype(*tensors[i]) != numbers[i] || (i > 0 && rank != dim)) return false;
        if (i == 0) {
            dim = rank, sizes = own_sizes, strides = own_strides;
            for (int64_t d = dim - 1; d >= 0; --d) {
                if (strides[d] != n) return false;
                n *= sizes[d];
            }
            if (n > grain) return false;
        }
        for (int64_t d = 0; d < dim; ++d) {
            if (own_sizes[d] != sizes[d] || own_strides[d] != strides[d]) return false;
        }
    }
    if (opwright_check_seed != 0) return false;
    for (int i = 0; i < operands; ++i) {
        block[i] = static_cast<char*>(i == 0 ? tensors[i]->mutable_data_ptr()
                                             : const_cast<void*>(tensors[i]->const_data_ptr()));
    }
    body(function, block, n);
    return true;
}

OPWRIGHT_NOINLINE void map_tensors(const Tensor* const* tensors, int operands, const DType* numbers,
                                   const int64_t* bytes, Nest::Body body, const void* function) {
    if (map_few(tensors, operands, numbers, body, function)) return;
    const Layout out(*tensors[0]);
    Nest nest;
    nest.body = body;
    nest.function = function;
    nest.block = block_bytes / *std::max_element(bytes, bytes + operands);
    nest.operands = operands;
    bool flat = true;
    for (int i = 0; i < operands; ++i) flat = nest.add(i, *tensors[i], out, numbers[i], bytes[i]) && flat;
    if (flat) {
        nest.flatten(out.numel());
    } else {
        nest.arrange(out);
    }
    parallel(0, nest.numel, grain, [&](int64_t begin, int64_t end) { nest.run(begin, end); });
}

}  // namespace ow_inner

#endif

}  // namespace opwright

#pragma GCC visibility pop
