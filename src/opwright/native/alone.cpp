// Operators in a process where no Python has defined them: a library brings along, as text, what Python would have
// said of them. What only a reference could do is an error then. Python may come later, and takes them over.

#include <ATen/Context.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>

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
        std::set<std::string> kinds;
        const auto look = [&](const at::Tensor& t) {
            if (!t.defined()) return;
            std::ostringstream kind;
            if (t.layout() != at::kStrided) kind << t.layout() << " ";
            kind << "tensors on " << c10::DeviceTypeName(t.device().type(), /*lower_case=*/true);
            kinds.insert(kind.str());
        };
        for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
            if (value.isTensor()) look(value.toTensor());
            if (!value.isTensorList()) continue;
            for (const at::Tensor& t : value.toTensorVector()) look(t);
        }
        std::string all;
        for (const std::string& kind : kinds) all += (all.empty() ? "" : " with ") + kind;
        TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), ": it has no kernel for ",
                                    all.empty() ? "a call without tensors" : all,
                                    ", and its reference, which runs everywhere, is in Python");
    }
};

// What was loaded, by name. Never freed: calls may be under way when the process ends.
struct Loaded {
    std::vector<std::unique_ptr<torch::Library>> libraries;
    std::map<std::string, std::unique_ptr<torch::Library>> refusing;  // the operators that Python has not taken over
    std::map<std::string, std::string> made;                          // of which sources their kernels are
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

c10::FunctionSchema parsed(const std::string& op, const std::string& schema) {
    return torch::jit::parseSchema(op.substr(0, op.find("::")) + "::" + schema);
}

// Whether Python has defined an operator, and it is opwright's: no other has a kernel of its own for torch.func.
// Nothing else can be asked, since Python may have called none yet, and loaded none of this.
bool is_of_python(const OperatorHandle& op) {
    return op.hasKernelForDispatchKey(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// Refuses another operator under the same name.
void compare(const std::string& op, const c10::FunctionSchema& wanted, bool is_public) {
    const auto known = c10::Dispatcher::singleton().findSchema(wanted.operator_name());
    if (!known) return;
    TORCH_CHECK(known->schema() == wanted, op, " is in this process already, with another schema: ", known->schema(),
                " there, ", wanted, " here; build both from the same source");
    TORCH_CHECK(!is_public || loaded().refusing.count(op) != 0 || is_of_python(*known), op,
                " is in this process already, and opwright did not bring it; give one of them another namespace");
}

// Defines an operator, unless the process has it: whether it was defined.
bool define(const std::string& op, const std::string& schema, const std::vector<at::Tag>& tags) {
    if (c10::Dispatcher::singleton().findSchema(parsed(op, schema).operator_name())) return false;
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

// What a library says of its operators is a text of messages. Each but the first and the last begins with its verb and
// the operator that it is about:
//     wire    RECORDS           the records of wire.h as the library knows them
//     define  OP SCHEMA TAG…    an operator
//     made    OP DIGEST         of the sources that its kernels are built from
//     hidden  OP SCHEMA         the overload that a kernel is bound to
//     install OP Routing …      its kernels on a device
//     record  OP Recorded …     its gradient
//     end
void refuse_other_text(const std::vector<Words>& messages, const std::string& records) {
    TORCH_CHECK(!messages.empty() && messages[0].size() == 2 && messages[0][0] == "wire",
                "what it says of its operators cannot be read; another version of opwright wrote it");
    TORCH_CHECK(messages[0][1] == records,
                "another version of opwright is in this process than the one that wrote it; build both with the same");
    TORCH_CHECK(messages.size() > 1 && messages.back() == Words{"end"},
                "what it says of its operators is cut short; build or fetch it again");
    static const std::map<std::string, size_t> verbs{
        {"define", 3}, {"made", 3}, {"hidden", 3}, {"install", 3}, {"record", 3}};
    for (size_t i = 1; i + 1 < messages.size(); ++i) {
        const auto verb = verbs.find(messages[i][0]);
        TORCH_CHECK(verb != verbs.end() && messages[i].size() >= verb->second, "it says '", messages[i][0],
                    "' of an operator, which cannot be read; another version of opwright wrote it");
    }
}

// Installs kernels, which must be there: a library may have lost those that it says it has.
void install_kernels(Routing routing) {
    const bool here = routing.device != "CUDA" || at::globalContext().hasCUDA();
    for (const Route& route : routing.routes) {
        TORCH_CHECK(!here || route.kernel->hasKernelForDispatchKey(c10::parseDispatchKey(routing.device)), routing.op,
                    ": no library in this process binds ", toString(route.kernel->operator_name()), ", its kernel for ",
                    routing.device, "; build the library again");
    }
    install(std::move(routing));
}

// Calls a function for each message, and gathers what stands in the way.
template <class F>
std::string for_each_message(const std::vector<Words>& messages, const F& take) {
    std::string trouble;
    for (size_t i = 1; i + 1 < messages.size(); ++i) {
        std::string why;
        try {
            take(messages[i][0], messages[i][1], messages[i]);
        } catch (const c10::Error& e) {
            why = e.what_without_backtrace();
        } catch (const std::exception& e) {
            why = e.what();
        }
        if (why.empty()) continue;
        const std::string& op = messages[i][1];
        trouble += (trouble.empty() ? "" : "\n") + (why.rfind(op, 0) == 0 ? "" : op + ": ") + why;
    }
    return trouble;
}

// Takes such a text; returns what stands in the way, or nothing. Nothing is defined unless all of it can be.
std::string load(const std::string& text) {
    const std::lock_guard<std::mutex> lock(guard);
    const std::vector<Words> messages = split(text);
    try {
        refuse_other_text(messages, described());
    } catch (const c10::Error& e) {
        return e.what_without_backtrace();
    }
    std::set<std::string> said;
    const std::string unfit = for_each_message(messages, [&](const std::string& verb, const std::string& op,
                                                             const Words& words) {
        if (verb == "define") {
            compare(op, parsed(op, words[2]), true);
            said.insert(op);
        } else if (verb == "made") {
            const auto known = loaded().made.find(op);
            TORCH_CHECK(loaded().refusing.count(op) == 0 || known == loaded().made.end() || known->second == words[2],
                        op, " is in this process already, with kernels of other sources; load one of the two");
        } else if (verb == "hidden") {
            const auto schema = parsed(op, words[2]);
            TORCH_CHECK(said.count(schema.name()) != 0, op, ": its operator is not defined before it");
            compare(op, schema, false);
        }
    });
    if (!unfit.empty()) return unfit;
    std::set<std::string> ours;
    return for_each_message(messages, [&](const std::string& verb, const std::string& op, const Words& words) {
        const Words record_words(words.begin() + 2, words.end());
        if (verb == "define") {
            if (introduce(op, words[2], tags_of(words, 3))) ours.insert(op);
        } else if (verb == "made") {
            if (ours.count(op) != 0) loaded().made[op] = words[2];
        } else if (verb == "hidden") {
            define(op, words[2], {});
        } else if (verb == "install") {
            // Of an operator that another library brought along, what is new: a device that it has no kernels for.
            Routing routing = read<Routing>(record_words);
            const bool more = loaded().refusing.count(op) != 0 && !server_of(op, routing.device.c_str());
            if (ours.count(op) != 0 || more) install_kernels(std::move(routing));
        } else if (ours.count(op) != 0) {
            record(read<Recorded>(record_words));
        }
    });
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
