#include "call.h"

using lltm::memory;
using lltm::OptionalTensor;

namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// What a gradient reads of a call beside its arguments and output; without its gates where they are computed again.
struct Kept {
    Tensor gates, states;
};

// What a layer is made of, in the order of the schema.
struct Layer {
    const Tensor &x, &weight_ih, &weight_hh;
    const OptionalTensor &bias_ih, &bias_hh, &h_0, &c_0, &lengths;
    bool reverse;

    int64_t rows() const { return x.size(0) * x.size(1); }
    Tensor inputs() const { return aten::reshape(x, {rows(), x.size(2)}); }
    // The part of all gates that does not wait for the step before: one product. Half numbers are rounded once, with
    // their bias, as the reference rounds them: where the two cancel it shows.
    template <class C>
    void project(const Tensor& gates, lltm::Call<C>& run) const {
        const bool half = run.q.convert.widen != nullptr;
        run.read_biases(half ? std::nullopt : bias_ih, bias_hh);
        if (gates.numel() == 0) return;
        if (half && given(bias_ih)) {
            call("aten::linear", "out", inputs(), weight_ih, bias_ih, gates);
        } else {
            call("aten::mm", "out", inputs(), aten::t(weight_ih), gates);
        }
    }
};

template <class C>
Outputs forward(const Layer& layer, bool all_cells, bool recompute, Kept* kept) {
    lltm::Call<C> run(layer.x, layer.weight_hh, layer.lengths, layer.reverse);
    auto& q = run.q;
    const int64_t H = q.hidden, T = q.steps, B = q.batch, N = T * B;
    const DType type = run.type, state = given(layer.c_0) ? dtype(*layer.c_0) : type;
    const Tensor output = empty({T, B, H}, type), cells = all_cells ? empty({T, B, H}, state) : Tensor();
    const bool keep = kept && !recompute;
    if (kept) *kept = {empty({T, B, recompute ? 0 : 3 * H}, type), empty({T, B, H}, type)};
    const Tensor gates = keep ? aten::reshape(kept->gates, {N, 3 * H}) : empty({N, 3 * H}, type);
    layer.project(gates, run);
    q.gates = memory(gates);
    q.keep_gates = keep;
    if (kept) q.kept_c = memory(kept->states);
    q.output = memory(output);
    if (all_cells) (state == dtype_of<C> ? q.wide_cells : q.cells) = memory(cells);
    q.h_0 = run.read(layer.h_0);
    run.place_c(layer.c_0);
    run.clear_padding(q.output, H * q.bytes);
    run.clear_padding(q.cells, H * q.bytes);
    run.clear_padding(q.wide_cells, H * int64_t(sizeof(C)));
    if (keep) run.clear_padding(q.gates, 3 * H * q.bytes);
    if (kept) run.clear_padding(q.kept_c, H * q.bytes);
    run.forward();

    const Tensor h_n = empty({B, H}, type);
    const std::vector<C> zeros(static_cast<size_t>(H), C(0));
    for (int64_t p = 0; p < B; ++p) {
        const int64_t b = q.order[p];
        if (q.length[p] > 0) {
            lltm::copy_bytes(memory(h_n) + b * H * q.bytes, q.output + q.row(p, q.length[p] - 1) * H * q.bytes,
                             H * q.bytes);
        } else {
            run.write_row(h_n, b, q.h_0 ? q.h_0 + b * H : zeros.data());
        }
    }
    return {output, h_n, run.take_c(state), cells};
}

// The gradients of the gates of the first step of each sequence; zeros where there is none.
template <class C>
Tensor first_gates(const lltm::Steps<C>& q, DType type) {
    const Tensor first = empty({q.batch, 3 * q.hidden}, type);
    const int64_t row = 3 * q.hidden * q.bytes;
    for (int64_t p = 0; p < q.batch; ++p) {
        char* to = memory(first) + q.order[p] * row;
        if (q.length[p] == 0) lltm::clear_bytes(to, row);
        if (q.length[p] > 0) lltm::copy_bytes(to, q.grad_gates + q.row(p, 0) * row, row);
    }
    return first;
}

// x, with zeros for the steps that a sequence does not have: what is not finite there is not zero times a zero.
template <class C>
Tensor inputs_of_steps(const lltm::Call<C>& run, const Layer& layer) {
    if (!given(layer.lengths)) return layer.inputs();
    const Tensor copy = aten::clone(layer.inputs());
    run.clear_padding(memory(copy), copy.size(1) * run.q.bytes);
    return copy;
}

// The gradient of weight_hh: at every step, that of the gates times h before it. h before a step is a row of the output
// one step earlier, and h_0 before the first.
template <class C>
Tensor weight_hh_gradient(const lltm::Call<C>& run, const Layer& layer, const Tensor& grad_gates,
                          const Tensor& output) {
    const auto& q = run.q;
    const int64_t B = q.batch, N = q.steps * B, skip = std::min(B, N);
    const Tensor later = aten::narrow(grad_gates, 0, q.reverse ? 0 : skip, N - skip);
    Tensor rows = aten::reshape(output, {N, q.hidden});
    if (q.reverse && given(layer.lengths)) {
        // Sequences that end early are walked from their own end: nothing comes before it.
        const Tensor copy = empty({N, q.hidden}, dtype(output));
        lltm::copy_bytes(memory(copy), memory(aten::contiguous(rows)), N * q.hidden * q.bytes);
        run.clear_padding(memory(copy), q.hidden * q.bytes);
        rows = copy;
    }
    const Tensor earlier = aten::narrow(rows, 0, q.reverse ? skip : 0, N - skip);
    const Tensor grad = aten::mm(aten::t(later), earlier);
    if (N == 0) return grad;
    // Zeros too, where there is no h_0: times a gradient that is not finite they are not zero.
    Tensor h_0 = given(layer.h_0) ? *layer.h_0 : empty({B, q.hidden}, dtype(grad));
    if (!given(layer.h_0)) lltm::clear_bytes(memory(h_0), B * q.hidden * q.bytes);
    const Tensor start = aten::mm(aten::t(first_gates(q, dtype(grad))), h_0);
    return map([](C x, C y) { return x + y; }, grad, start);
}

// The gradient of h_0: that of the first gates, through the weights; what came in, where a sequence has no steps.
template <class C>
Tensor h_0_gradient(const lltm::Call<C>& run, const Tensor& weight_hh) {
    const auto& q = run.q;
    const Tensor grad = aten::mm(first_gates(q, run.type), weight_hh);
    for (int64_t p = 0; p < q.batch; ++p) {
        const C* came = q.grad_h_n ? q.grad_h_n + q.order[p] * q.hidden : q.zeros;
        if (q.length[p] == 0) run.write_row(grad, q.order[p], came);
    }
    return grad;
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class C>
Gradients backward(const Layer& layer, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                   const OptionalTensor& grad_c_n, const OptionalTensor& grad_cells, const Tensor& output,
                   const Kept& kept, bool recompute, const Wanted& wanted) {
    lltm::Call<C> run(layer.x, layer.weight_hh, layer.lengths, layer.reverse);
    auto& q = run.q;
    const int64_t H = q.hidden, N = layer.rows();
    check(kept.gates.size(2) == (recompute ? 0 : 3 * H), "lltm_backward: gates must be what lltm_saving returned, got ",
          shape(kept.gates));
    const Tensor grad_gates = empty({N, 3 * H}, run.type);
    q.grad_gates = memory(grad_gates);
    q.output = memory(run.hold(aten::contiguous(output)));
    q.gates = memory(run.hold(aten::contiguous(kept.gates)));
    q.kept_c = memory(run.hold(aten::contiguous(kept.states)));
    q.recompute = recompute;
    if (recompute) layer.project(grad_gates, run);
    q.h_0 = run.read(layer.h_0);
    q.grad_output = run.elements(grad_output);
    q.grad_cells = run.read(grad_cells);
    q.grad_h_n = run.read(grad_h_n);
    run.place_c(grad_c_n);
    run.clear_padding(q.grad_gates, 3 * H * q.bytes);
    run.backward();

    Gradients out;
    auto& [x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0] = out;
    if (wants(wanted, 6) && given(layer.c_0)) c_0 = run.take_c(dtype(*layer.c_0));
    if (wants(wanted, 5) && given(layer.h_0)) h_0 = h_0_gradient(run, layer.weight_hh);
    if (wants(wanted, 3) && given(layer.bias_ih)) bias_ih = aten::sum(grad_gates, {0});
    if (wants(wanted, 4) && given(layer.bias_hh))
        bias_hh = bias_ih.defined() ? aten::clone(bias_ih) : aten::sum(grad_gates, {0});
    if (wants(wanted, 2)) weight_hh = weight_hh_gradient<C>(run, layer, grad_gates, output);
    if (wants(wanted, 1)) weight_ih = aten::mm(aten::t(grad_gates), inputs_of_steps<C>(run, layer));
    if (wants(wanted, 0)) x = aten::reshape(aten::mm(grad_gates, layer.weight_ih), {q.steps, q.batch, layer.x.size(2)});
    return out;
}

}  // namespace

Outputs lltm_cpu(const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
                 const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0,
                 const OptionalTensor& lengths, bool reverse, bool all_cells, bool recompute) {
    const Layer layer{x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse};
    return compute(x, [&](auto zero) { return forward<decltype(zero)>(layer, all_cells, recompute, nullptr); });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> lltm_saving_cpu(
    const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0, const OptionalTensor& lengths,
    bool reverse, bool all_cells, bool recompute) {
    const Layer layer{x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse};
    Kept kept;
    const auto out = compute(x, [&](auto zero) { return forward<decltype(zero)>(layer, all_cells, recompute, &kept); });
    return std::tuple_cat(out, std::tuple(kept.gates, kept.states));
}

Gradients lltm_backward_cpu(const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                            const OptionalTensor& grad_c_n, const OptionalTensor& grad_cells, const Tensor& x,
                            const Tensor& weight_ih, const Tensor& weight_hh, const Tensor& output, const Tensor& gates,
                            const Tensor& states, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
                            const OptionalTensor& h_0, const OptionalTensor& c_0, const OptionalTensor& lengths,
                            bool reverse, bool recompute, bool, const Wanted& wanted) {
    const Layer layer{x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse};
    return compute(x, [&](auto zero) {
        return backward<decltype(zero)>(layer, grad_output, grad_h_n, grad_c_n, grad_cells, output, {gates, states},
                                        recompute, wanted);
    });
}

OPWRIGHT_KERNEL(lltm, CPU, lltm_cpu);
OPWRIGHT_KERNEL(lltm_saving, CPU, lltm_saving_cpu);
OPWRIGHT_KERNEL(lltm_backward, CPU, lltm_backward_cpu);
