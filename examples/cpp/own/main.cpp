// An operator of one's own in a program without Python.

#include <ATen/ATen.h>
#include <own/operators.h>

#include <cstdio>

int main() {
    const at::Tensor x = at::linspace(-2, 2, 5, at::kDouble).requires_grad_();
    const at::Tensor y = my_ops::swish(x, {.beta = 2});
    y.sum().backward();
    for (int64_t i = 0; i < x.numel(); ++i) {
        std::printf("%a %a\n", y[i].item<double>(), x.grad()[i].item<double>());
    }
}
