// Autograd for every operator: a boxed kernel at the autograd keys that runs the operator below them and, where a
// gradient will be wanted, gives its outputs a node whose backward is the gradient operator.

#include "autograd.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "node.h"
#include "once.h"
#include "ways.h"

namespace opwright {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

// What stands behind an operator's name, which a new definition replaces. Null: Python has to be asked for it.
struct Entry {
    std::string name;
    std::atomic<const Recorded*> recorded{nullptr};
};

// Asks Python for it: it is written when it is first needed, and again after the operator has changed.
const Recorded& ask(Entry& entry) {
    static const OperatorHandle python = find("opwright_native::ask");
    // No mode shall see the question.
    const c10::impl::ExcludeDispatchKeyGuard below(c10::python_ks | c10::functorch_transforms_ks);
    for (;;) {  // another thread may change the operator as soon as it is written
        Stack stack{entry.name};
        python.callBoxed(&stack);
        const Recorded* recorded = entry.recorded.load();
        if (recorded != nullptr) return *recorded;
    }
}

template <class F>
void for_tensors(const IValue& value, F&& visit) {
    if (value.isTensor()) {
        if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isList() && value.isTensorList()) {
        for (const IValue& t : value.toListRef()) visit(t.toTensor());
    }
}

// The kind of tensor that has been told of all operators, DTensor; null: nobody here has one.
std::atomic<const void*> introduced{nullptr};

// The Python type of a tensor that Python serves. Where it stands is part of Python's stable ABI.
const void* kind_of(const at::Tensor& t) {
    const void* const object = t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
    return object == nullptr ? nullptr : static_cast<const void* const*>(object)[1];
}

class Recorder final : public c10::OperatorKernel {
  public:
    explicit Recorder(Entry& entry) : entry_(entry) {}

    void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
        const Recorded* known = entry_.recorded.load(std::memory_order_acquire);
        const Recorded& recorded = known != nullptr ? *known : ask(entry_);
        const auto arguments = torch::jit::last(*stack, recorded.arguments.size());
        const bool strangers = recorded.reference != nowhere && meet(arguments);  // whom only Python knows
        bool required = false, tangent = false;
        bool by_reference =
            recorded.by_reference && !(recorded.differentiates() && c10::impl::TorchDispatchModeTLS::any_modes_set());
        for (const size_t i : recorded.followed) {
            for_tensors(arguments[i], [&](const at::Tensor& t) {
                required = required || t.requires_grad();
                tangent = tangent || t._fw_grad(/*level=*/0).defined();
            });
        }
        bool updates = false;  // a tensor that requires a gradient itself
        for (const size_t i : recorded.updated) {
            for_tensors(arguments[i], [&](const at::Tensor& t) { updates = updates || t.requires_grad(); });
        }
        by_reference = by_reference || updates;
        if (recorded.reference == nowhere && at::GradMode::is_enabled()) {
            // What it writes of a tensor with a history would lose that.
            for (const IValue& argument : arguments) {
                if (!by_reference) break;
                for_tensors(argument, [&](const at::Tensor& t) { required = required || t.requires_grad(); });
            }
            TORCH_CHECK_NOT_IMPLEMENTED(!tangent, recorded.name, ": forward-mode derivatives need Python");
            TORCH_CHECK_NOT_IMPLEMENTED(!by_reference || !(required || updates), recorded.name,
                                        ": autograd would record what its "
                                        "reference does, which is in Python; call it under torch::NoGradGuard");
            by_reference = false;  // nothing requires a gradient
        }
        if (tangent) {
            run_in_python(recorded.reference, recorded.arguments.size(), stack);
        } else if (!at::GradMode::is_enabled() || !(required || by_reference)) {
            const at::AutoDispatchBelowAutograd guard;
            op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
        } else if (by_reference) {
            run_in_python(recorded.reference, recorded.arguments.size(), stack);
        } else {
            const auto run = [&] { recorded.form->redispatchBoxed(keys & c10::after_autograd_keyset, stack); };
            record(recorded, stack, run, strangers);
        }
    }

    // `run`: what runs the recorded form below autograd, on the stack.
    template <class Run>
    static void record(const Recorded& recorded, Stack* stack, const Run& run, bool strangers = false) {
        const auto node = CallNode::make(recorded);
        node->keep_strangers(strangers);
        at::Tensor written;
        c10::SmallVector<const c10::TensorImpl*, 8> given;
        c10::SmallVector<at::Tensor, 2> held;  // the stack's alone: once it is gone, a result may get its address
        {
            const auto arguments = torch::jit::last(*stack, recorded.arguments.size());
            if (recorded.written) {
                written = arguments[*recorded.written].toTensor();
                torch::autograd::check_inplace(written, true);
            }
            node->connect(arguments);
            node->keep_inputs(arguments);
            for (const IValue& argument : arguments) {
                for_tensors(argument, [&](const at::Tensor& t) {
                    const c10::TensorImpl* const tensor = t.unsafeGetTensorImpl();
                    const bool again = std::find(given.begin(), given.end(), tensor) != given.end();
                    if (again || t.use_count() == 1) held.push_back(t);
                    given.push_back(tensor);
                });
            }
        }
        {
            const at::AutoDispatchBelowAutograd guard;
            run();
        }
        if (written.defined()) {
            node->attach_written(written);
            node->keep_outputs({IValue(written)});
            return;
        }
        const size_t returned = recorded.form->schema().returns().size();
        for (size_t i = stack->size() - returned; i < stack->size(); ++i) own((*stack)[i]);
        const auto outputs = torch::jit::last(*stack, returned);
        for (size_t i = 0; i < recorded.differentiable.size(); ++i) {
            for_tensors(outputs[i], [&](const at::Tensor& t) { refuse(recorded, given, t); });
            node->attach(outputs[i], recorded.differentiable[i]);
        }
        node->keep_outputs(outputs);
        torch::jit::drop(*stack, returned - recorded.differentiable.size());
    }

  private:
    // A tensor of another kind may know nothing of the operator: Python gives it a rule before it is asked. Whether one
    // of them is no tracer's.
    bool meet(c10::ArrayRef<IValue> arguments) const {
        const void* const known = introduced.load(std::memory_order_relaxed);
        bool any = false, all_known = known != nullptr;
        const auto is_other = [](const at::Tensor& t) { return t.key_set().has(DispatchKey::Python); };
        for (const IValue& argument : arguments) {
            for_tensors(argument, [&](const at::Tensor& t) {
                if (!is_other(t)) return;
                any = true;
                all_known = all_known && kind_of(t) == known;
            });
        }
        if (C10_LIKELY(!any)) return false;
        if (all_known) return true;
        c10::List<at::Tensor> found;
        for (const IValue& argument : arguments) {
            for_tensors(argument, [&](const at::Tensor& t) {
                if (is_other(t)) found.push_back(t);
            });
        }
        static const OperatorHandle python = find("opwright_native::meet");
        const c10::impl::ExcludeDispatchKeyGuard below(c10::python_ks | c10::functorch_transforms_ks |
                                                       c10::autograd_dispatch_keyset_with_ADInplaceOrView);
        Stack stack{entry_.name, std::move(found)};
        python.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &stack);  // whatever they are: only their types count
        return torch::jit::pop(stack).toBool();
    }

    // A result may be a view of memory that only the operator has seen, and would be one of a base without a history.
    // In its place comes a tensor of the same memory that is no view.
    static void own(IValue& output) {
        bool view = false;
        for_tensors(output, [&](const at::Tensor& t) {
            view = view || (t.unsafeGetTensorImpl()->autograd_meta() != nullptr && t.is_view());
        });
        if (C10_LIKELY(!view) || c10::impl::TorchDispatchModeTLS::any_modes_set())
            return;  // tracers see to it themselves
        const at::AutoDispatchBelowADInplaceOrView guard;
        if (output.isTensor()) {
            output = output.toTensor().alias();
            return;
        }
        c10::List<at::Tensor> list;
        for (const IValue& t : output.toListRef()) list.push_back(t.toTensor().alias());
        output = std::move(list);
    }

    // Its history would be set on the caller's own tensor.
    static void refuse(const Recorded& recorded, c10::ArrayRef<const c10::TensorImpl*> given,
                       const at::Tensor& output) {
        for (const c10::TensorImpl* const input : given) {
            TORCH_CHECK_TYPE(output.unsafeGetTensorImpl() != input, recorded.name,
                             ": its kernel returned one of its arguments, and an operator's result is memory of its "
                             "own; return a copy");
        }
    }

    Entry& entry_;
};

std::mutex guard;
std::map<std::string, Entry>& entries() {
    static auto* const known = new std::map<std::string, Entry>();  // outlives what may still be running at exit
    return *known;
}

// Where the recorder stands: tensors of this machine. Each key costs every operator some memory, and Python, which
// stands at the key of all of them, records what is left.
std::vector<DispatchKey> own_keys() {
    std::vector<DispatchKey> keys{DispatchKey::AutogradCPU, DispatchKey::AutogradMeta};
    switch (at::getAccelerator().value_or(at::kCPU)) {
        case at::kCUDA:
            keys.push_back(DispatchKey::AutogradCUDA);
            break;
        case at::kXPU:
            keys.push_back(DispatchKey::AutogradXPU);
            break;
        case at::kMPS:
            keys.push_back(DispatchKey::AutogradMPS);
            break;
        case at::kPrivateUse1:
            keys.push_back(DispatchKey::AutogradPrivateUse1);
            break;
        default:
            break;
    }
    return keys;
}

}  // namespace

void record(Recorded written) {
    const std::lock_guard<std::mutex> lock(guard);
    // Never freed: nodes refer to them, and to define an operator again is rare.
    static auto* const all = new std::deque<Recorded>();
    const Recorded& recorded = all->emplace_back(std::move(written));
    const auto [found, fresh] = entries().try_emplace(recorded.op);
    Entry& entry = found->second;
    entry.recorded.store(&recorded, std::memory_order_release);
    if (!fresh) return;
    const std::string& op = entry.name = recorded.op;
    const auto colons = op.find("::");
    // Not the key of all of them: there Python stands, for processes without this library.
    auto* const library =
        new torch::Library(torch::Library::IMPL, op.substr(0, colons), std::nullopt, __FILE__, __LINE__);
    for (const DispatchKey key : own_keys()) {
        library->impl(
            op.substr(colons + 2).c_str(),
            torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Recorder>(entry))));
    }
}

void forget(const std::string& op) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto found = entries().find(op);
    if (found != entries().end()) found->second.recorded.store(nullptr, std::memory_order_release);
}

bool record_directly(const Recorded& recorded, DispatchKeySet keys, Stack* stack,
                     c10::function_ref<bool(const OperatorHandle&)> serve) {
    if (recorded.by_reference || recorded.written || !recorded.updated.empty()) return false;
    Recorder::record(recorded, stack, [&] {
        if (!serve(*recorded.form)) recorded.form->redispatchBoxed(keys, stack);
    });
    return true;
}

const std::atomic<const Recorded*>* recorded_of(const std::string& op) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto found = entries().find(op);
    return found == entries().end() ? nullptr : &found->second.recorded;
}

namespace {

OPWRIGHT_OPERATORS(m) {
    m.def("record(str[] recorded) -> ()", [](std::vector<std::string> words) { record(read<Recorded>(words)); });
    m.def("forget(str op) -> ()", [](std::string op) { forget(op); });
    m.def("ask(str op) -> ()");
    m.def("meet(str op, Tensor[] given) -> bool");
    m.def("introduce(int kind) -> ()", [](int64_t kind) { introduced.store(reinterpret_cast<const void*>(kind)); });
}

}  // namespace
}  // namespace opwright
