// Routes an operator's calls on one device: inside a kernel's domain to the kernel, outside it to the reference.
//
// It stands at the operator's backend key, below autograd, so that every caller passes it: Python, torch.ops, C++,
// compiled graphs, inference mode. It is generic over schemas: arguments are read off the stack.

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ladder.h"

namespace opwright {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

enum class Layout : int64_t { any, contiguous, channels_last };

// One dimension of a size pattern: a fixed size; a name (its number) with a divisor and a factor; a sum of two names.
struct Dim {
    bool fixed;
    int64_t value;
    int64_t divisor;
    int64_t factor;
    int64_t other;  // -1: no sum
};

struct Argument {
    bool wide = false;    // may be float beside half and bfloat16
    uint64_t dtypes = 0;  // of its own, a bit for each; 0: those of all
    int64_t least_rank = 0;
    int64_t most_rank = INT64_MAX;
    bool has_pattern = false;
    bool leading = false;  // the pattern begins with `...`
    std::vector<Dim> dims;
};

struct Route {
    OperatorHandle kernel;
    uint64_t dtypes;  // a bit for each; 0: any
    bool mixed;
    bool broadcast;
    Layout layout;
    std::vector<Argument> arguments;
    std::vector<size_t> scalars;
    int64_t names;

    // What one tensor of a call is; the others are held against it.
    struct First {
        bool seen = false;
        at::ScalarType dtype = at::ScalarType::Undefined;
        c10::Device device = at::kCPU;
    };

    static bool among(uint64_t dtypes, at::ScalarType dtype) {
        const auto bit = static_cast<uint64_t>(dtype);
        return dtypes == 0 || (bit < 64 && (dtypes >> bit & 1));
    }

    // The first tensor whose dtype the others must share; where there is none, the first of all.
    First find_first(at::ArrayRef<IValue> values) const {
        First first;
        const auto look = [&](const at::Tensor& t, bool plain) {
            if (t.defined() && (plain || !first.seen)) first = {plain, t.scalar_type(), t.device()};
        };
        for (size_t i = 0; i < values.size() && !first.seen; ++i) {
            const bool plain = !arguments[i].wide && arguments[i].dtypes == 0;
            if (values[i].isTensor()) {
                look(values[i].toTensor(), plain);
            } else if (values[i].isTensorList() && !values[i].toTensorList().empty()) {
                look(values[i].toTensorList().get(0), plain);
            }
        }
        return first;
    }

    bool takes_tensor(const at::Tensor& t, const Argument& argument, const First& first) const {
        if (!t.defined()) return true;
        if (t.layout() != at::kStrided || t.dim() > 64 || t.device() != first.device) return false;
        if (t.dim() < argument.least_rank || t.dim() > argument.most_rank) return false;
        const at::ScalarType dtype = t.scalar_type();
        if (argument.dtypes != 0) {
            if (!among(argument.dtypes, dtype)) return false;
        } else if (!among(dtypes, dtype)) {
            return false;
        } else if (!mixed && first.seen && dtype != first.dtype) {
            const bool half = first.dtype == at::kHalf || first.dtype == at::kBFloat16;
            if (!argument.wide || dtype != at::kFloat || !half) return false;
        }
        if (layout == Layout::contiguous) return t.is_contiguous();
        if (layout == Layout::channels_last) return t.dim() == 4 && t.is_contiguous(at::MemoryFormat::ChannelsLast);
        return true;
    }

    // Whether the tensors broadcast together, those of lists too.
    static bool broadcasts(at::ArrayRef<IValue> values) {
        c10::SmallVector<int64_t, 8> known;  // from the last dimension to the first
        const auto joins = [&](const at::Tensor& t) {
            if (!t.defined()) return true;
            const auto sizes = t.sizes();
            if (sizes.size() > known.size()) known.resize(sizes.size(), 1);
            for (size_t i = 0; i < sizes.size(); ++i) {
                const int64_t size = sizes[sizes.size() - 1 - i];
                if (size == 1) continue;
                if (known[i] != 1 && known[i] != size) return false;
                known[i] = size;
            }
            return true;
        };
        for (const IValue& value : values) {
            if (value.isTensor() && !joins(value.toTensor())) return false;
            if (!value.isTensorList()) continue;
            for (const at::Tensor& t : value.toTensorVector()) {
                if (!joins(t)) return false;
            }
        }
        return true;
    }

    static bool fits(const Argument& argument, const at::Tensor& t, std::vector<int64_t>& bound) {
        const int64_t rank = t.dim();
        if (!argument.has_pattern) return true;
        const auto count = static_cast<int64_t>(argument.dims.size());
        if (argument.leading ? rank < count : rank != count) return false;
        for (int64_t i = 0; i < count; ++i) {
            const Dim& dim = argument.dims[i];
            const int64_t size = t.size(rank - count + i);
            if (dim.fixed) {
                if (size != dim.value) return false;
                continue;
            }
            if (dim.divisor > 1 && size % dim.divisor != 0) return false;
            if (dim.value < 0 || dim.other >= 0) continue;  // `_` stands for any size each time; sums come later
            if (size % dim.factor != 0) return false;
            if (bound[dim.value] < 0) bound[dim.value] = size / dim.factor;
            if (bound[dim.value] != size / dim.factor) return false;
        }
        return true;
    }

    // The sums of a pattern, when all that they add up is known.
    static bool adds_up(const Argument& argument, const at::Tensor& t, const std::vector<int64_t>& bound) {
        const auto count = static_cast<int64_t>(argument.dims.size());
        for (int64_t i = 0; i < count; ++i) {
            const Dim& dim = argument.dims[i];
            if (dim.other < 0) continue;
            const int64_t a = bound[dim.value], b = bound[dim.other];
            if (a < 0 || b < 0 || t.size(t.dim() - count + i) != a + b) return false;
        }
        return true;
    }

    bool takes(at::ArrayRef<IValue> values) const {
        for (const size_t i : required) {
            // None where a tensor must be comes as an undefined one, which has no memory to read.
            if (values[i].isTensor() && !values[i].toTensor().defined()) return false;
        }
        const First first = find_first(values);
        for (size_t i = 0; i < values.size(); ++i) {
            if (values[i].isTensor()) {
                if (!takes_tensor(values[i].toTensor(), arguments[i], first)) return false;
            } else if (values[i].isTensorList()) {
                for (const at::Tensor& t : values[i].toTensorVector()) {
                    if (!takes_tensor(t, arguments[i], first)) return false;
                }
            }
        }
        const bool whole = first.seen && !at::isFloatingType(first.dtype) && !at::isComplexType(first.dtype);
        // A kernel takes a number as a double; one that would change the result's type is the reference's, and a
        // whole one that a double cannot hold.
        const auto fits_double = [&](const IValue& x) {
            constexpr int64_t exact = int64_t{1} << 53;
            return !x.isComplexDouble() && !(whole && x.isDouble()) &&
                   !(x.isInt() && (x.toInt() > exact || x.toInt() < -exact));
        };
        for (const size_t i : scalars) {
            const IValue& value = values[i];
            if (!value.isList() && !fits_double(value)) return false;
            if (!value.isList()) continue;
            for (const IValue& each : value.toListRef()) {
                if (!fits_double(each)) return false;
            }
        }
        if (broadcast && !broadcasts(values)) return false;
        if (!patterned) return true;
        std::vector<int64_t> bound(names, -1);
        for (size_t i = 0; i < arguments.size(); ++i) {
            if (values[i].isTensor() && values[i].toTensor().defined() &&
                !fits(arguments[i], values[i].toTensor(), bound)) {
                return false;
            }
        }
        for (size_t i = 0; summed && i < arguments.size(); ++i) {
            if (values[i].isTensor() && values[i].toTensor().defined() &&
                !adds_up(arguments[i], values[i].toTensor(), bound)) {
                return false;
            }
        }
        return true;
    }

    std::vector<size_t> required;  // tensors that must be given
    bool patterned = false;        // some argument has a pattern to look at
    bool summed = false;           // some pattern has a sum
};

using Routes = std::vector<Route>;

class Router final : public c10::OperatorKernel {
  public:
    Router(OperatorHandle reference, OperatorHandle rejecting, DispatchKey device, std::shared_ptr<const Routes> routes)
        : reference_(std::move(reference)),
          rejecting_(std::move(rejecting)),
          device_(device),
          routes_(std::move(routes)),
          writes_(reference_.schema().is_mutable()) {}

    void swap(std::shared_ptr<const Routes> routes) { std::atomic_store(&routes_, std::move(routes)); }

    void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
        const auto routes = std::atomic_load(&routes_);
        const size_t count = op.schema().arguments().size();
        const size_t base = stack->size() - count;
        for (const Route& route : *routes) {
            if (!route.takes(torch::jit::last(*stack, count))) continue;
            const auto written = written_by(op, base, *stack);
            if (!may_write(written, torch::jit::last(*stack, count))) break;
            run(route, base, stack);
            // A kernel writes raw memory and counts nothing; autograd must notice.
            for (const at::Tensor& t : written) {
                if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
            }
            return;
        }
        reference_.callBoxed(stack);
    }

  private:
    // A domain cannot tell everything that the reference rejects, numbers above all. Where a kernel throws, the
    // reference says what is wrong, without computing; where it sees nothing wrong, the kernel's own word stands.
    void run(const Route& route, size_t base, Stack* stack) const {
        c10::SmallVector<IValue, 8> given;
        if (!writes_) given.append(stack->begin() + static_cast<std::ptrdiff_t>(base), stack->end());
        for (const size_t i : route.scalars) {
            IValue& value = (*stack)[base + i];
            if (value.isList()) {
                c10::List<double> numbers;
                for (const IValue& each : value.toListRef()) numbers.push_back(each.toScalar().toDouble());
                value = numbers;
            } else if (!value.isDouble() && !value.isNone()) {
                value = value.toScalar().toDouble();
            }
        }
        try {
            route.kernel.redispatchBoxed(DispatchKeySet(device_), stack);
        } catch (const std::exception& e) {
            // Half of what it writes may be done; and after an error of CUDA's the reference would see that alone.
            if (writes_ || std::strstr(e.what(), "(cudaError") != nullptr) throw;
            stack->resize(base);
            stack->insert(stack->end(), given.begin(), given.end());
            rejecting_.callBoxed(stack);
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

    // Whether a kernel that knows nothing of this may write to these. PyTorch's own operators refuse a tensor whose
    // elements share memory, or that shares a part of another's, and one of inference mode outside it: what the
    // reference makes of that is what counts.
    static bool may_write(at::ArrayRef<at::Tensor> written, at::ArrayRef<IValue> values) {
        for (const at::Tensor& t : written) {
            if (t.is_inference() && !c10::InferenceMode::is_enabled()) return false;
            if (at::has_internal_overlap(t) == at::MemOverlap::Yes) return false;
            const auto apart = [&](const at::Tensor& other) {
                return !other.defined() || at::get_overlap_status(t, other) != at::MemOverlapStatus::Partial;
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

    OperatorHandle reference_;
    OperatorHandle rejecting_;  // raises what the reference would, and computes nothing
    DispatchKey device_;
    std::shared_ptr<const Routes> routes_;
    const bool writes_;
};

std::mutex guard;
std::map<std::string, Router*> routers;                      // owned by the dispatcher, which never lets go
std::vector<std::unique_ptr<torch::Library>> registrations;  // never destroyed: a kernel may be running
std::map<std::string, std::shared_ptr<Routes>> pending;

Route read_route(const std::string& kernel, const std::vector<at::Tensor>& examples, const std::vector<int64_t>& spec) {
    Reader reader(spec);
    const int64_t shared = reader.next();
    Route route{find(kernel), 0,  reader.next() != 0, reader.next() != 0, static_cast<Layout>(reader.next()),
                {},           {}, reader.next()};
    auto example = examples.begin();
    const auto bits = [&](int64_t count) {
        uint64_t found = 0;
        for (; count > 0; --count, ++example) found |= uint64_t{1} << static_cast<int>(example->scalar_type());
        return found;
    };
    route.dtypes = bits(shared);
    const int64_t count = reader.next();
    for (int64_t i = 0; i < count; ++i) {
        Argument argument;
        argument.wide = reader.next() != 0;
        argument.dtypes = bits(reader.next());
        if (reader.next() != 0) route.scalars.push_back(i);
        argument.least_rank = reader.next();
        argument.most_rank = reader.next();
        const int64_t dims = reader.next();  // -1: no pattern
        argument.has_pattern = dims >= 0;
        argument.leading = reader.next() != 0;
        for (int64_t d = 0; d < dims; ++d) {
            const bool fixed = reader.next() != 0;
            const int64_t value = reader.next();
            const int64_t divisor = reader.next(), factor = reader.next();
            argument.dims.push_back({fixed, value, divisor, factor, reader.next()});
            route.summed = route.summed || argument.dims.back().other >= 0;
        }
        route.patterned = route.patterned || argument.has_pattern;
        route.arguments.push_back(std::move(argument));
    }
    const auto& declared = route.kernel.schema().arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
        if (declared[i].type()->kind() == c10::TypeKind::TensorType) route.required.push_back(i);
    }
    return route;
}

// Adds a route for the next `install` of this operator on this device.
void add_route(const std::string& op, const std::string& device, const std::string& kernel,
               const std::vector<at::Tensor>& examples, const std::vector<int64_t>& spec) {
    const std::lock_guard<std::mutex> lock(guard);
    auto& routes = pending[op + " " + device];
    if (!routes) routes = std::make_shared<Routes>();
    routes->push_back(read_route(kernel, examples, spec));
}

// Puts the routes added since into force, in place of those before.
void install(const std::string& op, const std::string& device, const std::string& reference,
             const std::string& rejecting) {
    const std::lock_guard<std::mutex> lock(guard);
    const std::string name = op + " " + device;
    const auto found = pending.find(name);
    TORCH_CHECK(found != pending.end(), "opwright: no route was added for ", name);
    std::shared_ptr<const Routes> routes = std::move(found->second);
    pending.erase(found);
    if (const auto known = routers.find(name); known != routers.end()) {
        known->second->swap(std::move(routes));
        return;
    }
    const DispatchKey key = c10::parseDispatchKey(device);
    auto router = std::make_unique<Router>(find(reference), find(rejecting), key, std::move(routes));
    Router* const kept = router.get();
    const auto colons = op.find("::");
    auto library =
        std::make_unique<torch::Library>(torch::Library::IMPL, op.substr(0, colons), key, __FILE__, __LINE__);
    library->impl(op.substr(colons + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(router)));
    registrations.push_back(std::move(library));
    routers.emplace(name, kept);
}

// Takes all routes of an operator away: what calls it comes back to Python.
void unroute(const std::string& op) {
    const std::lock_guard<std::mutex> lock(guard);
    for (const auto& [name, router] : routers) {
        if (name.substr(0, name.find(' ')) == op) router->swap(std::make_shared<const Routes>());
    }
}

TORCH_LIBRARY_FRAGMENT(opwright_native, m) {
    m.def("unroute(str op) -> ()", [](std::string op) { unroute(op); });
    m.def("add_route(str op, str device, str kernel, Tensor[] examples, int[] spec) -> ()",
          [](std::string op, std::string device, std::string kernel, std::vector<at::Tensor> examples,
             std::vector<int64_t> spec) { add_route(op, device, kernel, examples, spec); });
    m.def("install(str op, str device, str reference, str rejecting) -> ()",
          [](std::string op, std::string device, std::string reference, std::string rejecting) {
              install(op, device, reference, rejecting);
          });
}

}  // namespace

OperatorHandle find(const std::string& name) {
    const auto dot = name.find('.');
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                          dot == std::string::npos ? "" : name.c_str() + dot + 1);
}

}  // namespace opwright
