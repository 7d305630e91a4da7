// Elementwise operators: a function of numbers over tensors of any strides.
#pragma once

#include <opwright/call.h>
#include <opwright/convert.h>
#include <opwright/layout.h>

namespace opwright __attribute__((visibility("hidden"))) {
    namespace detail {

    constexpr int max_operands = 8;
    constexpr int64_t block_bytes = 8192;
    // Rows at least this long are walked one by one, so that what is contiguous in them is read in place.
    constexpr int64_t long_row = 96;

    struct Operand {
        char* data;
        int64_t stride[max_dim];  // bytes, in the order of the loop
        int64_t element;          // bytes in memory
        int64_t number;           // bytes in a block
        Conversion convert;
        bool native;    // memory holds what the function computes with
        bool in_place;  // blocks are read or written where they are, not through a buffer
        bool constant;  // one element, repeated
    };

    // A loop nest over operands, the first of them the result. Dimension 0 is the fastest.
    struct Nest {
        int dim;
        int operands;
        int64_t size[max_dim];
        int64_t numel;
        int64_t block;  // elements that fit in a buffer
        bool by_row;
        Operand operand[max_operands];
        void (*body)(const void* function, char* const* block, int64_t n);
        const void* function;

        // Orders the dimensions by the strides of the result, drops those of size 1 and merges neighbours that every
        // operand steps through alike.
        void arrange(const Layout& out, const int64_t (*stride)[max_dim]) {
            int order[max_dim];
            int kept = 0;
            for (int d = out.dim - 1; d >= 0; --d) {
                if (out.size[d] == 1) continue;
                int at = kept++;
                for (; at > 0 && stride[0][order[at - 1]] > stride[0][d]; --at) order[at] = order[at - 1];
                order[at] = d;
            }
            dim = 0;
            numel = 1;
            for (int k = 0; k < kept; ++k) {
                const int d = order[k];
                numel *= out.size[d];
                bool merges = dim > 0;
                for (int i = 0; merges && i < operands; ++i) {
                    merges = stride[i][d] * operand[i].element == operand[i].stride[dim - 1] * size[dim - 1];
                }
                if (merges) {
                    size[dim - 1] *= out.size[d];
                    continue;
                }
                for (int i = 0; i < operands; ++i) operand[i].stride[dim] = stride[i][d] * operand[i].element;
                size[dim++] = out.size[d];
            }
            if (dim == 0) {
                for (int i = 0; i < operands; ++i) operand[i].stride[0] = operand[i].element;
                size[dim++] = 1;
            }
            by_row = dim > 1 && size[0] >= long_row;
            for (int i = 0; i < operands; ++i) {
                Operand& o = operand[i];
                bool linear = o.stride[0] == o.element;
                bool constant = true;
                for (int k = 0; k < dim; ++k) {
                    constant = constant && o.stride[k] == 0;
                    if (k > 0 && !by_row) linear = linear && o.stride[k] == o.stride[k - 1] * size[k - 1];
                }
                o.in_place = o.native && linear;
                o.constant = constant && i > 0;
            }
        }

        // The elements from begin to end, counted in the order of the loop.
        void run(int64_t begin, int64_t end) const;
    };

    // A place in the nest: the index, and where each operand is.
    struct Place {
        const Nest& nest;
        int64_t index[max_dim];
        char* at[max_operands];

        Place(const Nest& nest, int64_t position) : nest(nest) {
            for (int i = 0; i < nest.operands; ++i) at[i] = nest.operand[i].data;
            for (int k = 0; k < nest.dim; ++k) {
                index[k] = k + 1 < nest.dim ? position % nest.size[k] : position;
                position /= nest.size[k];
                for (int i = 0; i < nest.operands; ++i) at[i] += index[k] * nest.operand[i].stride[k];
            }
        }

        void advance(int64_t n) {
            index[0] += n;
            for (int i = 0; i < nest.operands; ++i) at[i] += n * nest.operand[i].stride[0];
            for (int k = 0; k + 1 < nest.dim && index[k] >= nest.size[k]; ++k) {
                const int64_t carry = index[k] / nest.size[k];
                index[k] -= carry * nest.size[k];
                index[k + 1] += carry;
                for (int i = 0; i < nest.operands; ++i) {
                    const Operand& o = nest.operand[i];
                    at[i] += carry * (o.stride[k + 1] - o.stride[k] * nest.size[k]);
                }
            }
        }

        // visit(address, done, count) for each run along dimension 0 among the next n elements of one operand.
        template <class Visit>
        void runs(int which, int64_t n, const Visit& visit) const {
            const Operand& o = nest.operand[which];
            char* p = at[which];
            const int64_t first = nest.dim == 1 ? n : std::min(n, nest.size[0] - index[0]);
            visit(p, int64_t(0), first);
            if (first == n) return;
            int64_t here[max_dim];
            std::copy_n(index, nest.dim, here);
            p -= index[0] * o.stride[0];
            for (int64_t done = first; done < n;) {
                for (int k = 1; k < nest.dim; ++k) {
                    p += o.stride[k];
                    if (++here[k] < nest.size[k] || k + 1 == nest.dim) break;
                    p -= here[k] * o.stride[k];
                    here[k] = 0;
                }
                const int64_t count = std::min(n - done, nest.size[0]);
                visit(p, done, count);
                done += count;
            }
        }
    };

    inline void Nest::run(int64_t begin, int64_t end) const {
        alignas(64) char buffer[max_operands][block_bytes];
        char* blocks[max_operands];
        bool buffered = false;
        for (int i = 0; i < operands; ++i) {
            const Operand& o = operand[i];
            buffered = buffered || !o.in_place;
            blocks[i] = buffer[i];
            if (o.constant) o.convert.load(buffer[i], o.data, 0, std::min(block, end - begin));
        }
        Place place(*this, begin);
        for (int64_t left = end - begin; left > 0;) {
            int64_t n = buffered ? std::min(left, block) : left;
            if (by_row) n = std::min(n, size[0] - place.index[0]);
            for (int i = 0; i < operands; ++i) {
                const Operand& o = operand[i];
                if (o.in_place) {
                    blocks[i] = place.at[i];
                } else if (i > 0 && !o.constant) {
                    place.runs(i, n, [&](const char* from, int64_t done, int64_t count) {
                        o.convert.load(buffer[i] + done * o.number, from, o.stride[0], count);
                    });
                }
            }
            body(function, blocks, n);
            const Operand& out = operand[0];
            if (!out.in_place) {
                place.runs(0, n, [&](char* to, int64_t done, int64_t count) {
                    out.convert.store(to, buffer[0] + done * out.number, out.stride[0], count);
                });
            }
            left -= n;
            if (left > 0) place.advance(n);
        }
    }

    template <class F>
    struct Signature : Signature<decltype(&F::operator())> {};
    template <class F, class R, class... A>
    struct Signature<R (F::*)(A...) const> {
        using Result = R;

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
                const std::tuple<const std::decay_t<A>*...> in(
                    reinterpret_cast<const std::decay_t<A>*>(block[I + 1])...);
                OPWRIGHT_INDEPENDENT
                for (int64_t i = 0; i < n; ++i) out[i] = f(std::get<I>(in)[i]...);
            }
        };

        static Conversion conversions(size_t i, DType dtype) {
            Conversion result{};
            size_t k = 0;
            ((k++ == i ? void(result = conversion<std::decay_t<A>>(dtype)) : void()), ...);
            return result;
        }
        static constexpr size_t arity = sizeof...(A);
        static constexpr DType type[] = {dtype_of<R>, dtype_of<std::decay_t<A>>...};
        static constexpr int64_t bytes[] = {sizeof(R), sizeof(A)...};
        static constexpr int64_t largest = std::max({sizeof(R), sizeof(A)...});
    };

    }  // namespace detail

    // out = function(inputs…), element by element, with broadcasting. The function takes and gives numbers, float for
    // half and bfloat16 tensors; out may have any strides and may be one of the inputs, but must not overlap them
    // otherwise.
    template <class F, class... Input>
    const Tensor& map_into(const Tensor& out, const F& function, const Input&... inputs) {
        using S = detail::Signature<F>;
        static_assert(S::arity == sizeof...(Input), "one parameter an input");
        static_assert(S::arity < detail::max_operands, "at most seven inputs");
        const Layout result(out);
        detail::Nest nest;
        nest.operands = 1 + sizeof...(Input);
        nest.block = detail::block_bytes / S::largest;
        nest.body = detail::best<typename S::Body, const void*, char* const*, int64_t>();
        nest.function = &function;
        int64_t stride[detail::max_operands][max_dim];
        std::copy_n(result.stride, result.dim, stride[0]);

        const Tensor* tensors[] = {&out, &inputs...};
        for (int i = 0; i < nest.operands; ++i) {
            const Tensor& x = *tensors[i];
            detail::Operand& o = nest.operand[i];
            const DType d = dtype(x);
            o.native = d == S::type[i];
            o.number = S::bytes[i];
            o.convert = i == 0 ? detail::conversion<typename S::Result>(d) : S::conversions(i - 1, d);
            o.element = static_cast<int64_t>(x.element_size());
            o.data = static_cast<char*>(i == 0 ? x.mutable_data_ptr() : const_cast<void*>(x.const_data_ptr()));
            if (i > 0) detail::broadcast_strides(Layout(x), result, stride[i]);
        }
        nest.arrange(result, stride);
        parallel(0, nest.numel, grain, [&](int64_t begin, int64_t end) { nest.run(begin, end); });
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

}  // namespace opwright
