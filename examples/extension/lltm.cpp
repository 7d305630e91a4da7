// An extension of the old kind, as PyTorch's tutorial on LLTM writes one: forward and backward on torch::Tensor, handed
// to Python by pybind11. Nothing in it knows of opwright.
#include <torch/extension.h>

#include <vector>

namespace {

torch::Tensor d_sigmoid(const torch::Tensor& s) { return s * (1 - s); }

torch::Tensor d_tanh(const torch::Tensor& z) { return 1 - z.tanh().pow(2); }

// elu has the slope 1 above zero and e^z below.
torch::Tensor d_elu(const torch::Tensor& z) { return torch::where(z > 0, torch::ones_like(z), z.exp()); }

}  // namespace

std::vector<torch::Tensor> lltm_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor h,
                                        torch::Tensor c) {
    auto joined = torch::cat({h, x}, 1);
    auto gates = torch::addmm(bias, joined, weight.t());
    auto parts = gates.chunk(3, 1);
    auto i = torch::sigmoid(parts[0]);
    auto o = torch::sigmoid(parts[1]);
    auto g = torch::elu(parts[2]);
    auto new_c = c + g * i;
    auto new_h = torch::tanh(new_c) * o;
    return {new_h, new_c, i, o, g, joined, gates};
}

std::vector<torch::Tensor> lltm_backward(torch::Tensor grad_h, torch::Tensor grad_c, torch::Tensor new_c,
                                         torch::Tensor i, torch::Tensor o, torch::Tensor g, torch::Tensor joined,
                                         torch::Tensor gates, torch::Tensor weight) {
    auto grad_o = torch::tanh(new_c) * grad_h * d_sigmoid(o);
    auto grad_new_c = d_tanh(new_c) * o * grad_h + grad_c;
    auto grad_g = i * grad_new_c * d_elu(gates.chunk(3, 1)[2]);
    auto grad_i = g * grad_new_c * d_sigmoid(i);
    auto grad_gates = torch::cat({grad_i, grad_o, grad_g}, 1);
    auto grad_weight = grad_gates.t().mm(joined);
    auto grad_bias = grad_gates.sum(0);
    auto grad_joined = grad_gates.mm(weight);
    const auto size = grad_h.size(1);
    return {grad_joined.slice(1, size), grad_weight, grad_bias, grad_joined.slice(1, 0, size), grad_new_c};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &lltm_forward, "LLTM forward", py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("h"),
          py::arg("c"));
    m.def("backward", &lltm_backward, "LLTM backward");
}
