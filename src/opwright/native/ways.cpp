#include "ways.h"

#include "once.h"
#include "wire.h"

namespace opwright {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

void run_in_python(int64_t way, size_t arguments, Stack* stack) {
    TORCH_CHECK_NOT_IMPLEMENTED(way != nowhere,
                                "opwright: this call needs its operator's reference, which is in Python");
    static const OperatorHandle python = find("opwright_native::run");
    c10::impl::GenericList given(c10::AnyType::get());
    given.reserve(arguments);
    for (size_t i = stack->size() - arguments; i < stack->size(); ++i) given.push_back(std::move((*stack)[i]));
    torch::jit::drop(*stack, arguments);
    Stack call{way, IValue(std::move(given))};
    // Straight to it: no mode and no profiler shall see more than what runs there.
    python.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &call);
    const auto flat = call[0].toListRef();
    size_t next = 0;
    for (const int64_t count : call[1].toIntVector()) {
        if (count < 0) {
            stack->push_back(flat[next++]);
            continue;
        }
        c10::List<at::Tensor> list;
        for (int64_t n = 0; n < count; ++n) list.push_back(flat[next++].toTensor());
        stack->emplace_back(std::move(list));
    }
}

namespace {

// What stands for a dtype, a layout or a memory format among values whose types Python is not told.
int64_t number_of(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                  std::optional<at::MemoryFormat> format) {
    if (dtype) return static_cast<int64_t>(*dtype);
    return layout ? static_cast<int64_t>(*layout) : static_cast<int64_t>(format.value());
}

OPWRIGHT_OPERATORS(m) {
    // A result that is one tensor, or none, counts -1; a list counts its tensors.
    m.def("run(int way, Any[] given) -> (Tensor?[] flat, int[] counts)");
    m.def("number_of(ScalarType? dtype, Layout? layout, MemoryFormat? format) -> int", number_of);
}

}  // namespace
}  // namespace opwright
