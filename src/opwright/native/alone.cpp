// Operators in a process where no Python has defined them: a library brings along, as text, what Python would have
// said of them. What only a reference could do is an error then. Python may come later, and takes them over.

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <map>
#include <memory>
#include <mutex>

#include "autograd.h"
#include "once.h"
#include "router.h"
#include "ways.h"

namespace opwright {
namespace {

using c10::DispatchKey;
using c10::OperatorHandle;
using Words = std::vector<std::string>;

// Takes the devices that no kernel is for.
class Refusing final : public c10::OperatorKernel {
  public:
    void operator()(const OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
        std::string device = "this device";
        for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
            if (!value.isTensor() || !value.toTensor().defined()) continue;
            device = c10::DeviceTypeName(value.toTensor().device().type(), /*lower_case=*/true);
            break;
        }
        TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), ": it has no kernel for ", device,
                                    ", and its reference, which runs everywhere, is in Python");
    }
};

// What was loaded, by name. Never freed: calls may be under way when the process ends.
struct Loaded {
    std::vector<std::unique_ptr<torch::Library>> libraries;
    std::map<std::string, std::unique_ptr<torch::Library>> refusing;  // the operators that Python has not taken over
};

std::mutex guard;
Loaded& loaded() {
    static auto* const all = new Loaded();
    return *all;
}

std::unique_ptr<torch::Library> open(torch::Library::Kind kind, const std::string& op) {
    return std::make_unique<torch::Library>(kind, op.substr(0, op.find("::")), std::nullopt, __FILE__, __LINE__);
}

std::vector<at::Tag> tags_of(const Words& words, size_t from) {
    static const std::map<std::string, at::Tag> known{
#define OPWRIGHT_TAG(name) {#name, at::Tag::name}
        OPWRIGHT_TAG(core),
        OPWRIGHT_TAG(cudagraph_unsafe),
        OPWRIGHT_TAG(data_dependent_output),
        OPWRIGHT_TAG(dynamic_output_shape),
        OPWRIGHT_TAG(flexible_layout),
        OPWRIGHT_TAG(generated),
        OPWRIGHT_TAG(inplace_view),
        OPWRIGHT_TAG(maybe_aliasing_or_mutating),
        OPWRIGHT_TAG(needs_contiguous_strides),
        OPWRIGHT_TAG(needs_exact_strides),
        OPWRIGHT_TAG(needs_fixed_stride_order),
        OPWRIGHT_TAG(nondeterministic_bitwise),
        OPWRIGHT_TAG(nondeterministic_seeded),
        OPWRIGHT_TAG(pointwise),
        OPWRIGHT_TAG(pt2_compliant_tag),
        OPWRIGHT_TAG(view_copy),
#undef OPWRIGHT_TAG
    };
    std::vector<at::Tag> tags;
    for (size_t i = from; i < words.size(); ++i) {
        if (const auto found = known.find(words[i]); found != known.end()) tags.push_back(found->second);
    }
    return tags;
}

// Defines an operator, unless the process has it: whether it was defined. Another schema under the same name is an
// error.
bool define(const std::string& op, const std::string& schema, const std::vector<at::Tag>& tags) {
    const std::string space = op.substr(0, op.find("::"));
    const auto wanted = torch::jit::parseSchema(space + "::" + schema);
    if (const auto known = c10::Dispatcher::singleton().findSchema(wanted.operator_name())) {
        TORCH_CHECK(known->schema() == wanted, op,
                    " is in this process already, with another schema: ", known->schema(), " there, ", wanted,
                    " here; build both from the same source");
        return false;
    }
    auto library = open(torch::Library::FRAGMENT, op);
    library->def(schema.c_str(), tags);
    loaded().libraries.push_back(std::move(library));
    return true;
}

// Defines an operator that others call, and what runs where it has no kernel.
bool introduce(const std::string& op, const std::string& schema, const std::vector<at::Tag>& tags) {
    if (!define(op, schema, tags)) return false;
    auto refusing = open(torch::Library::IMPL, op);
    refusing->impl(op.substr(op.find("::") + 2).c_str(),
                   torch::dispatch(DispatchKey::CompositeExplicitAutograd,
                                   torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refusing>())));
    loaded().refusing[op] = std::move(refusing);
    return true;
}

std::vector<Words> split(const std::string& text) {
    std::vector<Words> messages;
    Words words(1);
    for (const char c : text) {
        if (c == '\x1f') {
            words.emplace_back();
        } else if (c == '\x1e') {
            messages.push_back(std::move(words));
            words.assign(1, "");
        } else {
            words.back() += c;
        }
    }
    return messages;
}

// Takes what a library says of its operators; returns what stands in the way, or nothing. A message begins with its
// verb and the operator that it is about:
//     hidden  OP SCHEMA         the overload that a kernel is bound to
//     define  OP SCHEMA TAG…    an operator
//     install OP Routing …      its kernels on a device
//     record  OP Recorded …     its gradient
std::string load(const std::string& text) {
    const std::lock_guard<std::mutex> lock(guard);
    std::string trouble;
    std::map<std::string, bool> ours;
    for (Words& words : split(text)) {
        const std::string verb = words.at(0), op = words.at(1);
        const bool known = ours.count(op) != 0;
        try {
            if (verb == "hidden") {
                define(op, words.at(2), {});
            } else if (verb == "define") {
                ours[op] = introduce(op, words.at(2), tags_of(words, 3));
            } else if (known && ours[op]) {
                const Words record_words(words.begin() + 2, words.end());
                if (verb == "install") install(read<Routing>(record_words));
                if (verb == "record") record(read<Recorded>(record_words));
            }
        } catch (const c10::Error& e) {
            trouble += (trouble.empty() ? "" : "\n") + std::string(e.what_without_backtrace());
        } catch (const std::exception& e) {
            trouble += (trouble.empty() ? "" : "\n") + op + ": " + e.what();
        }
    }
    return trouble;
}

// Python has the operator now: it decides from here on. False: nobody has loaded it without Python.
bool adopt(const std::string& op, int64_t reference, int64_t rejecting) {
    const std::lock_guard<std::mutex> lock(guard);
    if (loaded().refusing.erase(op) == 0) return false;
    unroute(op, reference, rejecting);
    forget(op);
    return true;
}

bool is_alone(const std::string& op) {
    const std::lock_guard<std::mutex> lock(guard);
    return loaded().refusing.count(op) != 0;
}

OPWRIGHT_OPERATORS(m) {
    m.def("load(str text) -> str", [](const std::string& text) { return load(text); });
    m.def("is_alone(str op) -> bool", [](const std::string& op) { return is_alone(op); });
    m.def("adopt(str op, int reference, int rejecting) -> bool",
          [](const std::string& op, int64_t reference, int64_t rejecting) { return adopt(op, reference, rejecting); });
}

}  // namespace
}  // namespace opwright
