#include "stand_in.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "once.h"
#include "wire.h"

namespace opwright {

namespace {

// Of what no wanted gradient reads, by its author's word, the values are not kept. A formula that reads them all the
// same must not find numbers there.
at::Tensor make_element(const Shape& shape, bool readable) {
    const bool number = at::isFloatingType(shape.dtype) || at::isComplexType(shape.dtype);
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    return readable && number ? at::full({}, nan, shape.options()) : at::empty({}, shape.options());
}

// Whether an element that is made now may outlive the call: a CUDA graph that is being captured would own it and fill
// it when it is replayed. Python can tell; a program without it fills one each time.
bool may_keep_element(const c10::Device& device) {
    if (device.is_cpu()) return true;
    static const c10::OperatorHandle python = find("opwright_native::is_capturing");
    if (!python.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) return false;
    torch::jit::Stack stack;
    python.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return !stack[0].toBool();
}

// The element that all stand-ins of a dtype on a device share: on a GPU to fill one is a launch, which a small backward
// has none to spare of. Other streams may come before it is filled, which only who must not look could see.
at::Tensor element_of(const Shape& shape) {
    static std::mutex guard;  // not held while Python is asked
    using Key = std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>;
    static auto* const known = new std::map<Key, at::Tensor>();  // outlives what may still be running at exit
    const Key key{shape.device.type(), shape.device.index(), shape.dtype};
    {
        const std::lock_guard<std::mutex> lock(guard);
        const auto found = known->find(key);
        if (found != known->end()) return found->second;
    }
    const c10::InferenceMode usual(false);  // whoever comes first, others may save what is made of it
    at::Tensor made = make_element(shape, true);
    if (!may_keep_element(shape.device)) return made;
    const std::lock_guard<std::mutex> lock(guard);
    return known->try_emplace(key, std::move(made)).first->second;
}

// Whether tensors are what they seem: no mode, transform or tracer makes others of them.
bool is_plain_call() {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    using c10::DispatchKey;
    const auto watching = c10::python_ks | c10::functorch_transforms_ks |
                          c10::DispatchKeySet({DispatchKey::Functionalize, DispatchKey::FuncTorchDynamicLayerFrontMode,
                                               DispatchKey::FuncTorchDynamicLayerBackMode});
    return !c10::impl::TorchDispatchModeTLS::any_modes_set() && !local.included_.has_any(watching);
}

}  // namespace

at::Tensor stand_in(const Shape& shape, bool declared) {
    const auto sizes = c10::asIntArrayRefSlowOpt(shape.sizes);
    if (!sizes || !(shape.device.is_cpu() || shape.device.is_cuda()) || !is_plain_call()) {
        return make_element(shape, !declared).expand_symint(shape.sizes);
    }
    // As expand has it, which costs a microsecond.
    const at::Tensor element = element_of(shape);
    auto made =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(element.storage()), element.key_set(), element.dtype());
    const c10::SmallVector<int64_t, 5> steps(sizes->size(), 0);
    made.unsafeGetTensorImpl()->set_sizes_and_strides(*sizes, steps);
    return made;
}

namespace {

OPWRIGHT_OPERATORS(m) { m.def("is_capturing() -> bool"); }

}  // namespace
}  // namespace opwright
