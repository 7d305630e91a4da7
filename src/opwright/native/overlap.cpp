#include "overlap.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <numeric>

namespace opwright {

namespace {

using Steps = c10::SmallVector<int64_t, 8>;

// The steps of a tensor in bytes, along the dimensions that have any.
void add_steps(const at::Tensor& t, Steps& steps) {
    for (int64_t d = 0; d < t.dim(); ++d) {
        if (t.size(d) > 1 && t.stride(d) > 0) steps.push_back(t.stride(d) * t.element_size());
    }
}

// How many bytes its elements reach along the dimensions with smaller steps than this.
int64_t reach(const at::Tensor& t, int64_t limit) {
    int64_t bytes = t.element_size();
    for (int64_t d = 0; d < t.dim(); ++d) {
        const int64_t step = t.stride(d) * t.element_size();
        if (step < limit) bytes += (t.size(d) - 1) * step;
    }
    return bytes;
}

}  // namespace

// Along the dimensions with large steps both move by multiples of one number. They are apart where, within it, the
// rest of one ends before the rest of the other begins, as two columns of a matrix do, or its left and right half.
bool may_share(const at::Tensor& a, const at::Tensor& b) {
    if (a.numel() == 0 || b.numel() == 0 || !a.has_storage() || !b.has_storage()) return false;
    const int64_t distance =
        static_cast<const char*>(b.const_data_ptr()) - static_cast<const char*>(a.const_data_ptr());
    if (distance >= reach(a, INT64_MAX) || -distance >= reach(b, INT64_MAX)) return false;
    Steps steps;
    add_steps(a, steps);
    add_steps(b, steps);
    std::sort(steps.begin(), steps.end());
    for (size_t i = 0; i < steps.size(); ++i) {
        int64_t common = 0;
        for (size_t j = i; j < steps.size(); ++j) common = std::gcd(common, steps[j]);
        const int64_t rest = (distance % common + common) % common;
        if (rest >= reach(a, steps[i]) && rest + reach(b, steps[i]) <= common) return false;
    }
    return true;
}

}  // namespace opwright
