// What a generated header calls operators with, in programs that use PyTorch's C++.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace opwright {

class Direct;

// In opwright's own C++: what calls an operator without the dispatcher, where that would find nothing but a kernel to
// run and a gradient to record; false: it has to go there, and nothing was done.
__attribute__((visibility("default"))) const Direct* directly(const char* op);
__attribute__((visibility("default"))) bool run(const Direct* op, torch::jit::Stack* stack);

// An operator, looked up once by each function; an error where its library could not bring it along.
template <class Results>
class Function {
  public:
    Function(const char* name, const char* trouble) : op_(find(name, trouble)), direct_(directly(name)) {}

    template <class... A>
    Results operator()(const A&... arguments) const {
        torch::jit::Stack stack;
        stack.reserve(sizeof...(A));
        (stack.emplace_back(arguments), ...);
        if (!run(direct_, &stack)) op_.callBoxed(&stack);
        if constexpr (!std::is_void_v<Results>) return taken(stack, static_cast<Results*>(nullptr));
    }

  private:
    static c10::OperatorHandle find(const char* name, const char* trouble) {
        TORCH_CHECK(trouble == nullptr, "opwright: ", trouble);
        return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    }
    template <class T>
    static T taken(torch::jit::Stack& stack, T*) {
        return std::move(stack[0]).to<T>();
    }
    template <class... T>
    static std::tuple<T...> taken(torch::jit::Stack& stack, std::tuple<T...>*) {
        return several<std::tuple<T...>>(stack, std::index_sequence_for<T...>{});
    }
    template <class Several, size_t... I>
    static Several several(torch::jit::Stack& stack, std::index_sequence<I...>) {
        return Several{std::move(stack[I]).template to<std::tuple_element_t<I, Several>>()...};
    }

    c10::OperatorHandle op_;
    const Direct* direct_;
};

}  // namespace opwright
