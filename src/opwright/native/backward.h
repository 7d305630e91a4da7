// A call of the gradient operator: its arguments from what was kept and what comes in, its results to where they
// belong.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include "stand_in.h"
#include "wire.h"

namespace opwright {

using Shapes = c10::SmallVector<Shape, 2>;
using Values = c10::SmallVector<c10::IValue, 4>;

// What stands in one place of a call: a list of so many tensors, or one of these; `shapes - n`: a list of n shapes.
enum Slot : int32_t { one = -1, none = -2, shape = -3, value = -4, shapes = -5 };
using Slots = c10::SmallVector<int32_t, 6>;

// What a node kept, unpacked. In each vector, what came from inputs stands before what came from outputs.
struct Kept {
    std::vector<at::Tensor> tensors;
    Shapes shapes;
    Values values;
};

struct Backward {
    const Recorded* recorded;
    Slots edges;    // the tensors of each followed argument
    Slots results;  // those of each output
    Slots kept;     // what was kept for each source, inputs first

    using Grads = c10::ArrayRef<at::Tensor>;

    // The gradients of the followed tensors; `shape_of` tells the shape of an output whose gradient did not come.
    std::vector<at::Tensor> run(Grads grads, Kept state, const std::vector<bool>& wanted,
                                c10::function_ref<Shape(size_t)> shape_of) const;

  private:
    torch::jit::Stack arrange(Grads grads, Kept state, const std::vector<bool>& wanted,
                              c10::function_ref<Shape(size_t)> shape_of) const;
    void place_kept(torch::jit::Stack& stack, Kept state) const;
    c10::IValue gradient(const Source& source, Grads grads, c10::function_ref<Shape(size_t)> shape_of) const;
    c10::IValue mask(const std::vector<bool>& wanted) const;
    std::vector<at::Tensor> spread(const torch::jit::Stack& stack, const std::vector<bool>& wanted) const;
};

}  // namespace opwright
