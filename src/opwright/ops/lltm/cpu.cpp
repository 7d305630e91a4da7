#include "walk.h"

#include <numeric>

namespace {

using OptionalTensor = std::optional<Tensor>;

Tensor fresh(std::initializer_list<int64_t> sizes, DType type) {
    Layout layout;
    for (const int64_t n : sizes) layout.size[layout.dim++] = n;
    layout.make_contiguous();
    return empty(layout, type);
}

Tensor contiguous(const Tensor& x) {
    return Layout(x).contiguous() ? x : call("aten::clone", "", x, std::optional<int32_t>());
}

Tensor transposed(const Tensor& x) { return call("aten::t", "", x); }
Tensor matrix(const Tensor& x, int64_t rows, int64_t columns) {
    return call("aten::reshape", "", x, std::vector<int64_t>{rows, columns});
}
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
    return call("aten::narrow", "", x, dim, start, length);
}
bool given(const OptionalTensor& x) { return x.has_value() && x->defined(); }

template <class T>
char* memory(const T& x) {
    return static_cast<char*>(const_cast<void*>(static_cast<const void*>(x.const_data_ptr())));
}

// The state of a call while it runs: what PyTorch's memory holds for it, and the numbers of its steps.
template <class C>
struct Call {
    lltm::Steps<C> q = {};
    std::vector<Tensor> held;
    DType type;
    int64_t threads_wanted = 1;

    Call(const Tensor& x, const Tensor& weight_hh, const OptionalTensor& lengths, bool reverse, bool batch_first)
        : type(dtype(x)) {
        q.steps = x.size(batch_first ? 1 : 0);
        q.batch = x.size(batch_first ? 0 : 1);
        q.hidden = weight_hh.size(1);
        q.step_rows = batch_first ? 1 : q.batch;
        q.batch_rows = batch_first ? q.steps : 1;
        q.reverse = reverse;
        q.convert = detail::conversion(type, dtype_of<C>);
        q.bytes = type == DType::Half || type == DType::BFloat16 ? 2 : int64_t(sizeof(C));
        q.weight = memory(hold(contiguous(weight_hh)));
        read_lengths(lengths);
        const double work = 6.0 * static_cast<double>(q.batch) * static_cast<double>(q.hidden * q.hidden + 32 * q.hidden);
        // A step that takes less than a few microseconds is over before another thread has heard of it.
        threads_wanted = std::min(threads(), 1 + static_cast<int64_t>(work / 100e3));
    }

    const Tensor& hold(Tensor x) {
        held.push_back(std::move(x));
        return held.back();
    }

    C* numbers(int64_t count, bool zeroed = false) {
        C* to = data<C>(hold(fresh({count + 64 / int64_t(sizeof(C))}, dtype_of<C>)));
        if (zeroed) std::fill_n(to, count, C(0));
        return to;
    }

    // A tensor as numbers in memory, or null for none. The dtype may be the call's or the one computed in.
    C* read(const OptionalTensor& x) {
        if (!given(x)) return nullptr;
        const Tensor& whole = hold(contiguous(*x));
        if (dtype(whole) == dtype_of<C>) return reinterpret_cast<C*>(memory(whole));
        C* to = numbers(whole.numel());
        detail::conversion(dtype(whole), dtype_of<C>).widen(reinterpret_cast<char*>(to), memory(whole), whole.numel());
        return to;
    }

    void read_lengths(const OptionalTensor& lengths) {
        std::vector<int64_t> raw(static_cast<size_t>(q.batch), q.steps);
        if (given(lengths)) {
            check(lengths->dim() == 1 && lengths->size(0) == q.batch && dtype(*lengths) == DType::Long,
                  "lltm: lengths must be ", q.batch, " int64 numbers");
            const auto at = strided<const int64_t, 1>(*lengths);
            for (int64_t b = 0; b < q.batch; ++b) {
                raw[b] = at(b);
                check(raw[b] >= 0 && raw[b] <= q.steps, "lltm: lengths must be from 0 to ", q.steps, ", got ", raw[b]);
            }
        }
        q.order.resize(q.batch);
        std::iota(q.order.begin(), q.order.end(), 0);
        std::stable_sort(q.order.begin(), q.order.end(), [&](int64_t a, int64_t b) { return raw[a] > raw[b]; });
        q.active.assign(q.steps, 0);
        for (const int64_t b : q.order) {
            q.length.push_back(raw[b]);
            if (raw[b] > 0) ++q.active[raw[b] - 1];
        }
        for (int64_t s = q.steps - 2; s >= 0; --s) q.active[s] += q.active[s + 1];
    }

    // The sum of the biases, as numbers.
    const C* read_bias(const OptionalTensor& first, const OptionalTensor& second) {
        if (!given(first) && !given(second)) return nullptr;
        const C *a = read(first), *b = read(second);
        C* sum = numbers(3 * q.hidden);
        for (int64_t j = 0; j < 3 * q.hidden; ++j) sum[j] = (a ? a[j] : C(0)) + (b ? b[j] : C(0));
        return sum;
    }

    // c, sorted and padded, from numbers in the order of the batch.
    void place_c(const C* from) {
        const int64_t lanes = 64 / int64_t(sizeof(C));  // of the widest vectors
        q.padded = (q.hidden + lanes - 1) / lanes * lanes;
        q.c = numbers(q.batch * q.padded, true);
        for (int64_t p = 0; from && p < q.batch; ++p) {
            std::copy_n(from + q.order[p] * q.hidden, q.hidden, q.c + p * q.padded);
        }
    }

    // c in the order of the batch, as a tensor of this dtype.
    Tensor take_c(DType as) {
        Tensor out = fresh({q.batch, q.hidden}, as);
        char* to = memory(out);
        const int64_t size = as == dtype_of<C> ? int64_t(sizeof(C)) : 2;
        const auto convert = detail::conversion(as, dtype_of<C>);
        for (int64_t p = 0; p < q.batch; ++p) {
            const char* from = reinterpret_cast<const char*>(q.c + p * q.padded);
            char* row = to + q.order[p] * q.hidden * size;
            if (convert.narrow) convert.narrow(row, from, q.hidden);
            if (!convert.narrow) std::memcpy(row, from, static_cast<size_t>(q.hidden * size));
        }
        return out;
    }

    void clear_padding(char* base, int64_t width, int64_t bytes) {
        if (!base) return;
        for (int64_t p = 0; p < q.batch; ++p) {
            for (int64_t t = q.length[p]; t < q.steps; ++t) {
                std::memset(base + (t * q.step_rows + q.order[p] * q.batch_rows) * width * bytes, 0,
                            static_cast<size_t>(width * bytes));
            }
        }
    }

    void prepare(bool backward) {
        const int64_t H = q.hidden;
        q.panel = aligned((H + 63) / 16 * 16 * H * 3);
        if (backward) q.backward_panel = aligned((H + 127) / 32 * 32 * H * 3);
        if (q.convert.widen) q.scratch = numbers(2 * q.batch * H * (backward ? 3 : 1));
        q.zeros = numbers(3 * H * (threads_wanted + 1) + threads_wanted * 8 * H);
        std::fill_n(q.zeros, 3 * H, C(0));
    }

    C* aligned(int64_t count) {
        C* to = numbers(count);
        return reinterpret_cast<C*>((reinterpret_cast<uintptr_t>(to) + 63) / 64 * 64);
    }

    void forward() {
        const auto tiles = lltm::Tiles<C>::template choose<lltm::TileForward>();
        Team::run(threads_wanted,
                  [&](Team& team, int64_t member) { lltm::Walk<C>(q, tiles, team, member).forward(); });
    }
    void backward() {
        const auto tiles = lltm::Tiles<C>::template choose<lltm::TileBackward>();
        Team::run(threads_wanted,
                  [&](Team& team, int64_t member) { lltm::Walk<C>(q, tiles, team, member).backward(); });
    }
};

struct Results {
    Tensor output, h_n, c_n, cells, tape;
};

template <class C>
Results forward(const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
                const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0,
                const OptionalTensor& lengths, bool reverse, bool batch_first, bool cells, bool recompute, bool saving) {
    Call<C> call_(x, weight_hh, lengths, reverse, batch_first);
    auto& q = call_.q;
    const int64_t H = q.hidden, N = q.steps * q.batch, first = x.size(0), second = x.size(1);
    const DType type = call_.type;
    Results out;
    out.output = fresh({first, second, H}, type);
    Tensor gates;
    if (saving) out.tape = fresh({first, second, recompute ? H : 4 * H}, type);
    if (saving && !recompute) {
        gates = narrow(matrix(out.tape, N, 4 * H), 1, 0, 3 * H);
        q.gates_width = 4 * H;
        q.keep_gates = true;
        q.kept_c = memory(out.tape) + 3 * H * q.bytes, q.kept_c_width = 4 * H;
    } else {
        gates = fresh({N, 3 * H}, type);
        q.gates_width = 3 * H;
        if (saving) q.kept_c = memory(out.tape), q.kept_c_width = H;
    }
    if (N > 0 && H > 0) call("aten::mm", "out", matrix(x, N, x.size(2)), transposed(weight_ih), gates);
    q.gates = memory(gates);
    q.output = memory(out.output);
    if (cells) out.cells = fresh({first, second, H}, type), q.cells = memory(out.cells);
    q.bias = call_.read_bias(bias_ih, bias_hh);
    q.h_0 = call_.read(h_0);
    call_.place_c(call_.read(c_0));
    if (H > 0) {
        call_.prepare(false);
        if (saving) call_.clear_padding(memory(out.tape), recompute ? H : 4 * H, q.bytes);
        call_.clear_padding(q.output, H, q.bytes);
        call_.clear_padding(q.cells, H, q.bytes);
        call_.forward();
    }
    out.c_n = call_.take_c(given(c_0) ? dtype(*c_0) : type);
    out.h_n = fresh({q.batch, H}, type);
    for (int64_t p = 0; p < q.batch; ++p) {
        char* to = memory(out.h_n) + q.order[p] * H * q.bytes;
        const char* from = q.length[p] > 0 ? q.output + q.row(p, q.length[p] - 1) * H * q.bytes : nullptr;
        if (from) {
            std::memcpy(to, from, static_cast<size_t>(H * q.bytes));
        } else if (q.h_0 && q.convert.narrow) {
            q.convert.narrow(to, reinterpret_cast<const char*>(q.h_0 + q.order[p] * H), H);
        } else if (q.h_0) {
            std::memcpy(to, q.h_0 + q.order[p] * H, static_cast<size_t>(H * q.bytes));
        } else {
            std::memset(to, 0, static_cast<size_t>(H * q.bytes));
        }
    }
    return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> proto_forward(
    const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0, const OptionalTensor& lengths,
    bool reverse, bool batch_first, bool cells, bool recompute, bool saving) {
    return compute(x, [&](auto zero) {
        auto r = forward<decltype(zero)>(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse,
                                         batch_first, cells, recompute, saving);
        return std::tuple(r.output, r.h_n, r.c_n, r.cells, r.tape);
    });
}

template <class C>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const OptionalTensor& grad_output, const OptionalTensor& grad_h_n, const OptionalTensor& grad_c_n,
    const OptionalTensor& grad_cells, const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh,
    const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0,
    const Tensor& output, const Tensor& tape, const OptionalTensor& lengths, bool reverse, bool batch_first,
    bool recompute) {
    Call<C> call_(x, weight_hh, lengths, reverse, batch_first);
    auto& q = call_.q;
    const int64_t H = q.hidden, N = q.steps * q.batch;
    Tensor grad_gates = fresh({N, 3 * H}, call_.type);
    q.grad_gates = memory(grad_gates);
    q.recompute = recompute;
    q.output = memory(call_.hold(contiguous(output)));
    q.gates = memory(call_.hold(contiguous(tape)));
    q.gates_width = 4 * H;
    q.kept_c = recompute ? q.gates : q.gates + 3 * H * q.bytes;
    q.kept_c_width = recompute ? H : 4 * H;
    if (recompute) {
        if (N > 0) call("aten::mm", "out", matrix(x, N, x.size(2)), transposed(weight_ih), grad_gates);
        q.bias = call_.read_bias(bias_ih, bias_hh);
    }
    q.h_0 = call_.read(h_0);
    if (given(grad_output)) q.grad_output = memory(call_.hold(contiguous(*grad_output)));
    if (given(grad_cells)) q.grad_cells = memory(call_.hold(contiguous(*grad_cells)));
    q.grad_h_n = call_.read(grad_h_n);
    call_.place_c(call_.read(grad_c_n));
    call_.prepare(true);
    call_.clear_padding(q.grad_gates, 3 * H, q.bytes);
    call_.backward();
    Tensor grad_x = call("aten::mm", "", grad_gates, weight_ih);
    Tensor grad_wih = call("aten::mm", "", transposed(grad_gates), matrix(x, N, x.size(2)));
    Tensor grad_whh = call("aten::mm", "", transposed(narrow(grad_gates, 0, q.batch, N - q.batch)), narrow(matrix(output, N, H), 0, 0, N - q.batch));
    Tensor grad_b = call("aten::sum", "dim_IntList", grad_gates, std::optional(std::vector<int64_t>{0}), false, std::optional<DType>());
    return {grad_x, grad_wih, grad_whh, grad_b, grad_gates};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> proto_backward(
    const OptionalTensor& grad_output, const OptionalTensor& grad_h_n, const OptionalTensor& grad_c_n,
    const OptionalTensor& grad_cells, const Tensor& x, const Tensor& weight_ih, const Tensor& weight_hh,
    const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, const OptionalTensor& h_0, const OptionalTensor& c_0,
    const Tensor& output, const Tensor& tape, const OptionalTensor& lengths, bool reverse, bool batch_first,
    bool recompute) {
    return compute(x, [&](auto zero) {
        return backward<decltype(zero)>(grad_output, grad_h_n, grad_c_n, grad_cells, x, weight_ih, weight_hh, bias_ih,
                                        bias_hh, h_0, c_0, output, tape, lengths, reverse, batch_first, recompute);
    });
}

}  // namespace

OPWRIGHT_KERNEL(proto_forward, CPU, proto_forward);
OPWRIGHT_KERNEL(proto_backward, CPU, proto_backward);
