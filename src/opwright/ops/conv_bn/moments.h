// The moments of every channel on the CPU: of each stretch its own, joined in double.
#pragma once

#include <opwright/kernel.h>

#include <vector>

#include "stretches.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

using ow_inner::best;

// The mean of n values whose deviations from `pivot` add up to `sum`. Rounded as a sum of the values would be: where
// the mean is near 0 and the pivot is not, pivot + sum / n has the digits of the pivot alone. It is for what overflows.
template <class C>
C about(C pivot, C sum, C n) {
    const C mean = std::fma(n, pivot, sum) / n;
    return std::isfinite(mean) ? mean : pivot + sum / n;
}

// Mean and squared deviations of parts together, which `part` gives by their number: {values, mean, deviations}.
struct Moments {
    double values, mean, deviations;
};
template <class Part>
Moments join(int64_t parts, const Part& part) {
    double n = 0, sum = 0, squares = 0;
    const double head = parts ? part(0).mean : 0, pivot = std::isfinite(head) ? head : 0;
    for (int64_t p = 0; p < parts; ++p) {
        const Moments m = part(p);
        n += m.values;
        if (m.values > 0) sum += m.values * (m.mean - pivot);
    }
    const double centre = n > 0 ? about(pivot, sum, n) : 0;
    for (int64_t p = 0; p < parts; ++p) {
        const Moments m = part(p);
        const double d = m.mean - centre;
        if (m.values > 0) squares += m.deviations + m.values * d * d;
    }
    return {n, centre, squares};
}

// Of a stretch, for each of its channels: the mean, then the squared deviations from it, while the numbers are at hand.
// Whatever else they were taken from, a number that is far from all others would cost the digits of these.
template <class C, bool Last>
class Stretches {
  public:
    explicit Stretches(int64_t channels) : each_(Last ? channels : 1), wide_(Last ? channels : lanes) {
        sums_.resize(size_t(2 * wide_)), pivot_.resize(size_t(each_));
    }
    // The mean of channel k at out[k], its deviations behind those.
    void take(const Stretch& s, const C* x, double* out) {
        const C n = static_cast<C>(Last ? s.rows : s.size());
        std::fill(sums_.begin(), sums_.begin() + wide_, C(0));
        total_(&s, x, sums_.data());
        for (int64_t k = 0; k < each_; ++k) {
            const C mean = added(k, 0) / n, first = std::isfinite(x[k]) ? x[k] : C(0);
            pivot_[size_t(k)] = std::isfinite(mean) ? mean : first;
            out[k] = double(added(k, 0)) / double(n);
        }
        std::fill(sums_.begin(), sums_.end(), C(0));
        sum_(&s, x, pivot_.data(), sums_.data(), sums_.data() + wide_);
        for (int64_t k = 0; k < each_; ++k) {
            const double first = double(added(k, 0)), second = double(added(k, wide_)),
                         pivot = double(pivot_[size_t(k)]);
            // Deviations have more digits than the numbers, unless the mean is near 0.
            if (!std::isfinite(out[k]) || !(pivot * pivot * double(n) < second))
                out[k] = about(pivot, first, double(n));
            out[each_ + k] = std::max(second - first * first / double(n), 0.0);  // NaN stays
        }
    }

  private:
    C added(int64_t k, int64_t from) const {
        C sum = sums_[size_t(from + k)];
        for (int64_t l = 1; !Last && l < lanes; ++l) sum += sums_[size_t(from + l)];
        return sum;
    }

    int64_t each_, wide_;
    std::vector<C> sums_, pivot_;
    void (*total_)(const Stretch*, const C*, C*) = best<Total<C, Last>, const Stretch*, const C*, C*>();
    void (*sum_)(const Stretch*, const C*, const C*, C*,
                 C*) = best<Sum<C, Last, true>, const Stretch*, const C*, const C*, C*, C*>();
};

template <class C, bool Last>
void moments(const Planes& planes, const void* y, DType own, C* mean, C* deviations) {
    const Cut cut(planes);
    const Reader<C> reader(y, own);
    const int64_t channels = planes.channels, each = Last ? channels : 1, units = cut.units();
    std::vector<double> parts(size_t(units * 2 * each));
    parallel(0, units, 1, [&](int64_t begin, int64_t end) {
        std::vector<C> scratch(size_t(cut.longest()));
        std::vector<double> found, values;
        Stretches<C, Last> stretches(channels);
        for (int64_t unit = begin; unit < end; ++unit) {
            found.clear(), values.clear();
            cut.each(unit, [&](const Stretch& s) {
                found.resize(found.size() + size_t(2 * each));
                values.push_back(double(Last ? s.rows : s.size()));
                stretches.take(s, reader.load(s, scratch.data()), found.data() + found.size() - 2 * each);
            });
            for (int64_t k = 0; k < each; ++k) {
                const Moments all = join(int64_t(values.size()), [&](int64_t i) {
                    const double* const part = found.data() + i * 2 * each + k;
                    return Moments{values[size_t(i)], part[0], part[each]};
                });
                double* const part = parts.data() + unit * 2 * each + k;
                part[0] = all.mean, part[each] = all.deviations;
            }
        }
    });
    for (int64_t c = 0; c < channels; ++c) {  // the units in their order
        const int64_t first = Last ? 0 : c, step = Last ? 1 : channels, column = Last ? c : 0;
        const Moments all = join(Last ? units : planes.images, [&](int64_t i) {
            const int64_t unit = first + i * step;
            const double* const part = parts.data() + unit * 2 * each + column;
            return Moments{double(cut.values(unit)), part[0], part[each]};
        });
        mean[c] = static_cast<C>(all.mean), deviations[c] = static_cast<C>(all.deviations);
    }
}

}  // namespace conv_bn

#pragma GCC visibility pop
