#include "device.h"
#include "flow.h"
#include "in_force.h"

namespace conv_bn {
namespace {

class Device {
  public:
    Device(DType dtype, bool apart) : passes_(passes_of(dtype)), dtype_(wide_dtype(dtype)), apart_(apart) {}

    // Over all ranks; those of which one has no values too.
    void statistics(const Planes& planes, const Tensor& y, Tensor& mean, Tensor& var, Tensor& values,
                    const std::string& group, int64_t ranks) const {
        const int64_t channels = planes.channels;
        Tensor own = empty({2 * channels + 1}, dtype_);
        if (planes.numel() == 0) {
            aten::zero_(own);
        } else {
            int count;
            const Tensor parts = passes_.statistics(planes, memory(y), count);
            const int64_t size = dtype_ == DType::Double ? 8 : 4;
            char* const to = static_cast<char*>(memory(own));
            passes_.moments(parts, count, channels, to, to + channels * size, to + 2 * channels * size, true);
        }
        const Tensor all = gather(own, ranks, group);
        passes_.moments(all, int(ranks), channels, memory(mean), memory(var), memory(values), false);
    }
    void apply(const Apply& q) const { passes_.apply(q); }
    // Statistics, and what follows from them.
    void normalise(const Apply& q, Tensor& mean, Tensor& var) const {
        if (!apart_ && passes_.normalise(q, memory(mean), memory(var))) return;
        int count;
        const Tensor parts = passes_.statistics(q.planes, q.y, count);
        passes_.moments(parts, count, q.planes.channels, memory(mean), memory(var), nullptr, false);
        apply(q);
    }
    void reduce(const Gradient& q) const { passes_.reduce(q); }
    // Sums, and what follows from them.
    void differentiate(const Gradient& q) const {
        if (!apart_ && passes_.differentiate(q)) return;
        reduce(q), back(q);
    }
    void back(const Gradient& q) const { passes_.back(q); }

    // The convolution as cuDNN computed it under these settings; where they are still in force, without boxes.
    static Tensor convolve_under(int64_t settings, const Tensor& x, const Tensor& weight, const Geometry& s) {
        if (settings_in_force() == settings) return convolve(x, weight, s);
        const bool enabled = settings & 1, benchmark = settings & 2, deterministic = settings & 4, tf32 = settings & 8;
        return call("aten::_convolution", "", x, weight, OptionalTensor(), s.stride, s.padding, s.dilation, false,
                    Sizes{0, 0}, s.groups, benchmark, deterministic, enabled, tf32);
    }

    // What cannot be computed back is repaired, channel by channel: to ask here would be to wait for the GPU.
    bool can_invert(const Gradient&, const OptionalTensor&, const OptionalTensor&, int64_t) const { return true; }
    void repair(const Gradient& q, const Tensor& x, const Tensor& weight, const Geometry& s) const {
        const Layout in(x), kernel(weight);
        Convolution c{};
        c.x = memory(x), c.weight = memory(weight), c.groups = s.groups, c.inputs = kernel.size[1];
        c.height = in.size[2], c.width = in.size[3], c.kernel_height = kernel.size[2], c.kernel_width = kernel.size[3];
        for (size_t d = 0; d < 2; ++d) {
            c.stride[d] = s.stride[d], c.padding[d] = s.padding[d], c.dilation[d] = s.dilation[d];
            const int64_t out =
                (in.size[d + 2] + 2 * s.padding[d] - s.dilation[d] * (kernel.size[d + 2] - 1) - 1) / s.stride[d] + 1;
            (d == 0 ? c.out_height : c.out_width) = out;
        }
        std::copy_n(in.stride, 4, c.x_strides);
        std::copy_n(kernel.stride, 4, c.weight_strides);
        passes_.repair(q, c);
    }

  private:
    Passes passes_;
    DType dtype_;
    bool apart_;
};

}  // namespace
}  // namespace conv_bn

OPWRIGHT_KERNEL(conv_bn, CUDA, conv_bn::forward<conv_bn::Device>);
OPWRIGHT_KERNEL(conv_bn_backward, CUDA, conv_bn::backward<conv_bn::Device>);
