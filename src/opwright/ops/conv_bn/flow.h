// What the kernels of every device do: the convolution is PyTorch's, the passes around it are the device's.
#pragma once

#include "convolution.h"
#include "passes.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

using torch::headeronly::MemoryFormat;

inline Activation activation_of(const std::string& name) {
    constexpr const char* names[] = {"none", "relu", "leaky_relu", "elu", "silu", "gelu"};
    for (int i = 0; i < 6; ++i) {
        if (name == names[i]) return static_cast<Activation>(i);
    }
    check(false, "conv_bn: there is no such activation");
    return Activation::none;
}

inline DType wide_dtype(DType dtype) { return dtype == DType::Half || dtype == DType::BFloat16 ? DType::Float : dtype; }

inline void* memory(const Tensor& x) { return x.defined() ? const_cast<void*>(x.const_data_ptr()) : nullptr; }
inline void* memory(const OptionalTensor& x) { return given(x) ? memory(*x) : nullptr; }

inline Numbers numbers(const OptionalTensor& x, DType own) {
    return given(x) ? Numbers{memory(*x), dtype(*x) != own || wide_dtype(own) == own} : Numbers{};
}
inline OptionalTensor contiguous(const OptionalTensor& x) {
    return given(x) ? OptionalTensor(aten::contiguous(*x)) : x;
}

// The convolution's result, dense in one of the two layouts.
struct Result {
    Tensor y;
    Planes planes;
};
inline Result result(Tensor y) {
    Layout layout(y);
    const bool last = layout.channels_last() && !(layout.contiguous() && layout.size[1] == 1);
    if (!last && !layout.contiguous()) y = aten::contiguous(y), layout = Layout(y);
    return {y, {layout.size[0], layout.size[1], layout.size[2] * layout.size[3], last}};
}
// Another tensor of the same shape in the same layout.
inline Tensor alike(const Tensor& x, const Planes& planes) {
    const Layout layout(x);
    if (planes.last ? layout.channels_last() : layout.contiguous()) return x;
    return call("aten::contiguous", "", x, planes.last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous);
}
inline Tensor alike(const OptionalTensor& x, const Planes& planes) { return given(x) ? alike(*x, planes) : Tensor(); }

// What settings.py puts into one number: settings of convolutions that were in force before, -1 where nobody said; and
// whether launches must keep apart, since other kernels wait for other processes.
struct Told {
    static constexpr int64_t more = 257;  // where they must: settings.py's APART
    int64_t settings;
    bool apart;

    explicit Told(int64_t number) : settings(number), apart(number >= more - 1) {
        check(number >= -1 && number < 2 * more - 1, "conv_bn: there are no such settings");
        if (apart) settings -= more;
    }
};

// Collectives, as across.py has them: nobody waits on the host.
inline Sizes spelled(const std::string& text) {
    const auto* const first = reinterpret_cast<const unsigned char*>(text.data());
    return {first, first + text.size()};
}
inline Tensor gather(const Tensor& own, int64_t ranks, const std::string& group) {
    return call("opwright_conv_bn::gather", "", own, ranks, spelled(group));
}
inline Tensor sum_over_ranks(const Tensor& own, const std::string& group) {
    return call("opwright_conv_bn::sum", "", own, spelled(group));
}

using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// What must hold for a kernel; what does not is for the reference to reject or to compute.
inline void expect(const Tensor& x, const Tensor& weight, const Geometry& s) {
    check(s.stride.size() == 2 && s.padding.size() == 2 && s.dilation.size() == 2 && s.groups > 0 &&
              x.size(1) == weight.size(1) * s.groups && weight.size(0) % s.groups == 0 && weight.numel() > 0,
          "conv_bn: the convolution's arguments do not fit");
    for (size_t d = 0; d < 2; ++d) {
        check(s.stride[d] > 0 && s.padding[d] >= 0 && s.dilation[d] > 0,
              "conv_bn: the convolution's arguments do not fit");
        const int64_t reach = s.dilation[d] * (weight.size(int64_t(d) + 2) - 1) + 1;
        check(x.size(int64_t(d) + 2) + 2 * s.padding[d] >= reach, "conv_bn: the weight does not fit into x");
    }
}

template <class Device>
Results forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias_any, const OptionalTensor& gamma_any,
                const OptionalTensor& beta_any, const OptionalTensor& residual_any, const OptionalTensor& mean_any,
                const OptionalTensor& var_any, const Sizes& stride, const Sizes& padding, const Sizes& dilation,
                int64_t groups, double eps, const std::string& activation, double slope, bool keep_residual,
                bool keep_output, bool keep_convolution, const std::string& group, int64_t ranks, int64_t settings) {
    const Geometry s{stride, padding, dilation, groups};
    const bool fixed = given(mean_any);
    expect(x, weight, s);
    check(fixed == given(var_any), "conv_bn: running_mean and running_var go together");
    check(eps > 0 || (fixed && eps == 0), "conv_bn: eps must be positive");
    const Activation act = activation_of(activation);
    const bool by_output =
        act == Activation::relu || ((act == Activation::leaky_relu || act == Activation::elu) && slope >= 0);
    check(!given(residual_any) || act == Activation::none || keep_residual || (keep_output && by_output),
          "conv_bn: the gradient could not be computed");
    const DType own = dtype(x), wide = wide_dtype(own);
    const Device passes(own, Told(settings).apart);
    const Result c = result(convolve(x, weight, s));
    const Planes& planes = c.planes;
    const int64_t values = planes.images * planes.places;
    check(fixed || ranks > 1 || values != 1, "conv_bn: there is one value a channel");
    const OptionalTensor bias = fixed ? contiguous(bias_any) : OptionalTensor(), gamma = contiguous(gamma_any),
                         beta = contiguous(beta_any);
    const Tensor residual = alike(residual_any, planes);
    check(!residual.defined() || Layout(residual).same_shape(Layout(c.y)), "conv_bn: the residual does not fit");
    Tensor mean, var, count;
    if (!fixed) mean = empty({planes.channels}, wide), var = empty({planes.channels}, wide);
    const bool shared = !fixed && !group.empty();
    if (shared) {
        count = empty({}, wide);
        passes.statistics(planes, c.y, mean, var, count, group, ranks);
    }
    const Tensor centre = fixed ? aten::contiguous(*mean_any) : mean, spread = fixed ? aten::contiguous(*var_any) : var;
    // The convolution's own memory becomes that of the output, unless it is kept.
    const Tensor out = keep_convolution ? empty(Layout(c.y), own) : c.y;
    const Channels channels{numbers(centre, own),
                            numbers(spread, own),
                            numbers(gamma, own),
                            numbers(beta, own),
                            numbers(bias, own),
                            eps,
                            act,
                            slope};
    const Apply q{planes, channels, memory(c.y), memory(residual), memory(out)};
    if (fixed || shared) {
        passes.apply(q);
    } else {
        passes.normalise(q, mean, var);
    }
    return {out, mean, var, count, keep_convolution ? c.y : Tensor()};
}

template <class Device>
Gradients backward(const OptionalTensor& grad, const OptionalTensor& grad_mean, const OptionalTensor& grad_var,
                   const OptionalTensor& grad_convolution, const Tensor& x, const Tensor& weight,
                   const OptionalTensor& output_any, const OptionalTensor& mean_any, const OptionalTensor& var_any,
                   const OptionalTensor& count, const OptionalTensor& convolution, const OptionalTensor& bias_any,
                   const OptionalTensor& gamma_any, const OptionalTensor& beta_any, const OptionalTensor& residual_any,
                   const OptionalTensor& running_mean, const OptionalTensor& running_var, const Sizes& stride,
                   const Sizes& padding, const Sizes& dilation, int64_t groups, double eps,
                   const std::string& activation, double slope, bool keep_residual, bool keep_output,
                   const std::string& group, int64_t settings, const Wanted& wanted) {
    const Geometry s{stride, padding, dilation, groups};
    // Statistics are differentiated by who differentiates twice: that is for the formula.
    check(given(grad) && !given(grad_mean) && !given(grad_var) && !given(grad_convolution),
          "conv_bn: its statistics are differentiated");
    expect(x, weight, s);
    const DType own = dtype(x), wide = wide_dtype(own);
    const Activation act = activation_of(activation);
    const bool fixed = given(running_mean), shared = !group.empty() && !fixed;
    check(fixed == given(running_var) && (fixed || (given(mean_any) && given(var_any))) && (!shared || given(count)),
          "conv_bn: the statistics are not all there");
    check(!shared || dtype(*count) == wide, "conv_bn: a number of values has the type of the statistics");
    const bool to_x = wants(wanted, 0), to_weight = wants(wanted, 1), to_bias = wants(wanted, 2) && given(bias_any),
               to_gamma = wants(wanted, 3) && given(gamma_any), to_beta = wants(wanted, 4) && given(beta_any),
               to_residual = wants(wanted, 5) && (given(residual_any) || !keep_residual);
    const OptionalTensor bias = contiguous(bias_any), gamma = contiguous(gamma_any), beta = contiguous(beta_any);
    const Tensor mean = aten::contiguous(fixed ? *running_mean : *mean_any),
                 var = aten::contiguous(fixed ? *running_var : *var_any);
    const bool by_output =
        keep_output && given(output_any) &&
        (act == Activation::relu || ((act == Activation::leaky_relu || act == Activation::elu) && slope >= 0));
    const bool invertible = act == Activation::none || (act == Activation::leaky_relu && slope > 0);
    // Who keeps the residual and has none had none.
    const bool inverse =
        given(output_any) && keep_output && keep_residual && !given(residual_any) && invertible && !given(convolution);
    const bool reads_y = !fixed || to_gamma || (act != Activation::none && !by_output);
    const Told told(settings);
    const Device passes(own, told.apart);
    Gradient q{};
    q.channels = {numbers(mean, own),
                  numbers(var, own),
                  numbers(gamma, own),
                  numbers(beta, own),
                  fixed ? numbers(bias, own) : Numbers{},
                  eps,
                  act,
                  slope};
    q.fixed = fixed;
    q.least = own == DType::Half ? 0.02 : 1e-3, q.most = own == DType::Half || own == DType::BFloat16 ? 4 : 64;
    if (act == Activation::leaky_relu) q.least /= std::min(1.0, slope);
    bool computed_back = inverse && reads_y && passes.can_invert(q, gamma, beta, weight.size(0));
    Result c;
    bool ours = true;  // whether its memory may be written to
    if (given(convolution)) {
        c = result(*convolution), ours = false;
    } else if (reads_y && !computed_back) {
        c = result(told.settings < 0 ? convolve(x, weight, s) : Device::convolve_under(told.settings, x, weight, s));
    } else {
        c = result(*grad), ours = false;  // it is the layout that is wanted
    }
    const Planes& planes = c.planes;
    check(Layout(*grad).same_shape(Layout(c.y)), "conv_bn: the gradient does not have the shape of the output");
    const Tensor g = alike(*grad, planes), residual = alike(residual_any, planes),
                 output = computed_back || by_output ? alike(output_any, planes) : Tensor();
    q.planes = planes, q.grad = memory(g), q.y = memory(c.y), q.output = memory(output), q.residual = memory(residual);
    q.inverse = computed_back;
    q.values = static_cast<double>(planes.images * planes.places), q.count = memory(count);
    Tensor d_gamma, d_beta, d_bias, d_residual;
    const int64_t channels = planes.channels;
    if (to_gamma) d_gamma = empty({channels}, dtype(*gamma));
    if (to_beta) d_beta = empty({channels}, dtype(*beta));
    if (to_bias) d_bias = empty({channels}, dtype(*bias));
    q.d_gamma = numbers(d_gamma, own), q.d_beta = numbers(d_beta, own), q.d_bias = numbers(d_bias, own);
    const bool to_y = to_x || to_weight;
    Tensor d_y;
    if (to_y || computed_back) d_y = ours ? c.y : empty(Layout(c.y), own);
    q.out = memory(d_y);
    if (computed_back) passes.repair(q, x, weight, s);
    const bool sums = !fixed || to_gamma || to_beta || to_bias;
    Tensor all = sums ? empty({2 * channels}, wide) : Tensor();
    q.sums = memory(all);
    // What follows from grad and output alone can wait until dy is no more needed, and be written over it.
    const bool late = to_residual && to_y && ours && by_output;
    if (to_residual && !late) d_residual = empty(Layout(c.y), own), q.d_residual = memory(d_residual);
    const bool follows = to_y || to_residual;
    if (sums && follows && !shared && (to_y || !computed_back)) {
        passes.differentiate(q);
    } else {
        if (sums) passes.reduce(q);
        if (sums && shared) all = sum_over_ranks(all, group), q.sums = memory(all);
        if (!to_y) q.out = nullptr;
        if (follows) passes.back(q);
    }
    auto [d_x, d_weight] = convolve_back(d_y, x, weight, s, to_x, to_weight);
    if (d_weight.defined() && x.numel() == 0) d_weight = aten::contiguous(d_weight);  // as fake tensors have it
    if (late) {
        d_residual = d_y;
        q.out = nullptr, q.d_residual = memory(d_residual);
        passes.back(q);
    }
    return {d_x, d_weight, d_bias, d_gamma, d_beta, d_residual};
}

}  // namespace conv_bn

#pragma GCC visibility pop
