// Operators of opwright in a program without Python: called, differentiated, and trained with. `train cuda` runs on a
// GPU.

#include <ATen/ATen.h>
#include <recurrent/operators.h>

#include <cstdio>

namespace {

at::Device device = at::kCPU;

// Numbers that every machine has, without a random generator: a wave.
at::Tensor wave(at::IntArrayRef sizes, double step) {
    const int64_t count = c10::multiply_integers(sizes);
    return at::arange(count, at::kFloat).mul(step).sin().reshape(sizes).to(device);
}

void print(const char* name, const at::Tensor& x) {
    std::printf("%s", name);
    const at::Tensor flat = x.detach().to(at::kCPU, at::kDouble).flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) std::printf(" %a", flat[i].item<double>());
    std::printf("\n");
}

// One layer of LLTM over a sequence and a linear layer behind it, trained to follow a wave.
struct Model {
    at::Tensor cell_weight = wave({3 * 4, 4 + 2}, 0.37).mul(0.5).requires_grad_();
    at::Tensor cell_bias = wave({3 * 4}, 0.11).requires_grad_();
    at::Tensor weight = wave({1, 4}, 0.53).requires_grad_();
    at::Tensor bias = wave({1}, 0.7).requires_grad_();

    at::Tensor operator()(const at::Tensor& x) const {
        at::Tensor h = at::zeros({x.size(1), 4}, x.options()), c = at::zeros_like(h);
        for (const at::Tensor& step : x.unbind()) {
            const auto next = opwright::lltm_cell(step, cell_weight, cell_bias, h, c);
            h = next.h, c = next.c;
        }
        return opwright::linear(h, weight, bias);
    }

    std::vector<at::Tensor> parameters() const { return {cell_weight, cell_bias, weight, bias}; }
};

}  // namespace

int main(int count, char** words) {
    if (count > 1) device = at::Device(words[1]);
    const at::Tensor x = wave({16}, 0.3), y = wave({16}, 0.7);
    print("axpby", opwright::axpby(x, y, {.a = 2, .b = 0.5}));

    const Model model;
    const at::Tensor inputs = wave({5, 3, 2}, 0.2), wanted = wave({3, 1}, 1.3);
    for (int step = 0; step < 5; ++step) {
        const at::Tensor loss = (model(inputs) - wanted).square().mean();
        print("loss", loss);
        loss.backward();
        for (at::Tensor& parameter : model.parameters()) {
            const at::NoGradGuard guard;
            parameter.copy_(opwright::axpby(parameter, parameter.grad(), {.b = -0.1}));
            parameter.mutable_grad().reset();
        }
    }
    for (const at::Tensor& parameter : model.parameters()) print("parameter", parameter);

    // A call that no kernel takes says what stands in the way: the reference is in Python.
    try {
        opwright::linear(x.to(at::kInt), model.weight, model.bias);
    } catch (const c10::Error& error) {
        std::printf("refused: %s\n", error.what_without_backtrace());
    }
}
