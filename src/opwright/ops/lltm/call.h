// A call of LLTM on the CPU: tensors in, the numbers of its steps, memory while it runs.
#pragma once

#include <opwright/aten.h>

#include <numeric>

#include "walk.h"

namespace lltm {

using OptionalTensor = std::optional<Tensor>;

inline char* memory(const Tensor& x) { return static_cast<char*>(const_cast<void*>(x.const_data_ptr())); }

// As memcpy and memset, which do not take the null pointers of tensors without elements.
inline void copy_bytes(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}
inline void clear_bytes(void* to, int64_t bytes) {
    if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
}

template <class C>
struct Call {
    Steps<C> q = {};
    DType type;

    Call(const Tensor& x, const Tensor& weight_hh, const OptionalTensor& lengths, bool reverse) : type(dtype(x)) {
        q.steps = x.size(0);
        q.batch = x.size(1);
        q.hidden = weight_hh.size(1);
        q.reverse = reverse;
        q.convert = ow_inner::conversion(type, dtype_of<C>);
        q.bytes = q.convert.widen ? 2 : int64_t(sizeof(C));
        q.weight = memory(hold(aten::contiguous(weight_hh)));
        read_lengths(lengths);
        // A step that is over in a few microseconds is no work for two.
        const double work = 6.0 * static_cast<double>(q.batch * q.hidden) * static_cast<double>(q.hidden + 32);
        team_ = std::min(threads(), 1 + static_cast<int64_t>(work / 100e3));
    }

    // Keeps a tensor until the end of the call. A tensor is a shared pointer, so it is returned by value: a reference
    // into the vector would not survive the next one.
    Tensor hold(Tensor x) {
        held_.push_back(x);
        return x;
    }

    // Numbers that begin at a cache line.
    C* numbers(int64_t count) {
        C* to = data<C>(hold(empty({count + 64 / int64_t(sizeof(C))}, dtype_of<C>)));
        return reinterpret_cast<C*>((reinterpret_cast<uintptr_t>(to) + 63) / 64 * 64);
    }

    // A tensor's elements as numbers side by side, or null for none.
    C* read(const OptionalTensor& x) {
        if (!given(x)) return nullptr;
        const Tensor whole = hold(aten::contiguous(*x));
        if (dtype(whole) == dtype_of<C>) return reinterpret_cast<C*>(memory(whole));
        C* to = numbers(whole.numel());
        ow_inner::conversion(dtype(whole), dtype_of<C>)
            .widen(reinterpret_cast<char*>(to), memory(whole), whole.numel());
        return to;
    }

    const char* elements(const OptionalTensor& x) { return given(x) ? memory(hold(aten::contiguous(*x))) : nullptr; }

    void read_biases(const OptionalTensor& first, const OptionalTensor& second) {
        if (!given(first) && !given(second)) return;
        const C *a = read(first), *b = read(second);
        C* sum = numbers(3 * q.hidden);
        for (int64_t j = 0; j < 3 * q.hidden; ++j) sum[j] = (a ? a[j] : C(0)) + (b ? b[j] : C(0));
        q.bias = sum;
    }

    // The state, or its gradient, in the sorted order.
    void place_c(const OptionalTensor& c) {
        const C* from = read(c);
        const int64_t lanes = 64 / int64_t(sizeof(C));  // of the widest vectors
        q.padded = (q.hidden + lanes - 1) / lanes * lanes;
        q.c = numbers(q.batch * q.padded);
        std::fill_n(q.c, q.batch * q.padded, C(0));
        for (int64_t p = 0; from && p < q.batch; ++p) {
            std::copy_n(from + q.order[p] * q.hidden, q.hidden, q.c + p * q.padded);
        }
    }

    // The same in the order of the batch, as a tensor.
    Tensor take_c(DType as) const {
        const Tensor out = empty({q.batch, q.hidden}, as);
        for (int64_t p = 0; p < q.batch; ++p) write_row(out, q.order[p], q.c + p * q.padded);
        return out;
    }

    // Numbers into a row of a matrix of some dtype.
    void write_row(const Tensor& out, int64_t row, const C* from) const {
        const auto convert = ow_inner::conversion(dtype(out), dtype_of<C>);
        const int64_t size = convert.narrow ? 2 : int64_t(sizeof(C)), n = out.size(1);
        char* to = memory(out) + row * n * size;
        if (convert.narrow) return convert.narrow(to, reinterpret_cast<const char*>(from), n);
        copy_bytes(to, from, n * size);
    }

    // Zeros for the steps that a sequence does not have.
    void clear_padding(void* rows, int64_t row_bytes) const {
        for (int64_t p = 0; rows && p < q.batch; ++p) {
            for (int64_t t = q.length[p]; t < q.steps; ++t) {
                clear_bytes(static_cast<char*>(rows) + (t * q.batch + q.order[p]) * row_bytes, row_bytes);
            }
        }
    }

    void forward() {
        prepare(false);
        const auto tiles = Tiles<C>::forward();
        Team::run(team_, [&](Team& team, int64_t member) { Walk<C>(q, tiles, team, member).forward(); });
    }

    void backward() {
        prepare(true);
        const auto tiles = Tiles<C>::backward();
        Team::run(team_, [&](Team& team, int64_t member) { Walk<C>(q, tiles, team, member).backward(); });
    }

  private:
    std::vector<Tensor> held_;
    int64_t team_ = 1;

    void read_lengths(const OptionalTensor& lengths) {
        std::vector<int64_t> each(static_cast<size_t>(q.batch), q.steps);
        if (given(lengths)) {
            const auto at = strided<const int64_t, 1>(*lengths);
            for (int64_t b = 0; b < q.batch; ++b) each[b] = std::clamp<int64_t>(at(b), 0, q.steps);
        }
        q.order.resize(q.batch);
        std::iota(q.order.begin(), q.order.end(), 0);
        std::stable_sort(q.order.begin(), q.order.end(), [&](int64_t a, int64_t b) { return each[a] > each[b]; });
        q.active.assign(q.steps, 0);
        for (const int64_t b : q.order) {
            q.length.push_back(each[b]);
            if (each[b] > 0) ++q.active[each[b] - 1];
        }
        for (int64_t s = q.steps - 2; s >= 0; --s) q.active[s] += q.active[s + 1];
    }

    void prepare(bool backward) {
        const int64_t H = q.hidden, lanes = 64 / int64_t(sizeof(C));
        const int64_t whole = (H + 2 * lanes - 1) / (2 * lanes) * 2 * lanes;  // pairs of the widest vectors
        q.panel = numbers(whole * 3 * H);
        if (backward) q.backward_panel = numbers(whole * 3 * H);
        if (q.convert.widen) q.scratch = numbers(2 * q.batch * H * (backward ? 3 : 1));
        q.zeros = numbers(3 * H);
        std::fill_n(q.zeros, 3 * H, C(0));
        q.own_size = 8 * H;
        q.own = numbers(team_ * q.own_size);
    }
};

}  // namespace lltm
