#include "node.h"

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <algorithm>
#include <string>

namespace opwright {

using c10::IValue;
using torch::autograd::SavedVariable;

namespace {

// Without streams: where a compiler puts parts of its C++ library into ours, they would not fit PyTorch's.
std::string spell(c10::SymIntArrayRef sizes) {
    std::string spelled = "(";
    for (size_t i = 0; i < sizes.size(); ++i) {
        const auto known = sizes[i].maybe_as_int();
        spelled += i ? ", " : "";
        spelled += known ? std::to_string(*known) : sizes[i].toSymNode()->str();
    }
    return spelled + (sizes.size() == 1 ? ",)" : ")");
}

const IValue nothing;  // in place of what is not kept

// As kept.py has it: in a graph, a plain clone would be made again after the write.
at::Tensor copy_of(const at::Tensor& t) {
    if (!t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize}))) {
        return t.clone();
    }
    static const auto copy = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("opwright_kept::copy", "")
                                 .typed<at::Tensor(const at::Tensor&)>();
    return copy.call(t.detach());
}

}  // namespace

CallNode::Pointer CallNode::make(const Recorded& recorded) {
#if OPWRIGHT_INTRUSIVE_NODES
    return c10::make_intrusive<CallNode>(recorded);
#else
    // Deletes a long chain of nodes without recursion.
    return Pointer(new CallNode(recorded), torch::autograd::deleteNode);
#endif
}

std::string CallNode::name() const {
    // As PyTorch names its own: axpby_ makes AxpbyBackward, a rung of it AxpbyBackwardBackward.
    std::string spelled;
    bool upper = true;
    for (const char c : recorded().name) {
        if (c == '_') {
            upper = true;
            continue;
        }
        spelled += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
        upper = false;
    }
    return spelled + "Backward";
}

// --- recording -------------------------------------------------------------------------------------------------------

void CallNode::connect(c10::ArrayRef<IValue> arguments) {
    torch::autograd::edge_list edges;
    edges.reserve(recorded().followed.size());
    const auto add = [&](const at::Tensor& t, size_t place) {
        edges.push_back(t.defined() ? torch::autograd::impl::gradient_edge(t) : torch::autograd::Edge());
        if (edges.back().is_valid() && place < 64) requiring_ |= uint64_t{1} << place;
    };
    for (size_t p = 0; p < recorded().followed.size(); ++p) {
        const IValue& argument = arguments[recorded().followed[p]];
        if (argument.isList() && argument.isTensorList()) {
            const auto list = argument.toListRef();
            for (const IValue& t : list) add(t.toTensor(), p);
            backward_.edges.push_back(static_cast<int32_t>(list.size()));
        } else {
            add(argument.isTensor() ? argument.toTensor() : at::Tensor(), p);
            backward_.edges.push_back(Slot::one);
        }
    }
    set_next_edges(std::move(edges));
}

void CallNode::keep_inputs(c10::ArrayRef<IValue> arguments) {
    const auto& sources = recorded().sources;
    const auto is_tensor = [&](const Source& s) {
        return s.origin == Origin::output || (s.origin == Origin::input && arguments[s.position].isTensor());
    };
    // Those are dear to move.
    saved_.reserve(static_cast<size_t>(std::count_if(sources.begin(), sources.end(), is_tensor)));
    for (size_t i = 0; i < sources.size(); ++i) {
        const Source& source = sources[i];
        const bool absent = source.when && !arguments[*source.when].toBool();
        if (absent) absent_ |= uint64_t{1} << i;  // an operator has at most 64 arguments
        if (source.origin != Origin::input) continue;
        const bool readable = !source.like && (source.needs & requiring_) != 0;
        const auto& updated = recorded().updated;
        const bool written = recorded().written == source.position ||
                             std::find(updated.begin(), updated.end(), source.position) != updated.end();
        keep(absent ? nothing : arguments[source.position], false, readable, written, source.like);
    }
}

void CallNode::keep_outputs(c10::ArrayRef<IValue> outputs) {
    const auto& sources = recorded().sources;
    for (size_t i = 0; i < sources.size(); ++i) {
        const Source& source = sources[i];
        if (source.origin != Origin::output) continue;
        const bool absent = absent_ >> i & 1;
        keep(absent ? nothing : outputs[source.position], true, (source.needs & requiring_) != 0, false, false);
    }
}

void CallNode::keep(const IValue& found, bool is_output, bool readable, bool written, bool like) {
    Slots& kept = backward_.kept;
    if (found.isList() && found.isTensorList() && like && !strangers_) {
        const auto list = found.toListRef();
        for (const IValue& t : list) keep_shape(t.toTensor());
        kept.push_back(Slot::shapes - static_cast<int32_t>(list.size()));
    } else if (found.isList() && found.isTensorList()) {
        const auto list = found.toListRef();
        for (const IValue& t : list) keep_tensor(t.toTensor(), is_output, written);
        kept.push_back(static_cast<int32_t>(list.size()));
    } else if (found.isTensor() && found.toTensor().defined()) {
        readable = readable || (strangers_ && found.toTensor().key_set().has(c10::DispatchKey::Python));
        if (readable) {
            keep_tensor(found.toTensor(), is_output, written);
        } else {
            keep_shape(found.toTensor());
        }
        kept.push_back(readable ? Slot::one : Slot::shape);
    } else if (found.isNone() || found.isTensor()) {
        kept.push_back(Slot::none);
    } else {
        values_.push_back(found);
        kept.push_back(Slot::value);
    }
}

void CallNode::keep_shape(const at::Tensor& t) { shapes_.emplace_back(t.scalar_type(), t.device(), t.sym_sizes()); }

void CallNode::keep_tensor(const at::Tensor& t, bool is_output, bool written) {
    // What was written over is gone; what autograd has is a view's new history, which must not own itself.
    const bool has_history = is_output && t.requires_grad();
    saved_.emplace_back(written ? copy_of(t) : t, has_history, has_history && recorded().written && t.is_view());
    is_output_.push_back(has_history);
}

void CallNode::attach(const IValue& output, bool differentiable) {
    if (output.isList() && output.isTensorList()) {
        const auto list = output.toListRef();
        for (const IValue& t : list) attach_tensor(t.toTensor(), differentiable);
        backward_.results.push_back(static_cast<int32_t>(list.size()));
    } else {
        const bool present = output.isTensor() && output.toTensor().defined();
        attach_tensor(present ? output.toTensor() : at::Tensor(), differentiable);
        backward_.results.push_back(present ? Slot::one : Slot::none);
    }
}

void CallNode::attach_tensor(const at::Tensor& t, bool differentiable) {
    if (!t.defined()) {
        add_input_metadata(undefined_input());
        return;
    }
    const auto number = add_input_metadata(t);
    if (differentiable && torch::autograd::isDifferentiableType(t.scalar_type())) {
        torch::autograd::impl::set_gradient_edge(t, {getptr(), number});
    }
}

void CallNode::attach_written(const at::Tensor& output) {
    torch::autograd::rebase_history(output, getptr());
    backward_.results.push_back(Slot::one);
}

// --- backward --------------------------------------------------------------------------------------------------------

variable_list CallNode::apply(variable_list&& grads) {
    bool any = false;
    for (const at::Tensor& grad : grads) any = any || grad.defined();
    if (!any) return variable_list(num_outputs());
    TORCH_CHECK_TYPE(recorded().differentiates(), recorded().missing);
    const auto asked = wanted();
    variable_list found = backward_.run(grads, unpack(), asked, [this](size_t i) { return shape_of(i); });
    check(found);
    if (recorded().once && at::GradMode::is_enabled()) refuse_twice(found);
    return found;
}

// Somebody may differentiate the gradient, which was computed from caches that have no history: it must not look like a
// constant.
void CallNode::refuse_twice(variable_list& grads) const {
    auto edges = next_edges();
#if OPWRIGHT_INTRUSIVE_NODES
    const auto error = c10::make_intrusive<torch::autograd::Error>(*recorded().once, std::move(edges));
#else
    const std::shared_ptr<torch::autograd::Error> error(new torch::autograd::Error(*recorded().once, std::move(edges)),
                                                        torch::autograd::deleteNode);
#endif
    for (at::Tensor& grad : grads) {
        if (!grad.defined() || grad.requires_grad() || !torch::autograd::isDifferentiableType(grad.scalar_type()))
            continue;
        grad = grad.detach();
        torch::autograd::set_history(grad, error);
    }
}

std::vector<bool> CallNode::wanted() const {
    std::vector<bool> asked(num_outputs());
    for (size_t i = 0; i < asked.size(); ++i) asked[i] = task_should_compute_output(i);
    return asked;
}

Kept CallNode::unpack() {
    const std::lock_guard<std::mutex> lock(mutex_);  // another thread may release it meanwhile
    Kept state;
    state.tensors.reserve(saved_.size());
    for (size_t i = 0; i < saved_.size(); ++i) {
        state.tensors.push_back(saved_[i].unpack(is_output_[i] ? getptr() : nullptr));
    }
    state.shapes = shapes_;
    state.values = values_;
    return state;
}

Shape CallNode::shape_of(size_t output) const {
    const auto& metadata = input_metadata(output);
    return {c10::typeMetaToScalarType(metadata.dtype()), metadata.device(), metadata.shape_as_dim_vector()};
}

// A gradient has its tensor's shape. The engine would quietly sum one that merely broadcasts to it.
void CallNode::check(const variable_list& grads) const {
    for (size_t i = 0; i < grads.size(); ++i) {
        if (!grads[i].defined() || !next_edge(i).is_valid()) continue;
        const auto& metadata = next_edge(i).function->input_metadata(next_edge(i).input_nr);
        if (metadata.is_same_shape(grads[i])) continue;
        size_t edge = 0, place = 0;
        while (edge + (backward_.edges[place] < 0 ? 1 : backward_.edges[place]) <= i) {
            edge += backward_.edges[place] < 0 ? 1 : backward_.edges[place];
            ++place;
        }
        TORCH_CHECK_VALUE(false, recorded().name, ": its gradient returned shape ", spell(grads[i].sym_sizes()),
                          " for ", recorded().arguments[recorded().followed[place]], " of shape ",
                          spell(metadata.shape_as_dim_vector()));
    }
}

void CallNode::release_variables() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& saved : saved_) saved.reset_data();
}

#if OPWRIGHT_INTRUSIVE_NODES
void CallNode::release_resources() {
    Node::release_resources();
    saved_.clear();
    values_.clear();
}
#endif

}  // namespace opwright
