#include <opwright/kernel.h>

#include "flow.h"
#include "in_force.h"
#include "moments.h"

namespace conv_bn {
namespace {

template <class C>
auto activate_loop(Activation activation) -> void (*)(int64_t, C*, C) {
    switch (activation) {
        case Activation::relu:
            return best<Activate<C, Activation::relu>, int64_t, C*, C>();
        case Activation::leaky_relu:
            return best<Activate<C, Activation::leaky_relu>, int64_t, C*, C>();
        case Activation::elu:
            return best<Activate<C, Activation::elu>, int64_t, C*, C>();
        case Activation::silu:
            return best<Activate<C, Activation::silu>, int64_t, C*, C>();
        case Activation::gelu:
            return best<Activate<C, Activation::gelu>, int64_t, C*, C>();
        default:
            return nullptr;
    }
}

template <class C>
Loop<C> derive_loop(Activation activation, bool of_output) {
    switch (activation) {
        case Activation::relu:
            return best<Derive<C, Activation::relu, false>, int64_t, const C*, const C*, C, C*>();
        case Activation::leaky_relu:
            return best<Derive<C, Activation::leaky_relu, false>, int64_t, const C*, const C*, C, C*>();
        case Activation::elu:
            return of_output ? best<Derive<C, Activation::elu, true>, int64_t, const C*, const C*, C, C*>()
                             : best<Derive<C, Activation::elu, false>, int64_t, const C*, const C*, C, C*>();
        case Activation::silu:
            return best<Derive<C, Activation::silu, false>, int64_t, const C*, const C*, C, C*>();
        case Activation::gelu:
            return best<Derive<C, Activation::gelu, false>, int64_t, const C*, const C*, C, C*>();
        default:
            return nullptr;
    }
}

template <class C, bool Last>
void apply(const Apply& q, DType own) {
    using Run = void (*)(const Stretch*, const C*, const C*, const C*, const C*, const C*, const C*, C*);
    const Cut cut(q.planes);
    const Prepared<C> numbers(q.channels, q.planes.channels, own);
    const Reader<C> y(q.y, own), residual(q.residual, own), out(q.out, own);
    const auto normal = [](auto adds) -> Run {
        return best<Normal<C, Last, adds.value>, const Stretch*, const C*, const C*, const C*, const C*, const C*,
                    const C*, C*>();
    };
    const Run run = residual ? normal(std::true_type()) : normal(std::false_type());
    const auto activate = activate_loop<C>(q.channels.activation);
    const C slope = static_cast<C>(q.channels.slope);
    parallel(0, cut.units(), 1, [&](int64_t begin, int64_t end) {
        std::vector<C> scratch(size_t(3 * cut.longest()));
        for (int64_t unit = begin; unit < end; ++unit) {
            cut.each(unit, [&](const Stretch& s) {
                C *a = scratch.data(), *b = a + cut.longest();
                const C* add = residual ? residual.load(s, b) : nullptr;
                C* const to = out.place(s, b + cut.longest());
                run(&s, y.load(s, a), numbers.mean.data() + s.channel, numbers.root.data() + s.channel,
                    numbers.gamma.data() + s.channel, numbers.beta.data() + s.channel, add, to);
                if (activate) activate(s.size(), to, slope);
                out.store(s, to);
            });
        }
    });
}

// A stretch of dz and of y - mean.
template <class C, bool Last>
class Slopes {
    using Run = void (*)(const Stretch*, const C*, const C*, const C*, const C*, C*);

  public:
    Slopes(const Gradient& q, const Prepared<C>& numbers, DType own, int64_t longest)
        : q_(q),
          numbers_(numbers),
          longest_(longest),
          grad_(q.grad, own),
          y_(q.y, own),
          output_(q.output, own),
          residual_(q.residual, own) {
        const bool by_output = q.output && !q.inverse;
        derive_ = derive_loop<C>(q.channels.activation, by_output);
        centre_ = best<Affine<C, Last, false>, const Stretch*, const C*, const C*, const C*, const C*, C*>();
        scale_ = q.residual ? best<Affine<C, Last, true>, const Stretch*, const C*, const C*, const C*, const C*, C*>()
                            : centre_;
        invert_ = best<Uninvert<C>, int64_t, const C*, C, C*>();
        slope_ = static_cast<C>(q.channels.slope);
    }
    static constexpr int64_t blocks = 4;

    // `scratch` holds so many blocks.
    void take(const Stretch& s, C* scratch, const C*& d, const C*& centred) const {
        C *a = scratch, *b = a + longest_, *c = b + longest_, *e = c + longest_;
        const C* grad = grad_.load(s, a);
        if (q_.inverse) {
            const C* out = output_.load(s, b);
            const C* z = out;
            if (derive_) invert_(s.size(), out, C(1) / slope_, c), z = c;
            centre_(&s, z, numbers_.factor.data() + s.channel, numbers_.offset.data() + s.channel, nullptr, e);
            if (derive_) derive_(s.size(), grad, out, slope_, a);
            d = derive_ ? a : grad, centred = e;
            return;
        }
        centre_(&s, y_.load(s, b), numbers_.factor.data() + s.channel, numbers_.offset.data() + s.channel, nullptr, e);
        centred = e, d = grad;
        if (!derive_) return;
        const C* at = b;
        if (q_.output) {
            at = output_.load(s, b);
        } else {
            const C* add = q_.residual ? residual_.load(s, c) : nullptr;
            scale_(&s, e, numbers_.scale.data() + s.channel, numbers_.beta.data() + s.channel, add, b);
        }
        derive_(s.size(), grad, at, slope_, a);
        d = a;
    }

  private:
    const Gradient& q_;
    const Prepared<C>& numbers_;
    int64_t longest_;
    Reader<C> grad_, y_, output_, residual_;
    Loop<C> derive_;
    Run centre_, scale_;
    void (*invert_)(int64_t, const C*, C, C*);
    C slope_;
};

template <class C, bool Last>
void reduce(const Gradient& q, DType own) {
    const Cut cut(q.planes);
    Prepared<C> numbers(q.channels, q.planes.channels, own);
    if (q.inverse) numbers.invert();
    const Slopes<C, Last> slopes(q, numbers, own, cut.longest());
    const int64_t channels = q.planes.channels, each = Last ? channels : 1, wide = Last ? channels : lanes;
    std::vector<C> parts(size_t(cut.units() * 2 * each));
    const auto sum = best<Sum<C, Last, false>, const Stretch*, const C*, const C*, C*, C*>();
    parallel(0, cut.units(), 1, [&](int64_t begin, int64_t end) {
        std::vector<C> scratch(size_t(slopes.blocks * cut.longest())), sums(size_t(2 * wide));
        for (int64_t unit = begin; unit < end; ++unit) {
            std::fill(sums.begin(), sums.end(), C(0));
            cut.each(unit, [&](const Stretch& s) {
                const C *d, *centred;
                slopes.take(s, scratch.data(), d, centred);
                sum(&s, d, centred, sums.data(), sums.data() + wide);
            });
            C* part = parts.data() + unit * 2 * each;
            for (int64_t k = 0; k < each; ++k) {
                part[k] = sums[size_t(k)], part[each + k] = sums[size_t(wide + k)];
                for (int64_t l = 1; !Last && l < lanes; ++l)
                    part[0] += sums[size_t(l)], part[1] += sums[size_t(wide + l)];
            }
        }
    });
    C* const all = static_cast<C*>(q.sums);
    for (int64_t c = 0; c < channels; ++c) {
        double first = 0, second = 0;
        for (int64_t u = Last ? 0 : c; u < cut.units(); u += Last ? 1 : channels) {
            const C* part = parts.data() + u * 2 * each + (Last ? c : 0);
            first += double(part[0]), second += double(part[each]);
        }
        const auto k = static_cast<size_t>(c);
        all[c] = static_cast<C>(first), all[channels + c] = static_cast<C>(second);
        // Of no values nothing comes, whatever their variance would be.
        numbers.put(q.d_gamma, c, cut.units() ? static_cast<C>(second) * numbers.root[k] : C(0));
        numbers.put(q.d_beta, c, static_cast<C>(first));
        numbers.put(q.d_bias, c, q.fixed ? static_cast<C>(first) * numbers.scale[k] : C(0));
    }
}

template <class C, bool Last>
void back(const Gradient& q, DType own) {
    const Cut cut(q.planes);
    const int64_t channels = q.planes.channels;
    Prepared<C> numbers(q.channels, channels, own);
    const C n = q.count ? *static_cast<const C*>(q.count) : static_cast<C>(q.values);
    for (int64_t c = 0; !q.fixed && c < channels; ++c) {
        const auto k = static_cast<size_t>(c);
        const C* sums = static_cast<const C*>(q.sums);
        numbers.shift[k] = -numbers.scale[k] * sums[c] / n;
        numbers.p[k] = -numbers.scale[k] * sums[channels + c] * numbers.root[k] * numbers.root[k] / n;
    }
    if (q.inverse) numbers.invert();
    const Slopes<C, Last> slopes(q, numbers, own, cut.longest());
    const Reader<C> out(q.out, own), d_residual(q.d_residual, own);
    const auto run = q.fixed
                         ? best<Scale<C, Last>, const Stretch*, const C*, const C*, const C*, const C*, const C*, C*>()
                         : best<Back<C, Last>, const Stretch*, const C*, const C*, const C*, const C*, const C*, C*>();
    parallel(0, cut.units(), 1, [&](int64_t begin, int64_t end) {
        std::vector<C> scratch(size_t((slopes.blocks + 1) * cut.longest()));
        for (int64_t unit = begin; unit < end; ++unit) {
            cut.each(unit, [&](const Stretch& s) {
                const C *d, *centred;
                slopes.take(s, scratch.data(), d, centred);
                if (d_residual) d_residual.store(s, d);
                if (!out) return;
                C* const to = out.place(s, scratch.data() + slopes.blocks * cut.longest());
                run(&s, d, centred, numbers.scale.data() + s.channel, numbers.p.data() + s.channel,
                    numbers.shift.data() + s.channel, to);
                out.store(s, to);
            });
        }
    });
}

class Device {
  public:
    Device(DType dtype, bool) : own_(dtype), wide_(wide_dtype(dtype)) {}

    // Statistics, and what follows from them.
    void normalise(const Apply& q, Tensor& mean, Tensor& var) const {
        run([&](auto zero) {
            using C = decltype(zero);
            C *m = data<C>(mean), *v = data<C>(var);
            moments_of<C>(q.planes, q.y, m, v);
            finish<C>(q.planes.channels, static_cast<C>(q.planes.images * q.planes.places), m, v);
        });
        apply(q);
    }
    void statistics(const Planes& planes, const Tensor& y, Tensor& mean, Tensor& var, Tensor& values,
                    const std::string& group, int64_t ranks) const {
        run([&](auto zero) {
            using C = decltype(zero);
            const int64_t channels = planes.channels, size = 2 * channels + 1;
            const Tensor own = empty({size}, wide_);
            C* const mine = data<C>(own);
            moments_of<C>(planes, memory(y), mine, mine + channels);
            mine[2 * channels] = static_cast<C>(planes.images * planes.places);
            const Tensor all = gather(own, ranks, group);
            const C* const parts = data<const C>(all);
            C *m = data<C>(mean), *v = data<C>(var), n = 0;
            for (int64_t r = 0; r < ranks; ++r) n += parts[r * size + 2 * channels];
            for (int64_t c = 0; c < channels; ++c) {
                const Moments joined = join(ranks, [&](int64_t r) {
                    const C* const part = parts + r * size;
                    return Moments{double(part[2 * channels]), double(part[c]), double(part[channels + c])};
                });
                m[c] = static_cast<C>(joined.mean), v[c] = static_cast<C>(joined.deviations);
            }
            *data<C>(values) = n;
            finish<C>(channels, n, m, v);
        });
    }
    void apply(const Apply& q) const {
        run([&](auto zero) {
            using C = decltype(zero);
            q.planes.last ? conv_bn::apply<C, true>(q, own_) : conv_bn::apply<C, false>(q, own_);
        });
    }
    void reduce(const Gradient& q) const {
        run([&](auto zero) {
            using C = decltype(zero);
            q.planes.last ? conv_bn::reduce<C, true>(q, own_) : conv_bn::reduce<C, false>(q, own_);
        });
    }
    void back(const Gradient& q) const {
        run([&](auto zero) {
            using C = decltype(zero);
            q.planes.last ? conv_bn::back<C, true>(q, own_) : conv_bn::back<C, false>(q, own_);
        });
    }
    // Sums, and what follows from them.
    void differentiate(const Gradient& q) const { reduce(q), back(q); }
    // The convolution as PyTorch computed it under these settings, which it takes from nowhere but its own state.
    static Tensor convolve_under(int64_t settings, const Tensor& x, const Tensor& weight, const Geometry& s) {
        if (settings_in_force() == settings) return convolve(x, weight, s);
        return call("opwright_conv_bn::convolve", "", x, weight, s.stride, s.padding, s.dilation, s.groups, settings);
    }
    bool can_invert(const Gradient& q, const OptionalTensor&, const OptionalTensor&, int64_t channels) const {
        bool can = true;
        run([&](auto zero) {
            using C = decltype(zero);
            const Prepared<C> numbers({}, 0, own_);
            for (int64_t c = 0; c < channels; ++c) {
                const double gamma = std::abs(double(numbers.number(q.channels.gamma, c, 1)));
                const double beta = std::abs(double(numbers.number(q.channels.beta, c, 0)));
                can = can && gamma >= q.least && beta <= q.most * gamma;
            }
        });
        return can;
    }
    void repair(const Gradient&, const Tensor&, const Tensor&, const Geometry&) const {}

  private:
    template <class C>
    void moments_of(const Planes& planes, const void* y, C* mean, C* deviations) const {
        planes.last ? moments<C, true>(planes, y, own_, mean, deviations)
                    : moments<C, false>(planes, y, own_, mean, deviations);
    }
    template <class C>
    void finish(int64_t channels, C n, C* mean, C* var) const {
        const C none = n > C(0) ? C(0) : C(NAN);  // as the mean of nothing is
        for (int64_t c = 0; c < channels; ++c) mean[c] += none, var[c] /= n;
    }
    template <class Body>
    void run(const Body& body) const {
        if (wide_ == DType::Double) return body(double());
        body(float());
    }

    DType own_, wide_;
};

}  // namespace
}  // namespace conv_bn

OPWRIGHT_KERNEL(conv_bn, CPU, conv_bn::forward<conv_bn::Device>);
OPWRIGHT_KERNEL(conv_bn_backward, CPU, conv_bn::backward<conv_bn::Device>);
