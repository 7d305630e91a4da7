#include "../walk.h"

template <class F, class... Input>
static Tensor each(const F& f, const Tensor& x, const Input&... inputs) {
    return compute(x, [&](auto zero) { return map(f(zero), x, inputs...); });
}

static Tensor product(const Tensor& x, const Tensor& y) {
    return each([](auto zero) { return [](decltype(zero) a, decltype(zero) b) { return a * b; }; }, x, y);
}

Tensor one_input_wrong_cpu(const Tensor& x, const Tensor& y) { return product(x, y); }

std::tuple<Tensor, Tensor> one_input_wrong_backward_cpu(const Tensor& grad, const Tensor&, const Tensor& y,
                                                        const Wanted& wanted) {
    return {wants(wanted, 0) ? product(grad, y) : Tensor(), wants(wanted, 1) ? product(grad, y) : Tensor()};
}

Tensor unwanted_computed_cpu(const Tensor& x, const Tensor& y) { return product(x, y); }

std::tuple<Tensor, Tensor> unwanted_computed_backward_cpu(const Tensor& grad, const Tensor& x, const Tensor& y,
                                                          const Wanted&) {
    return {product(grad, y), product(grad, x)};
}

Tensor second_wrong_cpu(const Tensor& x) { return product(product(x, x), x); }

Tensor second_wrong_backward_cpu(const Tensor& grad, const Tensor& x, const Wanted&) {
    return each([](auto zero) { return [](decltype(zero) g, decltype(zero) v) { return 3 * g * (v * v); }; }, grad, x);
}

// The gradient of grad · 3x²: what grad and x are owed when `second` comes in.
std::tuple<Tensor, Tensor> second_wrong_backward_backward_cpu(const Tensor& second, const Tensor& grad, const Tensor& x,
                                                              const Wanted&, const Wanted& wanted) {
    return {wants(wanted, 0) ? second_wrong_backward_cpu(second, x, {}) : Tensor(),
            wants(wanted, 1) ? each(
                                   [](auto zero) {
                                       using C = decltype(zero);
                                       return [](C s, C g, C v) { return 3 * s * g * v; };
                                   },
                                   second, grad, x)
                             : Tensor()};
}

Tensor broadcast_unreduced_cpu(const Tensor& x, const Tensor& y) {
    return each([](auto zero) { return [](decltype(zero) a, decltype(zero) b) { return a + b; }; }, x, y);
}

static Tensor copy(const Tensor& x) {
    return each([](auto zero) { return [](decltype(zero) v) { return v; }; }, x);
}

std::tuple<Tensor, Tensor> broadcast_unreduced_backward_cpu(const Tensor& grad, const Tensor&, const Tensor&,
                                                            const Wanted& wanted) {
    return {wants(wanted, 0) ? copy(grad) : Tensor(), wants(wanted, 1) ? copy(grad) : Tensor()};
}

Tensor broadcast_summed_wrong_cpu(const Tensor& x, const Tensor& y) { return broadcast_unreduced_cpu(x, y); }

Tensor edge_gradient_cpu(const Tensor& x) {
    return each([](auto zero) { return [](decltype(zero) v) { return v <= 0 ? decltype(zero)(0) : v; }; }, x);
}

Tensor edge_gradient_backward_cpu(const Tensor& grad, const Tensor& x, const Wanted&) {
    return each(
        [](auto zero) {
            using C = decltype(zero);
            return [](C g, C v) { return v < 0 ? C(0) : g; };
        },
        grad, x);
}

Tensor wider_gradient_cpu(const Tensor& x) { return plus_one(x); }

Tensor wider_gradient_backward_cpu(const Tensor& grad, const Tensor&, const Wanted&) {
    if (dtype(grad) != DType::BFloat16) return copy(grad);
    return call("aten::to", "dtype", grad, DType::Float, false, true, std::optional<torch::headeronly::MemoryFormat>());
}

OPWRIGHT_KERNEL(one_input_wrong, CPU, one_input_wrong_cpu);
OPWRIGHT_KERNEL(one_input_wrong_backward, CPU, one_input_wrong_backward_cpu);
OPWRIGHT_KERNEL(unwanted_computed, CPU, unwanted_computed_cpu);
OPWRIGHT_KERNEL(unwanted_computed_backward, CPU, unwanted_computed_backward_cpu);
OPWRIGHT_KERNEL(second_wrong, CPU, second_wrong_cpu);
OPWRIGHT_KERNEL(second_wrong_backward, CPU, second_wrong_backward_cpu);
OPWRIGHT_KERNEL(second_wrong_backward_backward, CPU, second_wrong_backward_backward_cpu);
OPWRIGHT_KERNEL(broadcast_unreduced, CPU, broadcast_unreduced_cpu);
OPWRIGHT_KERNEL(broadcast_unreduced_backward, CPU, broadcast_unreduced_backward_cpu);
OPWRIGHT_KERNEL(broadcast_summed_wrong, CPU, broadcast_summed_wrong_cpu);
OPWRIGHT_KERNEL(edge_gradient, CPU, edge_gradient_cpu);
OPWRIGHT_KERNEL(edge_gradient_backward, CPU, edge_gradient_backward_cpu);
OPWRIGHT_KERNEL(wider_gradient, CPU, wider_gradient_cpu);
OPWRIGHT_KERNEL(wider_gradient_backward, CPU, wider_gradient_backward_cpu);
