// Tensors of which only the shape, dtype and device are known, for gradients that read no more.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>

namespace opwright {

struct Shape {
    c10::ScalarType dtype;
    c10::Device device;
    c10::SymDimVector sizes;

    Shape(c10::ScalarType dtype, c10::Device device, c10::SymIntArrayRef sizes)
        : dtype(dtype), device(device), sizes(sizes.begin(), sizes.end()) {}
    at::TensorOptions options() const { return at::TensorOptions().dtype(dtype).device(device); }
};

// A tensor of this shape in one element's memory. `declared`: its author asked for no values, and will not look.
at::Tensor stand_in(const Shape& shape, bool declared);

}  // namespace opwright
