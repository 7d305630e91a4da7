#include <torch/torch.h>

class Cell : public torch::autograd::Function<Cell> {
  public:
    static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                  const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& h,
                                                  const at::Tensor& c) {
        const at::Tensor both = at::cat({h, x}, 1);
        const auto parts = at::addmm(bias, both, weight.t()).chunk(3, 1);
        const at::Tensor in = parts[0].sigmoid(), out = parts[1].sigmoid(), g = at::elu(parts[2]);
        const at::Tensor next = c + g * in;
        context->save_for_backward({both, weight, in, out, g, parts[2], next});
        return {next.tanh() * out, next};
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& grads) {
        const auto s = context->get_saved_variables();
        const at::Tensor &in = s[2], &out = s[3], &g = s[4], t = s[6].tanh();
        const at::Tensor d_c = grads[1] + grads[0] * out * (1 - t * t);
        const at::Tensor slope = at::where(s[5] > 0, at::ones_like(g), g + 1);
        const at::Tensor d = at::cat({d_c * g * in * (1 - in), grads[0] * t * out * (1 - out), d_c * in * slope}, 1);
        const at::Tensor both = d.mm(s[1]);
        const int64_t hidden = in.size(1);
        return {both.slice(1, hidden), d.t().mm(s[0]), d.sum(0), both.slice(1, 0, hidden), d_c};
    }
};

std::tuple<at::Tensor, at::Tensor> lltm_cell(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                             const at::Tensor& h, const at::Tensor& c) {
    const auto out = Cell::apply(x, weight, bias, h, c);
    return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(twin, m) {
    m.def("lltm_cell(Tensor x, Tensor weight, Tensor bias, Tensor h, Tensor c) -> (Tensor, Tensor)", lltm_cell);
}
