// The cell as tutorials write it: every line a call of PyTorch's, from C++. What C++ saves is Python's time between the
// calls; each still makes a tensor and walks through memory, which is why this is hardly faster than Python.

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <opwright/kernel.h>

namespace {

struct Cell {
    at::Tensor h, c, i, o, g, joined;

    Cell(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& h_old,
         const at::Tensor& c_old) {
        joined = at::cat({h_old, x}, 1);
        const auto gates = at::addmm(bias, joined, weight.t()).chunk(3, 1);
        i = at::sigmoid(gates[0]);
        o = at::sigmoid(gates[1]);
        g = at::elu(gates[2]);
        c = c_old + g * i;
        h = at::tanh(c) * o;
    }
};

}  // namespace

std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& h, const at::Tensor& c) {
    const Cell cell(x, weight, bias, h, c);
    return {cell.h, cell.c};
}

std::vector<at::Tensor> forward_saving(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                       const at::Tensor& h, const at::Tensor& c) {
    const Cell cell(x, weight, bias, h, c);
    return {cell.h, cell.c, cell.i, cell.o, cell.g, cell.joined};
}

std::vector<at::Tensor> backward(const at::Tensor& grad_h, const at::Tensor& grad_c, const at::Tensor& weight,
                                 const at::Tensor& c, const at::Tensor& i, const at::Tensor& o, const at::Tensor& g,
                                 const at::Tensor& joined, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const Wanted&) {
    const at::Tensor tanh = at::tanh(c + g * i);
    const at::Tensor d_c = grad_h * o * (1 - tanh * tanh) + grad_c;
    const at::Tensor d_elu = at::where(g > 0, at::ones_like(g), g + 1);
    const at::Tensor d = at::cat({d_c * g * i * (1 - i), grad_h * tanh * o * (1 - o), d_c * i * d_elu}, 1);
    const at::Tensor d_joined = d.mm(weight);
    const int64_t hidden = c.size(1);
    return {d_joined.slice(1, hidden).contiguous(), d.t().mm(joined), d.sum(0),
            d_joined.slice(1, 0, hidden).contiguous(), d_c};
}

OPWRIGHT_KERNEL(lltm_cell_tensors, CPU, forward);
OPWRIGHT_KERNEL(lltm_cell_tensors_saving, CPU, forward_saving);
OPWRIGHT_KERNEL(lltm_cell_tensors_backward, CPU, backward);
