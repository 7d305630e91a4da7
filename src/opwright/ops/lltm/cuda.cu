#include <opwright/explains.h>

#include "columns.cuh"
#include "persist.cuh"
#include "told.cuh"

// One kernel for all steps where it fits and pays (persist.cuh). Else each step is a product of PyTorch's and one
// kernel for the gates, on buffers that are made once; many steps are replayed as a graph (replay.cuh).

using namespace lltm;

namespace {

constexpr int64_t per_block = step_threads;

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// What a gradient reads of a call beside its arguments and output; without its gates where they are computed again.
struct Kept {
    Tensor gates, states;
};

// What the forward recurrence reads and writes.
struct Run {
    Tensor gates, h, c_n, output, cells, states;
    DType state;
    bool keep;
};

template <class T>
bool persistent_forward(const Layer& layer, Run& run) {
    if constexpr (std::is_same_v<T, double>) {
        return false;
    } else {
        using E = persist::Element<T>;
        const persist::Choice choice = persist::choose<T>(layer, true);
        if (!choice) return false;
        const int64_t H = layer.hidden();
        persist::Forward<E> call = {};
        call.gates = elements<E>(run.gates), call.keep_gates = run.keep;
        call.kept_c = elements<E>(run.states);
        call.bias_ih = layer.is_half() ? nullptr : elements<const E>(layer.bias_ih);
        call.bias_hh = elements<const E>(layer.bias_hh), call.h_0 = elements<const E>(layer.h_0);
        run.c_n = empty({layer.batch(), H}, run.state);
        call.output = elements<E>(run.output), call.h_n = elements<E>(run.h);
        call.c_0 = elements<const void>(layer.c_0), call.c_n = elements<void>(run.c_n);
        call.cells = elements<void>(run.cells), call.is_wide = run.state == DType::Float;
        return persist::run(choice, layer, call);
    }
}

template <class T>
void looped_forward(const Layer& layer, Run& run) {
    using C = Compute<T>;
    const int64_t H = layer.hidden(), steps = layer.steps(), B = layer.batch(), N = layer.rows();
    if (layer.lengths.defined()) {
        clear(run.output);
        if (run.cells.defined()) clear(run.cells);
        if (run.states.defined() && !run.keep) clear(run.states);
    }
    if (layer.h_0.defined()) {
        const T* from = data<const T>(layer.h_0);
        T* to = data<T>(run.h);
        for_each(run.h.numel(), [=] __device__(int64_t i) { to[i] = from[i]; });
    } else {
        clear(run.h);
    }
    const Tensor recurrent = empty({B, 3 * H}, layer.type());
    const Tensor c = layer.template numbers<T, C>(layer.c_0);
    Step<T, C> q = layer.template step<T, C>();
    q.gates = elements<T>(run.gates), q.keep_gates = run.keep;
    q.kept_c = elements<T>(run.states);
    q.recurrent = elements<const T>(recurrent);
    q.h = data<T>(run.h), q.c = data<C>(c), q.output = data<T>(run.output), q.cells = Either<T, C>(run.cells);
    q.by = 1;
    for_steps(0, B * H > 0 ? steps : 0, q.by, [&](int64_t step, const int64_t* now, int64_t* next) {
        q.step = step, q.now = now, q.next = next;
        layer.recur(run.h, recurrent);
        launch(forward_step<T, C>, {ceil_div(B * H, per_block), per_block}, q);
    });
    // Where the gates of missing steps would be there is what came in, and nothing where their c would be.
    if (layer.lengths.defined() && run.keep) {
        const int64_t* lengths = q.lengths;
        T *gates = q.gates, *c = q.kept_c;
        for_each(N * H, [=] __device__(int64_t i) {
            const int64_t row = i / H, at = row * 3 * H + i % H;
            if (row / B < lengths[row % B]) return;
            gates[at] = gates[at + H] = gates[at + 2 * H] = c[i] = static_cast<T>(0.0f);
        });
    }
    run.c_n = layer.template narrowed_to<T, C>(c, run.state);
}

template <class T>
Outputs forward(const Layer& layer, bool all_cells, bool recompute, Kept* kept) {
    const int64_t H = layer.hidden(), steps = layer.steps(), B = layer.batch(), N = layer.rows();
    const DType type = layer.type();
    Run run = {};
    run.state = layer.c_0.defined() ? dtype(layer.c_0) : type;
    run.keep = kept && !recompute;
    run.output = empty({steps, B, H}, type);
    if (all_cells) run.cells = empty({steps, B, H}, run.state);
    if (kept) *kept = {empty({steps, B, recompute ? 0 : 3 * H}, type), run.states = empty({steps, B, H}, type)};
    run.gates = run.keep ? aten::reshape(kept->gates, {N, 3 * H}) : empty({N, 3 * H}, type);
    layer.project(run.gates);
    run.h = empty({B, H}, type);
    if (!persistent_forward<T>(layer, run)) looped_forward<T>(layer, run);
    return {run.output, run.h, run.c_n, run.cells};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// What the backward recurrence reads and writes.
struct Back {
    Tensor output, gates, states, d_output, d_h_n, d_c_n, d_cells;
    Tensor grad_gates, d_h_0, d_c_0;  // the last two: where they are wanted
    bool recompute, wants_c_0;
};

// h before each of some rows of all steps.
template <class T>
void gather_before(const Layer& layer, const Back& back, int64_t first, int64_t rows, const Tensor& before) {
    const int64_t H = layer.hidden(), steps = layer.steps(), B = layer.batch();
    const bool reverse = layer.reverse;
    const int64_t* lengths = elements<const int64_t>(layer.lengths);
    const T *output = data<const T>(back.output), *h_0 = elements<const T>(layer.h_0);
    T* to = data<T>(before);
    for_each(rows * H, [=] __device__(int64_t i) {
        const int64_t row = first + i / H, j = i % H, t = row / B, b = row % B;
        const int64_t length = lengths && lengths[b] < steps ? lengths[b] : steps;
        // Sequences that end early are walked from their own end, where h_0 is.
        const bool inside = reverse ? t + 1 < length : t > 0, start = reverse ? t + 1 == length : t == 0;
        to[i] = inside         ? output[(row + (reverse ? B : -B)) * H + j]
                : start && h_0 ? h_0[b * H + j]
                               : static_cast<T>(0.0f);
    });
}

// The gates of all steps where their gradients will be: h before each step is known, so that this waits for no step.
template <class T>
void recompute_gates(const Layer& layer, const Back& back) {
    using C = Compute<T>;
    const int64_t H = layer.hidden(), N = layer.rows(), part = std::min(N, std::max<int64_t>(ceil_div(N, 16), 4096));
    const Tensor before = empty({part, H}, layer.type()), recurrent = empty({part, 3 * H}, layer.type());
    const T* h = data<const T>(recurrent);
    const T* bias_ih = layer.is_half() ? nullptr : elements<const T>(layer.bias_ih);
    const T* bias_hh = layer.is_half() ? nullptr : elements<const T>(layer.bias_hh);
    layer.project(back.grad_gates);
    for (int64_t first = 0; first < N; first += part) {
        const int64_t rows = std::min(part, N - first);
        gather_before<T>(layer, back, first, rows, before);
        const Tensor sums = aten::narrow(recurrent, 0, 0, rows);
        layer.recur(aten::narrow(before, 0, 0, rows), sums);
        T* gates = data<T>(back.grad_gates) + first * 3 * H;
        for_each(rows * H, [=] __device__(int64_t i) {
            const int64_t j = i % H, at = i / H * 3 * H + j;
            C z[3];
#pragma unroll
            for (int g = 0; g < 3; ++g) {
                z[g] = static_cast<C>(gates[at + g * H]) + static_cast<C>(h[at + g * H]);
                if (bias_ih) z[g] += static_cast<C>(bias_ih[g * H + j]);
                if (bias_hh) z[g] += static_cast<C>(bias_hh[g * H + j]);
            }
            const auto done = activate(z[0], z[1], z[2]);
            gates[at] = static_cast<T>(done.i), gates[at + H] = static_cast<T>(done.o);
            gates[at + 2 * H] = static_cast<T>(done.g);
        });
    }
}

template <class T>
bool persistent_backward(const Layer& layer, Back& back) {
    if constexpr (std::is_same_v<T, double>) {
        return false;
    } else {
        using E = persist::Element<T>;
        const persist::Choice choice = persist::choose<T>(layer, false);
        if (!choice) return false;
        const int64_t H = layer.hidden();
        if (back.recompute) recompute_gates<T>(layer, back);
        persist::Backward<E> call = {};
        call.gates = elements<const E>(back.recompute ? back.grad_gates : back.gates);
        call.kept_c = elements<const E>(back.states);
        call.grad_output = elements<const E>(back.d_output);
        call.grad_h_n = elements<const E>(back.d_h_n), call.grad_cells = elements<const void>(back.d_cells);
        call.cells_are_wide = back.d_cells.defined() && dtype(back.d_cells) == DType::Float;
        if (back.wants_c_0) back.d_c_0 = empty({layer.batch(), H}, dtype(layer.c_0));
        call.grad_c_n = elements<const void>(back.d_c_n), call.grad_c_0 = elements<void>(back.d_c_0);
        call.c_n_is_wide = back.d_c_n.defined() && dtype(back.d_c_n) == DType::Float;
        call.c_0_is_wide = back.d_c_0.defined() && dtype(back.d_c_0) == DType::Float;
        call.grad_gates = elements<E>(back.grad_gates);
        call.grad_h_0 = elements<E>(back.d_h_0);
        return persist::run(choice, layer, call);
    }
}

template <class T>
void looped_backward(const Layer& layer, Back& back) {
    using C = Compute<T>;
    const int64_t H = layer.hidden(), steps = layer.steps(), B = layer.batch(), N = layer.rows();
    const DType type = layer.type();
    const bool recompute = back.recompute;
    const Tensor recent = empty({B, 3 * H}, type), d_h = empty({B, H}, type);
    const Tensor h = recompute ? empty({B, H}, type) : Tensor(),
                 recurrent = recompute ? empty({B, 3 * H}, type) : Tensor();
    const Tensor d_c = layer.template numbers<T, C>(back.d_c_n);
    if (recompute) layer.project(back.grad_gates);
    if (layer.lengths.defined() && !recompute) clear(back.grad_gates);
    clear(recent);
    Step<T, C> q = layer.template step<T, C>();
    q.gates = elements<T>(back.gates), q.kept_c = elements<T>(back.states);
    q.output = elements<T>(back.output), q.h = elements<T>(h);
    q.recompute = recompute, q.recurrent = recompute ? elements<const T>(recurrent) : nullptr;
    q.grad_output = elements<const T>(back.d_output), q.grad_h_n = elements<const T>(back.d_h_n);
    q.grad_cells = Either<T, C>(back.d_cells);
    q.grad_c = data<C>(d_c), q.grad_gates = elements<T>(back.grad_gates), q.grad_recent = elements<T>(recent);
    const Grid grid{ceil_div(B * H, per_block), per_block};
    q.by = -1;
    for_steps(steps - 1, B * H > 0 ? steps : 0, q.by, [&](int64_t step, const int64_t* now, int64_t* next) {
        q.step = step, q.now = now, q.next = next;
        const bool any = now || step + 1 < steps;
        call("aten::mm", "out", recent, layer.weight_hh, d_h);  // the first time too, which is before a capture
        q.grad_h = any ? data<const T>(d_h) : nullptr;
        if (recompute) {
            launch(gather_h<T, C>, grid, q, elements<const T>(layer.h_0));
            layer.recur(h, recurrent);
        }
        launch(backward_step<T, C>, grid, q);
    });
    if (layer.lengths.defined() && recompute) {
        const int64_t* lengths = q.lengths;
        T* rows = q.grad_gates;
        for_each(N * 3 * H, [=] __device__(int64_t i) {
            const int64_t row = i / (3 * H);
            if (row / B >= lengths[row % B]) rows[i] = static_cast<T>(0.0f);
        });
    }
    if (back.wants_c_0) back.d_c_0 = layer.template narrowed_to<T, C>(d_c, dtype(layer.c_0));
    if (!back.d_h_0.defined() || B * H == 0) return;
    call("aten::mm", "out", recent, layer.weight_hh, back.d_h_0);
    if (layer.lengths.defined() || steps == 0) {
        const int64_t* lengths = q.lengths;
        const T* in = q.grad_h_n;
        T* to = data<T>(back.d_h_0);
        for_each(B * H, [=] __device__(int64_t i) {
            if (!lengths || steps == 0 || lengths[i / H] <= 0) to[i] = in ? in[i] : static_cast<T>(0.0f);
        });
    }
}

// x, with zeros for the steps that a sequence does not have: what is not finite there is not zero times a zero.
template <class T>
Tensor inputs_of_steps(const Layer& layer) {
    const Tensor rows = layer.inputs();
    if (!layer.lengths.defined()) return rows;
    const Tensor from = aten::contiguous(rows), to = empty({layer.rows(), rows.size(1)}, layer.type());
    const int64_t* lengths = elements<const int64_t>(layer.lengths);
    const int64_t B = layer.batch(), width = rows.size(1);
    const T* in = data<const T>(from);
    T* out = data<T>(to);
    for_each(to.numel(), [=] __device__(int64_t i) {
        const int64_t row = i / width;
        out[i] = row / B < lengths[row % B] ? in[i] : static_cast<T>(0.0f);
    });
    return to;
}

// The gradient of weight_hh: those of the gates times h before each step.
template <class T>
Tensor recurrent_gradient(const Layer& layer, const Back& back) {
    using C = Compute<T>;
    const int64_t H = layer.hidden(), B = layer.batch(), N = layer.rows();
    if (layer.reverse && layer.lengths.defined()) {
        const Tensor before = empty({N, H}, layer.type());
        gather_before<T>(layer, back, 0, N, before);
        return aten::mm(aten::t(back.grad_gates), before);
    }
    // h before a step is a row of the output one step earlier, and h_0 before the first.
    const int64_t skip = std::min(B, N);
    const Tensor rows = aten::reshape(back.output, {N, H});
    const Tensor out = aten::mm(aten::t(aten::narrow(back.grad_gates, 0, layer.reverse ? 0 : skip, N - skip)),
                                aten::narrow(rows, 0, layer.reverse ? skip : 0, N - skip));
    if (N == 0) return out;
    T* to = data<T>(out);
    if (!layer.h_0.defined()) {
        // It begins with zeros, which times a gradient that is not finite are not zero.
        const T* first = data<const T>(back.grad_gates) + (layer.reverse ? N - skip : 0) * 3 * H;
        for_each(3 * H, [=] __device__(int64_t j) {
            C sum = 0;
            for (int64_t b = 0; b < skip; ++b) sum += C(0) * static_cast<C>(first[b * 3 * H + j]);
            for (int64_t k = 0; sum != C(0) && k < H; ++k) to[j * H + k] = static_cast<T>(sum);
        });
        return out;
    }
    const Tensor start =
        aten::mm(aten::t(aten::narrow(back.grad_gates, 0, layer.reverse ? N - skip : 0, skip)), layer.h_0);
    const T* more = data<const T>(start);
    for_each(out.numel(),
             [=] __device__(int64_t i) { to[i] = static_cast<T>(static_cast<C>(to[i]) + static_cast<C>(more[i])); });
    return out;
}

template <class T>
Gradients backward(const Layer& layer, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                   const OptionalTensor& grad_c_n, const OptionalTensor& grad_cells, const Tensor& output,
                   const Kept& kept, bool recompute, const Wanted& wanted) {
    const int64_t H = layer.hidden(), steps = layer.steps(), B = layer.batch(), N = layer.rows();
    check(kept.gates.size(2) == (recompute ? 0 : 3 * H), "lltm_backward: gates must be what lltm_saving returned, got ",
          shape(kept.gates));
    Back back = {};
    back.output = aten::contiguous(output), back.recompute = recompute;
    back.gates = aten::contiguous(kept.gates), back.states = aten::contiguous(kept.states);
    back.d_output = Layer::whole(grad_output), back.d_h_n = Layer::whole(grad_h_n);
    back.d_cells = Layer::whole(grad_cells);
    back.grad_gates = empty({N, 3 * H}, layer.type());
    back.d_c_n = Layer::whole(grad_c_n), back.wants_c_0 = wants(wanted, 6) && layer.c_0.defined();
    if (wants(wanted, 5) && layer.h_0.defined()) back.d_h_0 = empty({B, H}, layer.type());
    if (!persistent_backward<T>(layer, back)) looped_backward<T>(layer, back);

    Gradients out;
    auto& [x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0] = out;
    h_0 = back.d_h_0, c_0 = back.d_c_0;
    const bool first = wants(wanted, 3) && layer.bias_ih.defined(),
               second = wants(wanted, 4) && layer.bias_hh.defined();
    if (first || second) std::tie(bias_ih, bias_hh) = sums_of_rows<T>(back.grad_gates, first, second);
    if (wants(wanted, 2)) weight_hh = recurrent_gradient<T>(layer, back);
    if (wants(wanted, 1)) weight_ih = aten::mm(aten::t(back.grad_gates), inputs_of_steps<T>(layer));
    if (wants(wanted, 0)) x = aten::reshape(aten::mm(back.grad_gates, layer.weight_ih), {steps, B, layer.x.size(2)});
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

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> lltm_saving_cuda(
    const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0, const OptionalTensor& lengths,
    bool reverse, bool all_cells, bool recompute) {
    const Layer layer(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse);
    Kept kept;
    const auto out = dispatch(floating, dtype(x),
                              [&](auto zero) { return forward<decltype(zero)>(layer, all_cells, recompute, &kept); });
    return std::tuple_cat(out, std::tuple(kept.gates, kept.states));
}

Gradients lltm_backward_cuda(const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                             const OptionalTensor& grad_c_n, const OptionalTensor& grad_cells, const Tensor& x,
                             const Tensor& weight_ih, const Tensor& weight_hh, const Tensor& output,
                             const Tensor& gates, const Tensor& states, const OptionalTensor& bias_ih,
                             const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0,
                             const OptionalTensor& lengths, bool reverse, bool recompute, bool, const Wanted& wanted) {
    const Layer layer(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse);
    return dispatch(floating, dtype(x), [&](auto zero) {
        return backward<decltype(zero)>(layer, grad_output, grad_h_n, grad_c_n, grad_cells, output, {gates, states},
                                        recompute, wanted);
    });
}

std::string path_of(const Tensor& x, const Tensor& weight_hh, bool forward) {
    return dispatch(floating, dtype(x), [&](auto zero) {
        return persist::path<decltype(zero)>(x.size(0), x.size(1), weight_hh.size(1), forward);
    });
}

std::string explain(const Tensor& x, const Tensor&, const Tensor& weight_hh, const OptionalTensor&,
                    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool,
                    bool, bool) {
    return path_of(x, weight_hh, true);
}

std::string explain_saving(const Tensor& x, const Tensor&, const Tensor& weight_hh, const OptionalTensor&,
                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                           bool, bool, bool) {
    return path_of(x, weight_hh, true) + "; its gradient: " + path_of(x, weight_hh, false);
}

OPWRIGHT_KERNEL(lltm, CUDA, lltm_cuda);
OPWRIGHT_EXPLAINS(lltm, CUDA, lltm_cuda, explain);
OPWRIGHT_EXPLAINS(lltm_saving, CUDA, lltm_saving_cuda, explain_saving);
OPWRIGHT_KERNEL(lltm_saving, CUDA, lltm_saving_cuda);
OPWRIGHT_KERNEL(lltm_backward, CUDA, lltm_backward_cuda);
