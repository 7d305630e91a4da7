// Routes an operator's calls on one device: inside a kernel's domain to the kernel, outside it to the reference.
//
// It stands at the operator's backend key, below autograd, so that every caller passes it: Python, torch.ops, C++,
// compiled graphs, inference mode. It is generic over schemas: arguments are read off the stack.

#include "router.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "choose.h"
#include "once.h"
#include "overlap.h"
#include "straight.h"
#include "ways.h"

namespace opwright {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// What Python told, and how its kernels are called.
struct Installed : Routing {
    explicit Installed(Routing routing) : Routing(std::move(routing)) {
        for (const Route& route : routes) straight.emplace_back(*route.kernel);
    }
    std::vector<Straight> straight;  // for each route
};

class Router final : public c10::OperatorKernel {
  public:
    Router(DispatchKey device, const Installed& routing)
        : device_(device),
          routing_(&routing),
          writes_(find(routing.op).schema().is_mutable()),
          talks_(find(routing.op).schema().argumentIndexWithName("group").has_value()) {}

    const Installed& now() const { return *routing_.load(std::memory_order_acquire); }
    void swap(const Installed& routing) { routing_.store(&routing, std::memory_order_release); }

    // Runs the kernel that takes a call, of an operator that writes to nothing; whether there is one.
    bool serve(size_t count, Stack* stack) const {
        if (writes_) return false;
        const Installed& routing = now();
        for (size_t i = 0; i < routing.routes.size(); ++i) {
            if (!takes(routing.routes[i], torch::jit::last(*stack, count))) continue;
            run(routing, i, stack->size() - count, stack);
            return true;
        }
        return false;
    }

    void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
        const Installed& routing = now();
        const size_t count = op.schema().arguments().size();
        const size_t base = stack->size() - count;
        for (size_t i = 0; i < routing.routes.size(); ++i) {
            if (!takes(routing.routes[i], torch::jit::last(*stack, count))) continue;
            const auto written = written_by(op, base, *stack);
            if (!may_write(written, torch::jit::last(*stack, count))) break;
            run(routing, i, base, stack);
            // A kernel writes raw memory and counts nothing; autograd must notice.
            for (const at::Tensor& t : written) {
                if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
            }
            return;
        }
        if (routing.reference == nowhere) refuse(op, routing, torch::jit::last(*stack, count));
        run_in_python(routing.reference, count, stack);
    }

  private:
    // Where there is no Python, there is no reference.
    [[noreturn]] static void refuse(const OperatorHandle& op, const Routing& routing, at::ArrayRef<IValue> values) {
        std::string all, last;
        for (const Route& route : routing.routes) {
            const std::string why = takes(route, values) ? "it would write to memory that its arguments share"
                                                         : refusal(route, op.schema(), values);
            // What stands in the way of several kernels is said once.
            all += why == last ? ", another takes "
                               : (all.empty() ? ": " : "; ") + why + "; its kernel for " + routing.device + " takes ";
            all += route.says;
            last = why;
        }
        TORCH_CHECK_NOT_IMPLEMENTED(false, routing.op, all, ". All else its reference takes, which is in Python");
    }

    void run(const Installed& routing, size_t route, size_t base, Stack* stack) const {
        try {
            if (routing.straight[route].run(base, stack)) return;
        } catch (const std::exception& e) {
            refuse_memory(e);
            if (may_ask(routing, e)) run_in_python(who_knows(routing, e), stack->size() - base, stack);
            name_it(routing, e);
            throw;
        }
        run_boxed(routing, routing.routes[route], base, stack);
    }

    // A domain cannot tell everything that the reference rejects, numbers above all. Where a kernel throws, the
    // reference says what is wrong, without computing; where it sees nothing wrong, the kernel's own word stands. Half
    // of what it writes may be done; and after an error of CUDA's the reference would see that alone.
    bool may_ask(const Routing& routing, const std::exception& e) const {
        const auto says = [&](const char* text) { return std::strstr(e.what(), text) != nullptr; };
        return !writes_ && routing.rejecting != nowhere && !says("(cudaError") && !says("is there memory for it?");
    }

    // Before torch 2.13 a kernel learns of an operator of PyTorch's that raised nothing but that it did, in call.h's
    // words: "aten::mm failed". The reference, which calls it too, meets what it met, mostly a lack of memory. What it
    // computes is not used, so that no kernel is thought right for it. One that talks to others is not asked: they
    // would not answer.
    int64_t who_knows(const Routing& routing, const std::exception& e) const {
        const auto* const error = dynamic_cast<const c10::Error*>(&e);
        const std::string said = error != nullptr ? error->what_without_backtrace() : e.what();
        const bool bare = said.rfind("aten::", 0) == 0 && said.find(" failed") == said.find(' ') &&
                          said.find(' ') + std::strlen(" failed") == said.size();
        return bare && !talks_ && routing.reference != nowhere ? routing.reference : routing.rejecting;
    }

    // A GPU without memory is no mistake in the call, of which the reference knew better words: it would want memory
    // too, or a fake tensor for each of its steps. As PyTorch's own error, which training loops catch.
    static void refuse_memory(const std::exception& e) {
        const auto* const error = dynamic_cast<const c10::Error*>(&e);
        const std::string said = error != nullptr ? error->what_without_backtrace() : e.what();
        if (said.find("CUDA out of memory") != said.npos) TORCH_CHECK_WITH(OutOfMemoryError, false, said);
    }

    // In a program, whose stack traces nobody sees, an error from inside a kernel says whose it is.
    static void name_it(const Routing& routing, const std::exception& e) {
        if (routing.rejecting != nowhere || std::strstr(e.what(), "(cudaError") != nullptr) return;
        const auto* const error = dynamic_cast<const c10::Error*>(&e);
        TORCH_CHECK(false, routing.op, ": ", error != nullptr ? error->what_without_backtrace() : e.what());
    }

    void run_boxed(const Routing& routing, const Route& route, size_t base, Stack* stack) const {
        c10::SmallVector<IValue, 8> given;
        if (!writes_ && routing.rejecting != nowhere)
            given.append(stack->begin() + static_cast<std::ptrdiff_t>(base), stack->end());
        for (const size_t i : route.numbers) {
            IValue& value = (*stack)[base + i];
            if (value.isList()) {
                c10::List<double> numbers;
                for (const IValue& each : value.toListRef()) numbers.push_back(each.toScalar().toDouble());
                value = numbers;
            } else if (!value.isDouble() && !value.isNone()) {
                value = value.toScalar().toDouble();
            }
        }
        for (size_t i = base; i < stack->size(); ++i) {
            IValue& value = (*stack)[i];
            // In C++, one that may be absent comes undefined as well.
            if (value.isTensor() && !value.toTensor().defined()) value = IValue();
            // The stable ABI takes the tensors out of a list, which is the caller's.
            if (value.isTensorList()) value = value.toTensorList().copy();
        }
        try {
            route.kernel->redispatchBoxed(DispatchKeySet(device_), stack);
        } catch (const std::exception& e) {
            refuse_memory(e);
            if (!may_ask(routing, e)) {
                name_it(routing, e);
                throw;
            }
            stack->resize(base);
            stack->insert(stack->end(), given.begin(), given.end());
            run_in_python(who_knows(routing, e), given.size(), stack);
            throw;
        }
    }

    c10::SmallVector<at::Tensor, 1> written_by(const OperatorHandle& op, size_t base, const Stack& stack) const {
        c10::SmallVector<at::Tensor, 1> written;
        if (!writes_) return written;
        for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
            const auto* const alias = op.schema().arguments()[i].alias_info();
            const IValue& value = stack[base + i];
            if (alias == nullptr || !alias->isWrite() || value.isNone()) continue;
            const auto found = value.isTensor() ? std::vector<at::Tensor>{value.toTensor()} : value.toTensorVector();
            for (const at::Tensor& t : found) {
                if (t.defined()) written.push_back(t);
            }
        }
        return written;
    }

    // Whether a kernel may write to these, as writing.py has it. It could read what it has written where an element of
    // one argument is one of another as well, and PyTorch's own operators refuse a tensor whose elements share memory,
    // and one of inference mode outside it: what the reference makes of that is what counts.
    static bool may_write(at::ArrayRef<at::Tensor> written, at::ArrayRef<IValue> values) {
        for (const at::Tensor& t : written) {
            if (t.is_inference() && !c10::InferenceMode::is_enabled()) return false;
            if (at::has_internal_overlap(t) == at::MemOverlap::Yes) return false;
            bool itself = false;  // was met among the arguments
            const auto apart = [&](const at::Tensor& other) {
                if (!itself && other.is_same(t)) return itself = true;
                return !other.defined() || !may_share(t, other);
            };
            for (const IValue& value : values) {
                if (value.isTensor() && !apart(value.toTensor())) return false;
                if (!value.isTensorList()) continue;
                for (const at::Tensor& each : value.toTensorVector()) {
                    if (!apart(each)) return false;
                }
            }
        }
        return true;
    }

    DispatchKey device_;
    std::atomic<const Installed*> routing_;
    const bool writes_;
    const bool talks_;  // to other processes, of a group
};

std::mutex guard;
std::map<std::string, Router*> routers;                      // owned by the dispatcher, which never lets go
std::vector<std::unique_ptr<torch::Library>> registrations;  // never destroyed: a kernel may be running

// Never freed: calls may be inside, and to define an operator again is rare.
const Installed& keep(Routing routing) {
    static auto* const all = new std::deque<Installed>();
    return all->emplace_back(std::move(routing));
}

}  // namespace

void install(Routing given) {
    const std::lock_guard<std::mutex> lock(guard);
    const Installed& routing = keep(std::move(given));
    const std::string name = routing.op + " " + routing.device;
    if (const auto known = routers.find(name); known != routers.end()) {
        known->second->swap(routing);
        return;
    }
    const DispatchKey key = c10::parseDispatchKey(routing.device);
    auto router = std::make_unique<Router>(key, routing);
    Router* const kept = router.get();
    const auto colons = routing.op.find("::");
    auto library =
        std::make_unique<torch::Library>(torch::Library::IMPL, routing.op.substr(0, colons), key, __FILE__, __LINE__);
    library->impl(routing.op.substr(colons + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(router)));
    registrations.push_back(std::move(library));
    routers.emplace(name, kept);
}

void unroute(const std::string& op, std::optional<int64_t> reference, std::optional<int64_t> rejecting) {
    const std::lock_guard<std::mutex> lock(guard);
    for (const auto& [name, router] : routers) {
        if (name.substr(0, name.find(' ')) != op) continue;
        Routing routing = router->now();
        routing.routes.clear();
        routing.reference = reference.value_or(routing.reference);
        routing.rejecting = rejecting.value_or(routing.rejecting);
        router->swap(keep(std::move(routing)));
    }
}

Serve server_of(const std::string& op, const char* device) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto found = routers.find(op + " " + device);
    if (found == routers.end()) return {};
    return [router = found->second](size_t count, Stack* stack) { return router->serve(count, stack); };
}

namespace {

OPWRIGHT_OPERATORS(m) {
    m.def("install(str[] routing) -> ()", [](std::vector<std::string> words) { install(read<Routing>(words)); });
    m.def("unroute(str op) -> ()", [](std::string op) { unroute(op); });
}

}  // namespace
}  // namespace opwright
