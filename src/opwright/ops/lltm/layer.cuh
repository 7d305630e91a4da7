// The tensors of a call.
#pragma once

#include "step.cuh"

namespace lltm {

using OptionalTensor = std::optional<Tensor>;

template <class T>
T* elements(const Tensor& x) {
    return x.defined() ? static_cast<T*>(const_cast<void*>(x.const_data_ptr())) : nullptr;
}

inline void clear(const Tensor& x) {
    const int64_t bytes = x.numel() * (dtype(x) == DType::Double ? 8 : dtype(x) == DType::Float ? 4 : 2);
    ow_inner::cuda_check(cudaMemsetAsync(x.mutable_data_ptr(), 0, static_cast<size_t>(bytes), stream()), "clearing");
}

// The tensors of a call, contiguous and kept while it runs.
struct Layer {
    Tensor x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths;
    bool reverse;

    Layer(const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
          const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0,
          const OptionalTensor& lengths, bool reverse)
        : x(x),
          weight_ih(weight_ih),
          weight_hh(weight_hh),
          bias_ih(whole(bias_ih)),
          bias_hh(whole(bias_hh)),
          h_0(whole(h_0)),
          c_0(whole(c_0)),
          lengths(whole(lengths)),
          reverse(reverse) {}

    static Tensor whole(const OptionalTensor& x) { return given(x) ? aten::contiguous(*x) : Tensor(); }

    int64_t steps() const { return x.size(0); }
    int64_t batch() const { return x.size(1); }
    int64_t hidden() const { return weight_hh.size(1); }
    int64_t rows() const { return steps() * batch(); }
    DType type() const { return dtype(x); }
    Tensor inputs() const { return aten::reshape(x, {rows(), x.size(2)}); }
    bool is_half() const { return type() == DType::Half || type() == DType::BFloat16; }
    // The part of all gates that does not wait for the step before: one product. Half numbers are rounded once, with
    // their bias, as the reference rounds them: where the two cancel it shows.
    void project(const Tensor& gates) const {
        if (gates.numel() == 0) return;
        if (is_half() && bias_ih.defined()) {
            call("aten::linear", "out", inputs(), weight_ih, std::optional<Tensor>(bias_ih), gates);
        } else {
            call("aten::mm", "out", inputs(), aten::t(weight_ih), gates);
        }
    }
    // The part that does: h of some rows. Half numbers have their bias already, for the same reason.
    void recur(const Tensor& h, const Tensor& gates) const {
        if (is_half() && bias_hh.defined()) {
            call("aten::linear", "out", h, weight_hh, std::optional<Tensor>(bias_hh), gates);
        } else {
            call("aten::mm", "out", h, aten::t(weight_hh), gates);
        }
    }

    template <class T, class C>
    Step<T, C> step() const {
        Step<T, C> q = {};
        q.steps = steps(), q.batch = batch(), q.hidden = hidden(), q.reverse = reverse;
        q.lengths = elements<const int64_t>(lengths);
        q.bias_ih = is_half() ? nullptr : elements<const T>(bias_ih);
        q.bias_hh = is_half() ? nullptr : elements<const T>(bias_hh);
        return q;
    }

    // The state, or its gradient, as C's.
    template <class T, class C>
    Tensor numbers(const Tensor& from) const {
        const Tensor to = empty({batch(), hidden()}, dtype_of<C>);
        C* out = data<C>(to);
        const Either<T, C> in(from);
        for_each(to.numel(), [=] __device__(int64_t i) { out[i] = in ? in[i] : C(0); });
        return to;
    }

    // C's as a tensor of a dtype.
    template <class T, class C>
    Tensor narrowed_to(const Tensor& from, DType as) const {
        if (as == dtype_of<C>) return from;
        const Tensor to = empty({batch(), hidden()}, as);
        const C* in = data<const C>(from);
        T* out = data<T>(to);
        for_each(to.numel(), [=] __device__(int64_t i) { out[i] = static_cast<T>(in[i]); });
        return to;
    }
};

}  // namespace lltm
