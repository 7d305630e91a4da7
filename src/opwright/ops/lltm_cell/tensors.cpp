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

// Between the stable ABI, which binds kernels, and ATen, which knows numbers as arguments (elu's, addmm's).
const at::Tensor& aten(const Tensor& x) { return *reinterpret_cast<const at::Tensor*>(x.get()); }
Tensor stable(at::Tensor x) { return Tensor(reinterpret_cast<AtenTensorHandle>(new at::Tensor(std::move(x)))); }

struct Cell {
    at::Tensor h, c, i, o, g, joined;

    Cell(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h_old, const Tensor& c_old) {
        joined = at::cat({aten(h_old), aten(x)}, 1);
        const auto gates = at::addmm(aten(bias), joined, aten(weight).t()).chunk(3, 1);
        i = at::sigmoid(gates[0]);
        o = at::sigmoid(gates[1]);
        g = at::elu(gates[2]);
        c = aten(c_old) + g * i;
        h = at::tanh(c) * o;
    }
};

}  // namespace

std::tuple<Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h,
                                   const Tensor& c) {
    const Cell cell(x, weight, bias, h, c);
    return {stable(cell.h), stable(cell.c)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward_saving(const Tensor& x, const Tensor& weight,
                                                                          const Tensor& bias, const Tensor& h,
                                                                          const Tensor& c) {
    const Cell cell(x, weight, bias, h, c);
    return {stable(cell.h), stable(cell.c), stable(cell.i), stable(cell.o), stable(cell.g), stable(cell.joined)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_h, const Tensor& grad_c,
                                                            const Tensor& weight, const Tensor& c, const Tensor& i_,
                                                            const Tensor& o_, const Tensor& g_, const Tensor& joined,
                                                            const Tensor&, const Tensor&, const Tensor&,
                                                            const Wanted&) {
    const at::Tensor &i = aten(i_), &o = aten(o_), &g = aten(g_), &d_h = aten(grad_h);
    const at::Tensor tanh = at::tanh(aten(c) + g * i);
    const at::Tensor d_c = d_h * o * (1 - tanh * tanh) + aten(grad_c);
    const at::Tensor d_elu = at::where(g > 0, at::ones_like(g), g + 1);
    const at::Tensor d = at::cat({d_c * g * i * (1 - i), d_h * tanh * o * (1 - o), d_c * i * d_elu}, 1);
    const at::Tensor d_joined = d.mm(aten(weight));
    const int64_t hidden = aten(c).size(1);
    return {stable(d_joined.slice(1, hidden).contiguous()), stable(d.t().mm(aten(joined))), stable(d.sum(0)),
            stable(d_joined.slice(1, 0, hidden).contiguous()), stable(d_c)};
}

OPWRIGHT_KERNEL(lltm_cell_tensors, CPU, forward);
OPWRIGHT_KERNEL(lltm_cell_tensors_saving, CPU, forward_saving);
OPWRIGHT_KERNEL(lltm_cell_tensors_backward, CPU, backward);
