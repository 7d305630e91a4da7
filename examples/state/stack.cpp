// A stack of tensors, as PyTorch's tutorials on custom classes have it.
#include <ATen/TensorOperators.h>
#include <opwright/state.h>

#include <vector>

namespace {

struct Stack : State {
    explicit Stack(std::vector<at::Tensor> given) : items(std::move(given)) {}

    void push(at::Tensor x) { items.lock()->push_back(std::move(x)); }

    at::Tensor pop() {
        auto held = items.lock();
        TORCH_CHECK(!held->empty(), "Stack: there is nothing to pop");
        auto last = std::move(held->back());
        held->pop_back();
        return last;
    }

    int64_t size() { return static_cast<int64_t>(items.lock()->size()); }

    Held<Stack> clone() { return c10::make_intrusive<Stack>(*items.lock()); }

    void merge(const Held<Stack>& other) {
        const std::vector<at::Tensor> theirs = *other->items.lock();  // first, and alone: it may be this one
        auto held = items.lock();
        held->insert(held->end(), theirs.begin(), theirs.end());
    }

    Guarded<std::vector<at::Tensor>> items;
};

}  // namespace

OPWRIGHT_CLASS(Stack, c) {
    c.def(torch::init<std::vector<at::Tensor>>())
        .def("push", &Stack::push)
        .def("pop", &Stack::pop)
        .def("size", &Stack::size)
        .def("clone", &Stack::clone)
        .def("merge", &Stack::merge)
        .def_pickle([](const Held<Stack>& self) { return std::vector<at::Tensor>(*self->items.lock()); },
                    [](std::vector<at::Tensor> items) { return c10::make_intrusive<Stack>(std::move(items)); });
}

// An operator that takes one.
at::Tensor total(const Held<Stack>& stack) {
    const std::vector<at::Tensor> items = *stack->items.lock();
    TORCH_CHECK(!items.empty(), "total: the stack is empty");
    at::Tensor sum = items[0];
    for (size_t i = 1; i < items.size(); ++i) sum = sum + items[i];
    return sum;
}

TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m) { m.def("total", &total); }
