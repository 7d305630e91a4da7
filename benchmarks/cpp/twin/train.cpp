#include <torch/torch.h>

#include <cstdio>

at::Tensor axpby(const at::Tensor& x, const at::Tensor& y, double a, double b);
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
std::tuple<at::Tensor, at::Tensor> lltm_cell(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                             const at::Tensor& h, const at::Tensor& c);

int main() {
    const at::Tensor inputs = at::arange(30, at::kFloat).mul(0.2).sin().reshape({5, 3, 2});
    std::vector<at::Tensor> parameters{at::arange(72, at::kFloat).mul(0.37).sin().mul(0.5).reshape({12, 6}),
                                       at::arange(12, at::kFloat).mul(0.11).sin(),
                                       at::arange(4, at::kFloat).mul(0.53).sin().reshape({1, 4}),
                                       at::arange(1, at::kFloat).mul(0.7).sin()};
    for (at::Tensor& parameter : parameters) parameter.requires_grad_();
    const at::Tensor wanted = at::arange(3, at::kFloat).mul(1.3).sin().reshape({3, 1});
    for (int step = 0; step < 5; ++step) {
        at::Tensor h = at::zeros({3, 4}), c = at::zeros({3, 4});
        for (const at::Tensor& x : inputs.unbind()) std::tie(h, c) = lltm_cell(x, parameters[0], parameters[1], h, c);
        const at::Tensor loss = (linear(h, parameters[2], parameters[3]) - wanted).square().mean();
        std::printf("loss %.6f\n", loss.item<double>());
        loss.backward();
        for (at::Tensor& parameter : parameters) {
            const at::NoGradGuard guard;
            parameter.copy_(axpby(parameter, parameter.grad(), 1, -0.1));
            parameter.mutable_grad().reset();
        }
    }
}
