#include <opwright/aten.h>

#include "gates.cuh"

// The steps are a loop on the host: a product of PyTorch's and one kernel for the gates, on buffers that are made once.

using OptionalTensor = std::optional<Tensor>;
using lltm::Either;

namespace {

// What a step reads and writes. T are elements, C what is computed in.
template <class T, class C>
struct Step {
    int64_t batch, hidden, step;
    bool reverse;
    const int64_t* lengths;  // or null, as what follows where it says so

    // The step of the sequence that row b is at: -1 when it is over.
    __device__ __forceinline__ int64_t row(int64_t b) const {
        if (!lengths) return reversed(b, steps);
        int64_t length = lengths[b];
        length = length < 0 ? 0 : length > steps ? steps : length;
        return step < length ? reversed(b, length) : -1;
    }
    __device__ __forceinline__ int64_t reversed(int64_t b, int64_t length) const {
        return (reverse ? length - 1 - step : step) * batch + b;
    }
    __device__ __forceinline__ bool is_last(int64_t b) const {
        return step + 1 == (lengths && lengths[b] < steps ? lengths[b] : steps);
    }
    int64_t steps;

    T* gates;  // [steps · batch, gates_width]: pre-activations from the input in; gates out, where they are kept
    int64_t gates_width;
    bool keep_gates;
    T* kept_c;  // or null
    int64_t kept_c_width;
    const T* recurrent;          // [batch, 3 · hidden], from h; null for zeros
    const T *bias_ih, *bias_hh;  // or null
    T* h;                        // [batch, hidden]
    C* c;
    T* output;           // [steps · batch, hidden]
    Either<T, C> cells;  // or null

    const T* grad_output;     // or null
    Either<T, C> grad_cells;  // or null
    const T* grad_h_n;        // or null
    const T* grad_h;          // [batch, hidden], from the step after; null for zeros
    C* grad_c;
    T* grad_gates;   // [steps · batch, 3 · hidden]
    T* grad_recent;  // [batch, 3 · hidden], this step's
    bool recompute;

    __device__ __forceinline__ lltm::Gates<C> pre_activations(const T* x, int64_t b, int64_t j) const {
        C z[3];
#pragma unroll
        for (int g = 0; g < 3; ++g) {
            const int64_t k = g * hidden + j;
            z[g] = static_cast<C>(x[k]);
            if (recurrent) z[g] += static_cast<C>(recurrent[b * 3 * hidden + k]);
            if (bias_ih) z[g] += static_cast<C>(bias_ih[k]);
            if (bias_hh) z[g] += static_cast<C>(bias_hh[k]);
        }
        return {z[0], z[1], z[2]};
    }
};

constexpr int block = 256;

template <class T, class C>
__global__ void __launch_bounds__(block) forward_step(Step<T, C> q) {
    const int64_t n = blockIdx.x * int64_t(block) + threadIdx.x;
    if (n >= q.batch * q.hidden) return;
    const int64_t b = n / q.hidden, j = n - b * q.hidden, H = q.hidden, row = q.row(b);
    if (row < 0) return;
    T* gates = q.gates + row * q.gates_width;
    const auto pre = q.pre_activations(gates, b, j);
    const auto z = lltm::activate(pre.i, pre.o, pre.g);
    const C c = q.c[n] + z.g * z.i;
    const T h = static_cast<T>(lltm::tanh_of(c) * z.o);
    q.c[n] = c;
    q.h[n] = h;
    q.output[row * H + j] = h;
    if (q.keep_gates) {
        gates[j] = static_cast<T>(z.i);
        gates[H + j] = static_cast<T>(z.o);
        gates[2 * H + j] = static_cast<T>(z.g);
    }
    if (q.kept_c) q.kept_c[row * q.kept_c_width + j] = static_cast<T>(c);
    if (q.cells) q.cells.put(row * H + j, c);
}

template <class T, class C>
__global__ void __launch_bounds__(block) backward_step(Step<T, C> q) {
    const int64_t n = blockIdx.x * int64_t(block) + threadIdx.x;
    if (n >= q.batch * q.hidden) return;
    const int64_t b = n / q.hidden, j = n - b * q.hidden, H = q.hidden, row = q.row(b);
    T* recent = q.grad_recent + b * 3 * H + j;
    if (row < 0) {
        recent[0] = recent[H] = recent[2 * H] = static_cast<T>(0.0f);
        return;
    }
    T* out = q.grad_gates + row * 3 * H;
    lltm::Gates<C> z;
    if (q.recompute) {
        const auto pre = q.pre_activations(out, b, j);
        z = lltm::activate(pre.i, pre.o, pre.g);
    } else {
        const T* kept = q.gates + row * q.gates_width + j;
        z = {static_cast<C>(kept[0]), static_cast<C>(kept[H]), static_cast<C>(kept[2 * H])};
    }
    // At its last step a sequence has no later one: zeros times weights that are not finite would not be zero.
    const bool last = q.is_last(b);
    C d_h = q.grad_h && !last ? static_cast<C>(q.grad_h[n]) : C(0), d_c = q.grad_c[n];
    if (q.grad_output) d_h += static_cast<C>(q.grad_output[row * H + j]);
    if (q.grad_h_n && last) d_h += static_cast<C>(q.grad_h_n[n]);
    if (q.grad_cells) d_c += q.grad_cells[row * H + j];
    const auto d = lltm::gradients(z, static_cast<C>(q.kept_c[row * q.kept_c_width + j]), d_h, d_c);
    q.grad_c[n] = d_c;
    out[j] = recent[0] = static_cast<T>(d.i);
    out[H + j] = recent[H] = static_cast<T>(d.o);
    out[2 * H + j] = recent[2 * H] = static_cast<T>(d.g);
}

// h before a step, to compute its gates again.
template <class T, class C>
__global__ void __launch_bounds__(block) gather_h(Step<T, C> q, const T* h_0) {
    const int64_t n = blockIdx.x * int64_t(block) + threadIdx.x;
    if (n >= q.batch * q.hidden) return;
    const int64_t b = n / q.hidden, j = n - b * q.hidden;
    Step<T, C> earlier = q;
    --earlier.step;
    const int64_t row = q.step > 0 ? earlier.row(b) : -1;
    q.h[n] = row >= 0 ? q.output[row * q.hidden + j] : h_0 ? h_0[n] : static_cast<T>(0.0f);
}

template <class T>
T* elements(const Tensor& x) {
    return x.defined() ? static_cast<T*>(const_cast<void*>(x.const_data_ptr())) : nullptr;
}

void clear(const Tensor& x) {
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

    template <class T, class C>
    Step<T, C> step() const {
        Step<T, C> q = {};
        q.steps = steps(), q.batch = batch(), q.hidden = hidden(), q.reverse = reverse;
        q.lengths = elements<const int64_t>(lengths);
        q.bias_ih = is_half() ? nullptr : elements<const T>(bias_ih), q.bias_hh = elements<const T>(bias_hh);
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

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

template <class T>
Outputs forward(const Layer& layer, bool all_cells, bool recompute, Tensor* tape) {
    using C = Compute<T>;
    const int64_t H = layer.hidden(), steps = layer.steps(), B = layer.batch(), N = layer.rows();
    const DType type = layer.type(), state = layer.c_0.defined() ? dtype(layer.c_0) : type;
    const Tensor output = empty({steps, B, H}, type), cells = all_cells ? empty({steps, B, H}, state) : Tensor();
    const bool keep = tape && !recompute;
    if (tape) *tape = empty({steps, B, recompute ? H : 4 * H}, type);
    if (layer.lengths.defined()) {
        clear(output);
        if (all_cells) clear(cells);
        if (tape) clear(*tape);
    }
    const Tensor gates = keep ? aten::narrow(aten::reshape(*tape, {N, 4 * H}), 1, 0, 3 * H) : empty({N, 3 * H}, type);
    layer.project(gates);
    const Tensor h = empty({B, H}, type), recurrent = empty({B, 3 * H}, type);
    if (layer.h_0.defined()) {
        const T* from = data<const T>(layer.h_0);
        T* to = data<T>(h);
        for_each(h.numel(), [=] __device__(int64_t i) { to[i] = from[i]; });
    } else {
        clear(h);
    }
    const Tensor c = layer.template numbers<T, C>(layer.c_0), weights = aten::t(layer.weight_hh);
    Step<T, C> q = layer.template step<T, C>();
    q.gates = elements<T>(gates), q.gates_width = keep ? 4 * H : 3 * H, q.keep_gates = keep;
    if (tape) q.kept_c = elements<T>(*tape) + (keep ? 3 * H : 0), q.kept_c_width = keep ? 4 * H : H;
    q.recurrent = elements<const T>(recurrent);
    q.h = data<T>(h), q.c = data<C>(c), q.output = data<T>(output), q.cells = Either<T, C>(cells);
    for (q.step = 0; q.step < steps && B * H > 0; ++q.step) {
        call("aten::mm", "out", h, weights, recurrent);
        launch(forward_step<T, C>, {ceil_div(B * H, block), block}, q);
    }
    // A sequence with padding has been padded where the gates of its missing steps would be: with what came in.
    if (layer.lengths.defined() && keep) {
        const int64_t* lengths = q.lengths;
        T* rows = q.gates;
        for_each(N * 3 * H, [=] __device__(int64_t i) {
            const int64_t row = i / (3 * H);
            if (row / B >= lengths[row % B]) rows[row * 4 * H + i % (3 * H)] = static_cast<T>(0.0f);
        });
    }
    return {output, h, layer.template narrowed_to<T, C>(c, state), cells};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class T>
Gradients backward(const Layer& layer, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                   const OptionalTensor& grad_c_n, const OptionalTensor& grad_cells, const Tensor& output_any,
                   const Tensor& tape_any, bool recompute, const Wanted& wanted) {
    using C = Compute<T>;
    const int64_t H = layer.hidden(), steps = layer.steps(), B = layer.batch(), N = layer.rows();
    check(tape_any.size(2) == (recompute ? 1 : 4) * H && tape_any.size(0) == steps && output_any.size(0) == steps,
          "lltm_backward: tape must be what lltm_saving returned, got ", shape(tape_any));
    const DType type = layer.type();
    const Tensor output = aten::contiguous(output_any), tape = aten::contiguous(tape_any);
    const Tensor d_output = Layer::whole(grad_output), d_h_n = Layer::whole(grad_h_n),
                 d_cells = Layer::whole(grad_cells);
    const Tensor grad_gates = empty({N, 3 * H}, type), recent = empty({B, 3 * H}, type), d_h = empty({B, H}, type);
    const Tensor h = recompute ? empty({B, H}, type) : Tensor(),
                 recurrent = recompute ? empty({B, 3 * H}, type) : Tensor();
    const Tensor d_c = layer.template numbers<T, C>(Layer::whole(grad_c_n)), weights = aten::t(layer.weight_hh);
    if (recompute) layer.project(grad_gates);
    if (layer.lengths.defined() && !recompute) clear(grad_gates);
    clear(recent);
    Step<T, C> q = layer.template step<T, C>();
    q.gates = elements<T>(tape), q.gates_width = 4 * H;
    q.kept_c = recompute ? q.gates : q.gates + 3 * H, q.kept_c_width = recompute ? H : 4 * H;
    q.output = elements<T>(output), q.h = elements<T>(h);
    q.recompute = recompute, q.recurrent = recompute ? elements<const T>(recurrent) : nullptr;
    q.grad_output = elements<const T>(d_output), q.grad_h_n = elements<const T>(d_h_n);
    q.grad_cells = Either<T, C>(d_cells);
    q.grad_c = data<C>(d_c), q.grad_gates = elements<T>(grad_gates), q.grad_recent = elements<T>(recent);
    const Grid grid{ceil_div(B * H, block), block};
    for (q.step = steps - 1; q.step >= 0 && B * H > 0; --q.step) {
        const bool any = q.step + 1 < steps;
        if (any) call("aten::mm", "out", recent, layer.weight_hh, d_h);
        q.grad_h = any ? data<const T>(d_h) : nullptr;
        if (recompute) {
            launch(gather_h<T, C>, grid, q, elements<const T>(layer.h_0));
            call("aten::mm", "out", h, weights, recurrent);
        }
        launch(backward_step<T, C>, grid, q);
    }
    if (layer.lengths.defined() && recompute) {
        const int64_t* lengths = q.lengths;
        T* rows = q.grad_gates;
        for_each(N * 3 * H, [=] __device__(int64_t i) {
            const int64_t row = i / (3 * H);
            if (row / B >= lengths[row % B]) rows[i] = static_cast<T>(0.0f);
        });
    }

    Gradients out;
    auto& [x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0] = out;
    if (wants(wanted, 6) && layer.c_0.defined()) c_0 = layer.template narrowed_to<T, C>(d_c, dtype(layer.c_0));
    if (wants(wanted, 5) && layer.h_0.defined()) {
        h_0 = aten::mm(recent, layer.weight_hh);
        if (layer.lengths.defined() || steps == 0) {
            const int64_t* lengths = q.lengths;
            const T* in = q.grad_h_n;
            T* to = data<T>(h_0);
            for_each(B * H, [=] __device__(int64_t i) {
                if (!lengths || lengths[i / H] <= 0) to[i] = in ? in[i] : static_cast<T>(0.0f);
            });
        }
    }
    if (wants(wanted, 3) && layer.bias_ih.defined()) bias_ih = lltm::sum_of_rows(grad_gates);
    if (wants(wanted, 4) && layer.bias_hh.defined())
        bias_hh = bias_ih.defined() ? aten::clone(bias_ih) : lltm::sum_of_rows(grad_gates);
    if (wants(wanted, 2)) {
        // h before a step is a row of the output one step earlier, and h_0 before the first.
        const int64_t skip = std::min(B, N);
        Tensor rows = aten::reshape(output, {N, H});
        if (layer.reverse && layer.lengths.defined()) {
            // Sequences that end early are walked from their own end: nothing comes before it.
            rows = empty({N, H}, type);
            const int64_t* lengths = q.lengths;
            const T* from = q.output;
            T* to = data<T>(rows);
            for_each(N * H, [=] __device__(int64_t i) {
                const int64_t row = i / H;
                to[i] = row / B < lengths[row % B] ? from[i] : static_cast<T>(0.0f);
            });
        }
        weight_hh = aten::mm(aten::t(aten::narrow(grad_gates, 0, layer.reverse ? 0 : skip, N - skip)),
                             aten::narrow(rows, 0, layer.reverse ? skip : 0, N - skip));
        // Zeros too, where there is no h_0: times a gradient that is not finite they are not zero.
        const Tensor first = layer.h_0.defined() ? layer.h_0 : empty({B, H}, type);
        if (!layer.h_0.defined()) clear(first);
        const Tensor start = aten::mm(aten::t(recent), first);
        T* to = data<T>(weight_hh);
        const T* more = data<const T>(start);
        for_each(N > 0 ? weight_hh.numel() : 0, [=] __device__(int64_t i) {
            to[i] = static_cast<T>(static_cast<C>(to[i]) + static_cast<C>(more[i]));
        });
    }
    if (wants(wanted, 1)) weight_ih = aten::mm(aten::t(grad_gates), layer.inputs());
    if (wants(wanted, 0)) x = aten::reshape(aten::mm(grad_gates, layer.weight_ih), {steps, B, layer.x.size(2)});
    return out;
}

}  // namespace

Outputs lltm_cuda(const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
                  const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0,
                  const OptionalTensor& lengths, bool reverse, bool all_cells, bool recompute) {
    const Layer layer(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse);
    return dispatch(floating, dtype(x),
                    [&](auto zero) { return forward<decltype(zero)>(layer, all_cells, recompute, nullptr); });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_saving_cuda(
    const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0, const OptionalTensor& lengths,
    bool reverse, bool all_cells, bool recompute) {
    const Layer layer(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse);
    Tensor tape;
    const auto out = dispatch(floating, dtype(x),
                              [&](auto zero) { return forward<decltype(zero)>(layer, all_cells, recompute, &tape); });
    return std::tuple_cat(out, std::tuple(tape));
}

Gradients lltm_backward_cuda(const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                             const OptionalTensor& grad_c_n, const OptionalTensor& grad_cells, const Tensor& x,
                             const Tensor& weight_ih, const Tensor& weight_hh, const Tensor& output, const Tensor& tape,
                             const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, const OptionalTensor& h_0,
                             const OptionalTensor& c_0, const OptionalTensor& lengths, bool reverse, bool recompute,
                             bool, const Wanted& wanted) {
    const Layer layer(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse);
    return dispatch(floating, dtype(x), [&](auto zero) {
        return backward<decltype(zero)>(layer, grad_output, grad_h_n, grad_c_n, grad_cells, output, tape, recompute,
                                        wanted);
    });
}

OPWRIGHT_KERNEL(lltm, CUDA, lltm_cuda);
OPWRIGHT_KERNEL(lltm_saving, CUDA, lltm_saving_cuda);
OPWRIGHT_KERNEL(lltm_backward, CUDA, lltm_backward_cuda);
