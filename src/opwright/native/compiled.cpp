// The node under compiled autograd, which records backward calls in a graph of its own.

#include "node.h"

namespace opwright {

using c10::IValue;

namespace {

using Sizes = std::vector<c10::SymInt>;

Sizes sizes_of(c10::SymIntArrayRef sizes) { return sizes.vec(); }

// A backward call as a function of its gradients and of what a graph carries: tensors, then values, then sizes.
struct Carried {
    Backward backward;
    std::vector<bool> wanted;
    Shapes shapes;   // their sizes are carried
    Shapes outputs;  // likewise
    size_t values;

    variable_list operator()(const variable_list& grads, const std::vector<IValue>& carried) const {
        size_t next = 0;
        Kept state;
        state.tensors = carried[next++].toTensorVector();
        for (size_t i = 0; i < values; ++i) state.values.push_back(carried[next++]);
        const auto read = [&](Shape shape) {
            const Sizes sizes = carried[next++].toSymIntVector();
            shape.sizes.assign(sizes.begin(), sizes.end());
            return shape;
        };
        for (const Shape& shape : shapes) state.shapes.push_back(read(shape));
        Shapes known;
        for (const Shape& shape : outputs) known.push_back(read(shape));
        bool any = false;
        for (const at::Tensor& grad : grads) any = any || grad.defined();
        if (!any) return variable_list(wanted.size());
        return backward.run(grads, std::move(state), wanted, [&](size_t i) { return known[i]; });
    }
};

}  // namespace

void CallNode::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const {
    args.collect(reinterpret_cast<uint64_t>(&recorded()));  // never freed, so that no other takes its place
    for (const Slots* slots : {&backward_.edges, &backward_.results, &backward_.kept}) {
        args.collect(static_cast<uint64_t>(slots->size()));
        for (const int32_t place : *slots) args.collect(place);
    }
    for (size_t i = 0; i < saved_.size(); ++i) args.collect(saved_[i], is_output_[i]);
    for (const Shape& shape : shapes_) {
        args.collect(shape.dtype);
        args.collect(shape.device);
        args.collect(c10::SymIntArrayRef(shape.sizes));
    }
    for (const IValue& value : values_) args.collect(value);
    for (size_t i = 0; i < num_inputs(); ++i) {
        if (args.cond(!input_metadata(i).was_default_constructed())) args.collect(input_metadata(i));
    }
}

variable_list CallNode::apply_with_saved(const variable_list& grads,
                                         torch::dynamo::autograd::SwapSavedVariables& swap) {
    TORCH_CHECK_TYPE(recorded().differentiates(), recorded().missing);
    const auto visit = [&](auto&& each) {
        for (auto& saved : saved_) each(saved);
        for (Shape& shape : shapes_) each(shape.sizes);
        for (IValue& value : values_) each(value);
        for (size_t i = 0; i < num_inputs(); ++i) {
            if (!input_metadata(i).was_default_constructed()) each(mutable_input_metadata(i));
        }
    };
    visit([&](auto& attribute) { swap.before(attribute); });
    const Kept state = unpack();
    std::vector<IValue> carried{IValue(state.tensors)};
    for (const IValue& value : state.values) carried.push_back(value);
    for (const Shape& shape : state.shapes) carried.emplace_back(sizes_of(shape.sizes));
    Shapes outputs;
    for (size_t i = 0; i < num_inputs(); ++i) {
        const bool absent = input_metadata(i).was_default_constructed();
        outputs.push_back(absent ? Shape{at::kFloat, at::kCPU, {}} : shape_of(i));
        carried.emplace_back(sizes_of(outputs.back().sizes));
    }
    std::vector<at::TypePtr> types;
    for (const IValue& value : carried) types.push_back(value.isTensor() ? at::TensorType::get() : value.type());
    const auto metadata =
        torch::dynamo::autograd::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            torch::dynamo::autograd::get_input_metadata(next_edges()));
    const auto& python = torch::dynamo::autograd::getPyCompilerInterface();
    const std::string bound =
        python->bind_function(swap.get_py_compiler(), name(),
                              Carried{backward_, wanted(), state.shapes, std::move(outputs), state.values.size()},
                              types, /*is_custom_function=*/true, /*is_traceable=*/true);
    auto results = python->call_function(swap.get_py_compiler(), "apply_functional", bound, grads, carried, metadata);
    visit([&](auto& attribute) { swap.after(attribute); });
    return results;
}

}  // namespace opwright
