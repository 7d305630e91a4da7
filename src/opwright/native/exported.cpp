// The notes that exported programs hold of the operators in them (kit/dispatch/exported.py), where no Python reads
// them.

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <sstream>

#include "once.h"
#include "wire.h"

namespace opwright {
namespace {

constexpr const char* space = "opwright_exported";

void refuse(const std::string& op, const std::string& then, const std::string& now) {
    TORCH_CHECK(false, op, " is not what it was when this program was exported: ", then, " then, ", now,
                " now; export the program again, or load it with the package that it was exported with");
}

void hold_schema(const std::string& op, const std::string& schema) {
    std::ostringstream now;
    now << find(op).schema();
    if (now.str() != schema) refuse(op, schema, now.str());
}

std::string dtypes_of(const std::vector<at::Tensor>& tensors) {
    std::string spelled;
    for (const at::Tensor& t : tensors) {
        spelled += (spelled.empty() ? "" : ", ") + std::string(c10::getDtypeNames(t.scalar_type()).first);
    }
    return spelled;
}

void hold_dtypes(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& results, const std::string& op,
                 const std::string& dtypes) {
    const auto arrow = dtypes.find(" -> ");
    const std::string took = dtypes.substr(0, arrow), gave = dtypes.substr(arrow + 4);
    const bool cast = std::any_of(given.begin(), given.end(), [](const at::Tensor& t) {
        return at::autocast::is_autocast_enabled(t.device().type());
    });
    if (!cast && dtypes_of(given) == took && dtypes_of(results) != gave)
        refuse(op, "results of " + gave, "of " + dtypes_of(results));
}

// Where Python has defined them, it holds them.
const std::unique_ptr<torch::Library> notes = [] {
    if (!is_first() || c10::Dispatcher::singleton().findSchema({"opwright_exported::schema", ""})) {
        return std::unique_ptr<torch::Library>();
    }
    auto library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, space, std::nullopt, __FILE__, __LINE__);
    const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
    library->def("schema(str operator, str schema) -> ()", tags);
    library->def("dtypes(Tensor[] given, Tensor[] results, str operator, str dtypes) -> ()", tags);
    library->impl("schema", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                            [](std::string op, std::string schema) { hold_schema(op, schema); }));
    library->impl("dtypes",
                  torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                  [](std::vector<at::Tensor> given, std::vector<at::Tensor> results, std::string op,
                                     std::string dtypes) { hold_dtypes(given, results, op, dtypes); }));
    return library;
}();

}  // namespace
}  // namespace opwright
