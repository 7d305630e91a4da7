#include <opwright/kernel.h>
#include <opwright/views.h>

namespace {

using OptionalTensor = std::optional<Tensor>;

// So many units at a time: what they need stays in the nearest cache.
constexpr int64_t block = 256;

struct Bytes {
    char* data;
    detail::Conversion convert;
    int64_t bytes;

    Bytes() : data(nullptr), convert{}, bytes(0) {}
    template <class C>
    Bytes(const Tensor& x, C) : data(static_cast<char*>(const_cast<void*>(x.const_data_ptr()))) {
        convert = detail::conversion(dtype(x), dtype_of<C>);
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
    static OPWRIGHT_INLINE void run(const C* zi, const C* zo, const C* zg, const C* c, C* i, C* o, C* g, C* next, C* h,
                                    int64_t n) {
        OPWRIGHT_INDEPENDENT
        for (int64_t l = 0; l < n; ++l) {
            const C below = simd::expm1_negative(zg[l]);
            i[l] = simd::sigmoid(zi[l]), o[l] = simd::sigmoid(zo[l]), g[l] = zg[l] > C(0) ? zg[l] : below;
            next[l] = c[l] + g[l] * i[l];
            h[l] = simd::tanh(next[l]) * o[l];
        }
    }
};

template <class C>
struct Backward {
    static OPWRIGHT_INLINE void run(const C* i, const C* o, const C* g, const C* c, const C* grad_h, const C* grad_c,
                                    C* di, C* dd, C* dg, C* dc, int64_t n) {
        OPWRIGHT_INDEPENDENT
        for (int64_t l = 0; l < n; ++l) {
            const C t = simd::tanh(c[l] + g[l] * i[l]);
            const C d = grad_c[l] + grad_h[l] * o[l] * (C(1) - t * t);
            di[l] = d * g[l] * i[l] * (C(1) - i[l]);
            dd[l] = grad_h[l] * t * o[l] * (C(1) - o[l]);
            dg[l] = d * i[l] * (g[l] > C(0) ? C(1) : g[l] + C(1));
            dc[l] = d;
        }
    }
};

// [h, x] side by side, in the dtype of x.
Tensor joined(const Tensor& x, const Tensor& h_any) {
    const Tensor inputs = contiguous(x), h = contiguous(h_any);
    const int64_t batch = x.size(0), I = x.size(1), H = h.size(1);
    const Tensor out = empty({batch, H + I}, dtype(x));
    if (dtype(x) != dtype(h)) {
        map_into(narrowed(out, 1, 0, H), [](float v) { return v; }, h);
        map_into(narrowed(out, 1, H, I), [](float v) { return v; }, inputs);
        return out;
    }
    const int64_t size = dtype(x) == DType::Double ? 8 : dtype(x) == DType::Float ? 4 : 2;
    const auto from = [](const Tensor& t) { return static_cast<const char*>(t.const_data_ptr()); };
    char* to = static_cast<char*>(out.mutable_data_ptr());
    parallel(0, batch, 8 * grain / (H + I + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            std::memcpy(to + b * (H + I) * size, from(h) + b * H * size, static_cast<size_t>(H * size));
            std::memcpy(to + (b * (H + I) + H) * size, from(inputs) + b * I * size, static_cast<size_t>(I * size));
        }
    });
    return out;
}

// The cell; the gates too are results, written over their pre-activations.
template <class C>
std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                           const Tensor& h, const Tensor& c) {
    const int64_t batch = x.size(0), H = h.size(1);
    const Tensor gates = call("aten::linear", "", joined(x, h), weight, bias), before = contiguous(c);
    const Tensor next = empty({batch, H}, dtype(c)), out = empty({batch, H}, dtype(c));
    const Bytes z(gates, C()), old(before, C()), states(next, C()), hs(out, C());
    const auto loop = detail::best<Forward<C>, const C*, const C*, const C*, const C*, C*, C*, C*, C*, C*, int64_t>();
    parallel(0, batch, grain / (16 * H + 1) + 1, [&](int64_t begin, int64_t end) {
        alignas(64) C room[9][block];
        for (int64_t b = begin; b < end; ++b) {
            for (int64_t j = 0; j < H; j += block) {
                const int64_t n = std::min(block, H - j), at = b * 3 * H + j, own = b * H + j;
                C* to[] = {place(z, at, room[4]), place(z, at + H, room[5]), place(z, at + 2 * H, room[6]),
                           place(states, own, room[7]), place(hs, own, room[8])};
                loop(load(z, at, n, room[0]), load(z, at + H, n, room[1]), load(z, at + 2 * H, n, room[2]),
                     load(old, own, n, room[3]), to[0], to[1], to[2], to[3], to[4], n);
                store(z, at, n, to[0]), store(z, at + H, n, to[1]), store(z, at + 2 * H, n, to[2]);
                store(states, own, n, to[3]), store(hs, own, n, to[4]);
            }
        }
    });
    return {out, next, gates};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class C>
Gradients backward(const OptionalTensor& grad_h, const OptionalTensor& grad_c, const Tensor& x, const Tensor& weight,
                   const Tensor& h, const Tensor& c, const OptionalTensor& bias, const Tensor& gates,
                   const Wanted& wanted) {
    const int64_t batch = x.size(0), H = h.size(1), I = x.size(1);
    const Tensor d = empty({batch, 3 * H}, dtype(x)), dc = empty({batch, H}, dtype(c));
    const Tensor kept = contiguous(gates), before = contiguous(c);
    const Tensor gh = given(grad_h) ? contiguous(*grad_h) : Tensor(), gc = given(grad_c) ? contiguous(*grad_c) : Tensor();
    const Bytes z(kept, C()), old(before, C()), to_gates(d, C()), to_c(dc, C());
    const Bytes from_h = gh.defined() ? Bytes(gh, C()) : Bytes(), from_c = gc.defined() ? Bytes(gc, C()) : Bytes();
    const auto loop =
        detail::best<Backward<C>, const C*, const C*, const C*, const C*, const C*, const C*, C*, C*, C*, C*, int64_t>();
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
    if (wants(wanted, 0)) std::get<0>(out) = product(d, narrowed(weight, 1, H, I));
    if (wants(wanted, 1)) std::get<1>(out) = product(transposed(d), joined(x, h));
    if (wants(wanted, 2) && given(bias)) std::get<2>(out) = sum_of_rows(d);
    if (wants(wanted, 3)) {
        const Tensor dh = product(d, narrowed(weight, 1, 0, H));
        std::get<3>(out) =
            dtype(h) == dtype(x) ? dh : map_into(empty({batch, H}, dtype(h)), [](float v) { return v; }, dh);
    }
    if (wants(wanted, 4)) std::get<4>(out) = dc;
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
