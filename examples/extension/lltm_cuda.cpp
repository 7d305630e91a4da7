// The same extension for the GPU: C++ that checks what it is given, and hands it to the kernels in lltm_cuda_kernel.cu.
#include <torch/extension.h>

#include <vector>

std::vector<torch::Tensor> lltm_cuda_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor h,
                                             torch::Tensor c);

std::vector<torch::Tensor> lltm_cuda_backward(torch::Tensor grad_h, torch::Tensor grad_c, torch::Tensor new_c,
                                              torch::Tensor i, torch::Tensor o, torch::Tensor g, torch::Tensor joined,
                                              torch::Tensor gates, torch::Tensor weight);

#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) \
    CHECK_CUDA(x);     \
    CHECK_CONTIGUOUS(x)

std::vector<torch::Tensor> lltm_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor h,
                                        torch::Tensor c) {
    CHECK_INPUT(x);
    CHECK_INPUT(weight);
    CHECK_INPUT(bias);
    CHECK_INPUT(h);
    CHECK_INPUT(c);
    return lltm_cuda_forward(x, weight, bias, h, c);
}

std::vector<torch::Tensor> lltm_backward(torch::Tensor grad_h, torch::Tensor grad_c, torch::Tensor new_c,
                                         torch::Tensor i, torch::Tensor o, torch::Tensor g, torch::Tensor joined,
                                         torch::Tensor gates, torch::Tensor weight) {
    CHECK_INPUT(grad_h);
    CHECK_INPUT(grad_c);
    CHECK_INPUT(i);
    CHECK_INPUT(o);
    CHECK_INPUT(g);
    CHECK_INPUT(joined);
    CHECK_INPUT(gates);
    CHECK_INPUT(weight);
    return lltm_cuda_backward(grad_h, grad_c, new_c, i, o, g, joined, gates, weight);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &lltm_forward, "LLTM forward (CUDA)");
    m.def("backward", &lltm_backward, "LLTM backward (CUDA)");
}
