// PyTorch's convolution and its gradient.
#pragma once

#include <dlfcn.h>
#include <opwright/aten.h>

#pragma GCC visibility push(hidden)

namespace conv_bn {

using Sizes = std::vector<int64_t>;
using OptionalTensor = std::optional<Tensor>;

struct Geometry {
    const Sizes &stride, &padding, &dilation;
    int64_t groups;
};

// A function of PyTorch's for one of its operators, which takes no boxes: some microseconds less than the dispatcher by
// name. Null where this torch has none; that for CUDA is in a library that a CPU-only torch lacks.
inline void* unboxed([[maybe_unused]] const char* on_cpu, [[maybe_unused]] const char* on_cuda) {
#ifdef OPWRIGHT_CUDA
    if (void* const found = dlsym(RTLD_DEFAULT, on_cuda)) return found;
    void* const torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return torch ? dlsym(torch, on_cuda) : nullptr;
#else
    return dlsym(RTLD_DEFAULT, on_cpu);
#endif
}

using Handle = AtenTensorHandle;
using Numbers64 = const int64_t*;
constexpr int64_t nothing[2] = {0, 0};  // of padding behind the output, in either direction

inline Tensor convolve(const Tensor& x, const Tensor& weight, const Geometry& s) {
    using Run = AOTITorchError (*)(Handle x, Handle weight, Handle* bias, Numbers64 stride, int64_t, Numbers64 padding,
                                   int64_t, Numbers64 dilation, int64_t, int32_t transposed, Numbers64 more, int64_t,
                                   int64_t groups, Handle* out);
    static const auto run = reinterpret_cast<Run>(unboxed("aoti_torch_cpu_convolution", "aoti_torch_cuda_convolution"));
    if (!run) {
        return call("aten::convolution", "", x, weight, OptionalTensor(), s.stride, s.padding, s.dilation, false,
                    Sizes{0, 0}, s.groups);
    }
    Handle out = nullptr;
    ow_inner::succeeded(run(x.get(), weight.get(), nullptr, s.stride.data(), 2, s.padding.data(), 2, s.dilation.data(),
                            2, false, nothing, 2, s.groups, &out),
                        "aten::convolution");
    return Tensor(out);
}

inline std::tuple<Tensor, Tensor> convolve_back(const Tensor& d, const Tensor& x, const Tensor& weight,
                                                const Geometry& s, bool to_x, bool to_weight) {
    if (!to_x && !to_weight) return {};
    using Run = AOTITorchError (*)(Handle d, Handle x, Handle weight, Numbers64* bias_sizes, int64_t, Numbers64 stride,
                                   int64_t, Numbers64 padding, int64_t, Numbers64 dilation, int64_t, int32_t transposed,
                                   Numbers64 more, int64_t, int64_t groups, const int32_t* mask, int64_t, Handle* to_x,
                                   Handle* to_weight, Handle* to_bias);
    static const auto run =
        reinterpret_cast<Run>(unboxed("aoti_torch_cpu_convolution_backward", "aoti_torch_cuda_convolution_backward"));
    Tensor d_x, d_weight;
    if (run) {
        const int32_t mask[] = {to_x, to_weight, false};
        Handle found[3] = {};
        ow_inner::succeeded(
            run(d.get(), x.get(), weight.get(), nullptr, 0, s.stride.data(), 2, s.padding.data(), 2, s.dilation.data(),
                2, false, nothing, 2, s.groups, mask, 3, &found[0], &found[1], &found[2]),
            "aten::convolution_backward");
        const Tensor none(found[2]);
        d_x = Tensor(found[0]), d_weight = Tensor(found[1]);
    } else {
        const bool mask[] = {to_x, to_weight, false};
        auto all = call<std::tuple<Tensor, Tensor, Tensor>>(
            "aten::convolution_backward", "", d, x, weight, std::optional<Sizes>(), s.stride, s.padding, s.dilation,
            false, Sizes{0, 0}, s.groups, torch::headeronly::HeaderOnlyArrayRef<bool>(mask, 3));
        d_x = std::get<0>(all), d_weight = std::get<1>(all);
    }
    return {to_x ? d_x : Tensor(), to_weight ? d_weight : Tensor()};
}

}  // namespace conv_bn

#pragma GCC visibility pop
