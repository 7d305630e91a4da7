// One call of an operator in the autograd graph.

#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/version.h>

#include "backward.h"

// Nodes are held by intrusive pointers since torch 2.13, by shared ones before.
#define OPWRIGHT_INTRUSIVE_NODES (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13)

namespace opwright {

using torch::autograd::variable_list;

class CallNode final : public torch::autograd::Node {
  public:
#if OPWRIGHT_INTRUSIVE_NODES
    using Pointer = c10::intrusive_ptr<CallNode>;
#else
    using Pointer = std::shared_ptr<CallNode>;
#endif
    static Pointer make(const Recorded& recorded);
    explicit CallNode(const Recorded& recorded) : backward_{&recorded, {}, {}, {}} {}

    // Before the call: the edges to the tensors that are followed, and what the gradient operator takes of the
    // arguments.
    void connect(c10::ArrayRef<c10::IValue> arguments);
    void keep_strangers(bool there) { strangers_ = there; }
    void keep_inputs(c10::ArrayRef<c10::IValue> arguments);
    // After it: the outputs' history, and what the gradient operator takes of them.
    void attach(const c10::IValue& output, bool differentiable);
    void attach_written(const at::Tensor& output);
    void keep_outputs(c10::ArrayRef<c10::IValue> outputs);

    variable_list apply(variable_list&& grads) override;
    void release_variables() override;
#if OPWRIGHT_INTRUSIVE_NODES
    void release_resources() override;
#endif
    std::string name() const override;
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
    variable_list apply_with_saved(const variable_list& grads,
                                   torch::dynamo::autograd::SwapSavedVariables& swap) override;

  private:
    const Recorded& recorded() const { return *backward_.recorded; }
    void attach_tensor(const at::Tensor& t, bool differentiable);
    void keep(const c10::IValue& value, bool is_output, bool readable, bool written, bool like);
    void refuse_twice(variable_list& grads) const;
    void keep_tensor(const at::Tensor& t, bool is_output, bool written);
    void keep_shape(const at::Tensor& t);
    Kept unpack();
    Shape shape_of(size_t output) const;
    std::vector<bool> wanted() const;
    void check(const variable_list& grads) const;

    Backward backward_;
    std::vector<torch::autograd::SavedVariable> saved_;
    c10::SmallVector<bool, 4> is_output_;  // for each that is saved
    Shapes shapes_;
    Values values_;
    bool strangers_ = false;  // tensors of kinds that take no plain stand-ins beside them, such as DTensors
    uint64_t requiring_ = 0;  // the followed arguments that require a gradient, a bit for each
    uint64_t absent_ = 0;     // the sources that this call was told not to keep, likewise
};

}  // namespace opwright
