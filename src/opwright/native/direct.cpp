// Calls from C++ without the dispatcher, where it would find nothing but a kernel to run and a node to record.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <opwright/operators.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "autograd.h"
#include "router.h"

namespace opwright {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

class Direct {
  public:
    explicit Direct(const std::string& op)
        : op_(find(op)), cpu_(server_of(op, "CPU")), cuda_(server_of(op, "CUDA")), recorded_(recorded_of(op)) {}

    bool run(Stack* stack) const {
        if (at::hasCallbacks()) return false;  // a profiler wants to see it
        const size_t count = op_.schema().arguments().size();
        const auto arguments = torch::jit::last(*stack, count);
        DispatchKeySet keys;
        bool requiring = false;
        for (const IValue& value : arguments) {
            if (value.isTensor()) {
                const at::Tensor& t = value.toTensor();
                if (!t.defined()) continue;
                keys = keys | t.key_set();
                requiring = requiring || t.requires_grad();
                if (t._fw_grad(/*level=*/0).defined()) return false;
            } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
                return false;  // there may be tensors in it
            }
        }
        const auto local = c10::impl::tls_local_dispatch_key_set();
        keys = (keys | local.included_) - local.excluded_;
        const DispatchKeySet below =
            keys - c10::autograd_dispatch_keyset_with_ADInplaceOrView - DispatchKeySet(DispatchKey::BackendSelect);
        const bool on_cpu = below == DispatchKeySet(DispatchKey::CPU);
        const Serve& serve = on_cpu ? cpu_ : cuda_;
        if (!serve || (!on_cpu && below != DispatchKeySet(DispatchKey::CUDA))) return false;
        const bool records = requiring && at::GradMode::is_enabled() && keys.has_any(c10::autograd_dispatch_keyset);
        const Recorded* const recorded = recorded_ == nullptr ? nullptr : recorded_->load(std::memory_order_acquire);
        if (records && recorded == nullptr) return false;
        if (!records || !is_followed(*recorded, arguments)) {
            const at::AutoDispatchBelowAutograd guard;
            return serve(count, stack);
        }
        return record_directly(*recorded, below, stack,
                               [&](const c10::OperatorHandle& form) { return form == op_ && serve(count, stack); });
    }

  private:
    // Whether a tensor that requires a gradient is one whose gradient there is.
    static bool is_followed(const Recorded& recorded, at::ArrayRef<IValue> arguments) {
        return std::any_of(recorded.followed.begin(), recorded.followed.end(), [&](size_t i) {
            return arguments[i].isTensor() && arguments[i].toTensor().requires_grad();
        });
    }

    c10::OperatorHandle op_;
    Serve cpu_, cuda_;
    const std::atomic<const Recorded*>* recorded_;
};

const Direct* directly(const char* op) {
    static std::mutex guard;
    static auto* const known = new std::map<std::string, Direct>();
    const std::lock_guard<std::mutex> lock(guard);
    return &known->try_emplace(op, op).first->second;
}

bool run(const Direct* op, Stack* stack) { return op->run(stack); }

}  // namespace opwright
