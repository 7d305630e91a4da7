#include <opwright/aten.h>
#include <opwright/kernel.h>

namespace {

using OptionalTensor = std::optional<Tensor>;

// So many units at a time: what they need stays in the nearest cache.
constexpr int64_t block = 256;

struct Bytes {
    char* data;
    ow_inner::Conversion convert;
    int64_t bytes;

    Bytes() : data(nullptr), convert{}, bytes(0) {}
    template <class C>
    Bytes(const Tensor& x, C) : data(static_cast<char*>(const_cast<void*>(x.const_data_ptr()))) {
        convert = ow_inner::conversion(dtype(x), dtype_of<C>);
        bytes = convert.widen ? 2 : int64_t(sizeof(C));
    }
};

// A stretch of elements as numbers: where they lie, or widened into `room`.
template <class C>
const C* load(const Bytes& x, int64_t at, int64_t n, C* room) {
    const char* from = x.data + at * x.bytes;
    if (!x.convert.widen) return reinterpret_cast<const C*>(from);
    x.convert.widen(reinterpret_cast<char*>(room), from, n);
    return room;
}

// Where to write numbers that become elements, and the end of it.
template <class C>
C* place(const Bytes& x, int64_t at, C* room) {
    return x.convert.narrow ? room : reinterpret_cast<C*>(x.data + at * x.bytes);
}
template <class C>
void store(const Bytes& x, int64_t at, int64_t n, const C* room) {
    if (x.convert.narrow) x.convert.narrow(x.data + at * x.bytes, reinterpret_cast<const char*>(room), n);
}

template <class C>
struct Forward {
    // x, h and b hold the parts of three gates: from the input, from h, and the bias.
    static OPWRIGHT_INLINE void run(const C* const* x, const C* const* h, const C* const* b, const C* c,
                                    C* const* gates, C* next, C* out, int64_t n) {
        const C *xi = x[0], *xo = x[1], *xg = x[2], *hi = h[0], *ho = h[1], *hg = h[2], *bi = b[0], *bo = b[1];
        const C* bg = b[2];
        C *i = gates[0], *o = gates[1], *g = gates[2];
        OPWRIGHT_INDEPENDENT
        for (int64_t l = 0; l < n; ++l) {
            const C z = xg[l] + hg[l] + bg[l], below = simd::expm1_negative(z);
            const C si = simd::sigmoid(xi[l] + hi[l] + bi[l]), so = simd::sigmoid(xo[l] + ho[l] + bo[l]);
            const C s = c[l] + (z > C(0) ? z : below) * si;
            i[l] = si, o[l] = so, g[l] = z;  // elu' of a rounded elu would have lost its digits near -1
            next[l] = s;
            out[l] = simd::tanh(s) * so;
        }
    }
};

template <class C>
struct Backward {
    static OPWRIGHT_INLINE void run(const C* i, const C* o, const C* g, const C* c, const C* grad_h, const C* grad_c,
                                    C* di, C* dd, C* dg, C* dc, int64_t n) {
        OPWRIGHT_INDEPENDENT
        for (int64_t l = 0; l < n; ++l) {
            const C below = simd::expm1_negative(g[l]), slope = simd::exp(g[l] > C(0) ? C(0) : g[l]);
            const C candidate = g[l] > C(0) ? g[l] : below, t = simd::tanh(c[l] + candidate * i[l]);
            const C d = grad_c[l] + grad_h[l] * o[l] * (C(1) - t * t);
            di[l] = d * candidate * i[l] * (C(1) - i[l]);
            dd[l] = grad_h[l] * t * o[l] * (C(1) - o[l]);
            dg[l] = d * i[l] * slope;
            dc[l] = d;
        }
    }
};

// x in the dtype of another tensor.
Tensor as(const Tensor& x, const Tensor& other) {
    if (dtype(x) == dtype(other)) return x;
    Layout layout(x);
    layout.make_contiguous();
    return map_into(empty(layout, dtype(other)), [](float v) { return v; }, x);
}

// Up to here copies cost less than one more call of PyTorch's product.
bool is_small(const Tensor& x, const Tensor& h) { return x.size(0) * (x.size(1) + h.size(1)) < (1 << 18); }

// Rows of two matrices side by side, or apart again; h and x have one dtype.
void copy_rows(const Tensor& joined, const Tensor& h, const Tensor& x, bool apart) {
    const int64_t size = dtype(x) == DType::Double ? 8 : dtype(x) == DType::Float ? 4 : 2;
    const int64_t left = h.size(1) * size, right = x.size(1) * size;
    const auto memory = [](const Tensor& t) { return static_cast<char*>(const_cast<void*>(t.const_data_ptr())); };
    char *to = memory(joined), *from_h = memory(h), *from_x = memory(x);
    // A side without columns has no memory, and memcpy takes no null pointer.
    const auto copy = [](char* to, const char* from, int64_t bytes) {
        if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    };
    for (int64_t row = 0; row < x.size(0); ++row, to += left + right, from_h += left, from_x += right) {
        copy(apart ? from_h : to, apart ? to : from_h, left);
        copy(apart ? from_x : to + left, apart ? to + left : from_x, right);
    }
}

Tensor joined(const Tensor& x, const Tensor& h) {
    const Tensor out = empty({x.size(0), h.size(1) + x.size(1)}, dtype(x));
    copy_rows(out, aten::contiguous(as(h, x)), aten::contiguous(x), false);
    return out;
}

// Whether its elements are narrower than the numbers that they are computed in.
bool is_half(const Tensor& x) { return dtype(x) == DType::Half || dtype(x) == DType::BFloat16; }

struct Products {
    Tensor z, recurrent, bias;
};

// [h, x] Wᵀ + b, as terms to be added: one product, or one each for h and x where [h, x] would be much, and the bias.
// Half numbers are rounded once, as the reference rounds them: where terms cancel it shows.
Products products(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Tensor& h) {
    if (is_half(x)) return {aten::linear(joined(x, h), weight, bias), Tensor(), Tensor()};
    const Tensor b = given(bias) ? aten::contiguous(*bias) : Tensor();
    const int64_t H = h.size(1), I = x.size(1);
    if (is_small(x, h)) return {aten::mm(joined(x, h), aten::t(weight)), Tensor(), b};
    return {aten::mm(x, aten::t(aten::narrow(weight, 1, H, I))),
            aten::mm(as(h, x), aten::t(aten::narrow(weight, 1, 0, H))), b};
}

// The cell; the gates too are results, written over their pre-activations.
template <class C>
std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                           const Tensor& h, const Tensor& c) {
    const int64_t batch = x.size(0), H = h.size(1);
    const auto [gates, recurrent, offsets] = products(x, weight, bias, h);
    const Tensor before = aten::contiguous(c);
    const Tensor next = empty({batch, H}, dtype(c)), out = empty({batch, H}, dtype(c));
    const Bytes z(gates, C()), old(before, C()), states(next, C()), hs(out, C());
    const Bytes zh = recurrent.defined() ? Bytes(recurrent, C()) : Bytes();
    const Bytes b = offsets.defined() ? Bytes(offsets, C()) : Bytes();
    const auto loop = ow_inner::best<Forward<C>, const C* const*, const C* const*, const C* const*, const C*, C* const*,
                                     C*, C*, int64_t>();
    parallel(0, batch, grain / (16 * H + 1) + 1, [&](int64_t begin, int64_t end) {
        alignas(64) C room[15][block];
        std::fill_n(room[14], block, C(0));
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t j = 0; j < H; j += block) {
                const int64_t n = std::min(block, H - j), at = row * 3 * H + j, own = row * H + j;
                const C *from_x[3], *from_h[3], *from_b[3];
                C* to[3];
                for (int g = 0; g < 3; ++g) {
                    from_x[g] = load(z, at + g * H, n, room[g]);
                    from_h[g] = zh.data ? load(zh, at + g * H, n, room[3 + g]) : room[14];
                    from_b[g] = b.data ? load(b, g * H + j, n, room[6 + g]) : room[14];
                    to[g] = place(z, at + g * H, room[g]);
                }
                C *to_c = place(states, own, room[9]), *to_h = place(hs, own, room[10]);
                loop(from_x, from_h, from_b, load(old, own, n, room[11]), to, to_c, to_h, n);
                for (int g = 0; g < 3; ++g) store(z, at + g * H, n, to[g]);
                store(states, own, n, to_c), store(hs, own, n, to_h);
            }
        }
    });
    return {out, next, gates};
}

// The sum of a few rows.
template <class C>
Tensor small_sum(const Tensor& rows) {
    const int64_t n = rows.size(1);
    const Tensor out = empty({n}, dtype_of<C>);
    C* __restrict to = data<C>(out);
    const C* from = data<const C>(rows);
    std::fill_n(to, n, C(0));
    for (int64_t row = 0; row < rows.size(0); ++row, from += n) {
        for (int64_t j = 0; j < n; ++j) to[j] += from[j];
    }
    return out;
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class C>
Gradients backward(const OptionalTensor& grad_h, const OptionalTensor& grad_c, const Tensor& x, const Tensor& weight,
                   const Tensor& h, const Tensor& c, const OptionalTensor& bias, const Tensor& gates,
                   const Wanted& wanted) {
    const int64_t batch = x.size(0), H = h.size(1), I = x.size(1);
    const Tensor d = empty({batch, 3 * H}, dtype(x)), dc = empty({batch, H}, dtype(c));
    const Tensor kept = aten::contiguous(gates), before = aten::contiguous(c);
    const Tensor gh = given(grad_h) ? aten::contiguous(*grad_h) : Tensor(),
                 gc = given(grad_c) ? aten::contiguous(*grad_c) : Tensor();
    const Bytes z(kept, C()), old(before, C()), to_gates(d, C()), to_c(dc, C());
    const Bytes from_h = gh.defined() ? Bytes(gh, C()) : Bytes(), from_c = gc.defined() ? Bytes(gc, C()) : Bytes();
    const auto loop = ow_inner::best<Backward<C>, const C*, const C*, const C*, const C*, const C*, const C*, C*, C*,
                                     C*, C*, int64_t>();
    parallel(0, batch, grain / (16 * H + 1) + 1, [&](int64_t begin, int64_t end) {
        alignas(64) C room[11][block];
        std::fill_n(room[10], block, C(0));
        for (int64_t b = begin; b < end; ++b) {
            for (int64_t j = 0; j < H; j += block) {
                const int64_t n = std::min(block, H - j), at = b * 3 * H + j, own = b * H + j;
                C* to[] = {place(to_gates, at, room[6]), place(to_gates, at + H, room[7]),
                           place(to_gates, at + 2 * H, room[8]), place(to_c, own, room[9])};
                loop(load(z, at, n, room[0]), load(z, at + H, n, room[1]), load(z, at + 2 * H, n, room[2]),
                     load(old, own, n, room[3]), from_h.data ? load(from_h, own, n, room[4]) : room[10],
                     from_c.data ? load(from_c, own, n, room[5]) : room[10], to[0], to[1], to[2], to[3], n);
                store(to_gates, at, n, to[0]), store(to_gates, at + H, n, to[1]);
                store(to_gates, at + 2 * H, n, to[2]), store(to_c, own, n, to[3]);
            }
        }
    });
    Gradients out;
    auto& [d_x, d_weight, d_bias, d_h, d_state] = out;
    if (wants(wanted, 2) && given(bias))
        d_bias = is_small(x, h) && to_gates.convert.widen == nullptr ? small_sum<C>(d) : aten::sum(d, {0});
    if (is_small(x, h)) {
        if (wants(wanted, 1)) d_weight = aten::mm(aten::t(d), joined(x, h));
        if (wants(wanted, 0) || wants(wanted, 3)) {
            const Tensor both = aten::mm(d, weight), left = empty({batch, H}, dtype(x)),
                         right = empty({batch, I}, dtype(x));
            copy_rows(both, left, right, true);
            if (wants(wanted, 0)) d_x = right;
            if (wants(wanted, 3)) d_h = as(left, h);
        }
    } else {
        if (wants(wanted, 0)) d_x = aten::mm(d, aten::narrow(weight, 1, H, I));
        if (wants(wanted, 3)) d_h = as(aten::mm(d, aten::narrow(weight, 1, 0, H)), h);
        if (wants(wanted, 1)) {
            d_weight = empty({3 * H, H + I}, dtype(x));
            call("aten::mm", "out", aten::t(d), as(h, x), aten::narrow(d_weight, 1, 0, H));
            call("aten::mm", "out", aten::t(d), x, aten::narrow(d_weight, 1, H, I));
        }
    }
    if (wants(wanted, 4)) d_state = dc;
    return out;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> lltm_cell_saving_cpu(const Tensor& x, const Tensor& weight,
                                                        const OptionalTensor& bias, const Tensor& h, const Tensor& c) {
    return compute(x, [&](auto zero) { return forward<decltype(zero)>(x, weight, bias, h, c); });
}

std::tuple<Tensor, Tensor> lltm_cell_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                         const Tensor& h, const Tensor& c) {
    const auto all = lltm_cell_saving_cpu(x, weight, bias, h, c);
    return {std::get<0>(all), std::get<1>(all)};
}

Gradients lltm_cell_backward_cpu(const OptionalTensor& grad_h, const OptionalTensor& grad_c, const Tensor& x,
                                 const Tensor& weight, const Tensor& h, const Tensor& c, const OptionalTensor& bias,
                                 const Tensor& gates, const Wanted& wanted) {
    return compute(
        x, [&](auto zero) { return backward<decltype(zero)>(grad_h, grad_c, x, weight, h, c, bias, gates, wanted); });
}

OPWRIGHT_KERNEL(lltm_cell, CPU, lltm_cell_cpu);
OPWRIGHT_KERNEL(lltm_cell_saving, CPU, lltm_cell_saving_cpu);
OPWRIGHT_KERNEL(lltm_cell_backward, CPU, lltm_cell_backward_cpu);
