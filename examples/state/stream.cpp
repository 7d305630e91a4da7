// A recurrent layer that hears one step at a time: its weights, and what it remembers, stay in C++ between the calls.
// The step is opwright's own operator lltm_cell, which this reaches through the dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>
#include <opwright/state.h>

namespace {

using State2 = std::tuple<at::Tensor, at::Tensor>;

State2 lltm_cell(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const State2& state) {
    using Cell = State2(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor&,
                        const at::Tensor&);
    static const auto cell = c10::Dispatcher::singleton().findSchemaOrThrow("opwright::lltm_cell", "").typed<Cell>();
    return cell.call(x, weight, bias, std::get<0>(state), std::get<1>(state));
}

struct Stream : State {
    Stream(at::Tensor weight, at::Tensor bias, at::Tensor h, at::Tensor c)
        : weight(std::move(weight)), bias(std::move(bias)), state(State2(std::move(h), std::move(c))) {}

    // One step on, which is remembered.
    at::Tensor step(const at::Tensor& x) {
        auto held = state.lock();
        *held = lltm_cell(x, weight, bias, *held);
        return std::get<0>(*held);
    }

    State2 remembered() { return *state.lock(); }
    State2 parameters() { return {weight, bias}; }

    const at::Tensor weight, bias;
    Guarded<State2> state;
};

// What the next step would give. It remembers nothing, so that it is an operator like any other.
at::Tensor heard(const Held<Stream>& stream, const at::Tensor& x) {
    return std::get<0>(lltm_cell(x, stream->weight, stream->bias, stream->remembered()));
}

}  // namespace

OPWRIGHT_CLASS(Stream, c) {
    c.def(torch::init<at::Tensor, at::Tensor, at::Tensor, at::Tensor>())
        .def("step", &Stream::step)
        .def("remembered", &Stream::remembered)
        .def("parameters", &Stream::parameters)
        .def_pickle(
            [](const Held<Stream>& self) {
                const auto [h, c] = self->remembered();
                return std::vector<at::Tensor>{self->weight, self->bias, h, c};
            },
            [](std::vector<at::Tensor> t) { return c10::make_intrusive<Stream>(t.at(0), t.at(1), t.at(2), t.at(3)); });
}

TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, m) { m.def("heard", &heard); }
