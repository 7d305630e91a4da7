#include "backward.h"

#include <ATen/ops/new_zeros.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "ways.h"

namespace opwright {

using c10::IValue;
using torch::jit::Stack;

namespace {

size_t count_of(int32_t place) { return place < 0 ? 1 : static_cast<size_t>(place); }

// A list in an IValue belongs to everybody who copied the IValue.
IValue own(const IValue& value) { return value.isList() ? value.deepcopy() : value; }

}  // namespace

std::vector<at::Tensor> Backward::run(Grads grads, Kept state, const std::vector<bool>& wanted,
                                      c10::function_ref<Shape(size_t)> shape_of) const {
    Stack stack = arrange(grads, std::move(state), wanted, shape_of);
    if (recorded->gradient) {
        (*recorded->gradient)->callBoxed(&stack);
    } else {
        run_in_python(*recorded->gradient_way, stack.size(), &stack);
    }
    return spread(stack, wanted);
}

Stack Backward::arrange(Grads grads, Kept state, const std::vector<bool>& wanted,
                        c10::function_ref<Shape(size_t)> shape_of) const {
    Stack stack(recorded->sources.size());
    place_kept(stack, std::move(state));
    for (size_t i = 0; i < stack.size(); ++i) {
        const Source& source = recorded->sources[i];
        if (source.origin == Origin::gradient) stack[i] = gradient(source, grads, shape_of);
        if (source.origin == Origin::wanted) stack[i] = mask(wanted);
    }
    return stack;
}

void Backward::place_kept(Stack& stack, Kept state) const {
    size_t place = 0, tensor = 0, shapes = 0, values = 0;
    for (const Origin origin : {Origin::input, Origin::output}) {
        for (size_t i = 0; i < stack.size(); ++i) {
            const Source& source = recorded->sources[i];
            if (source.origin != origin) continue;
            const int32_t found = kept[place++];
            if (found == Slot::one) stack[i] = std::move(state.tensors[tensor++]);
            if (found == Slot::shape) stack[i] = stand_in(state.shapes[shapes++], source.like);
            if (found == Slot::value) stack[i] = own(state.values[values++]);
            if (found < 0 && found > Slot::shapes) continue;
            c10::List<at::Tensor> list;
            for (int32_t n = Slot::shapes; n > found; --n) list.push_back(stand_in(state.shapes[shapes++], true));
            for (int32_t n = 0; n < found; ++n) list.push_back(std::move(state.tensors[tensor++]));
            stack[i] = std::move(list);
        }
    }
}

IValue Backward::gradient(const Source& source, Grads grads, c10::function_ref<Shape(size_t)> shape_of) const {
    size_t start = 0;
    for (size_t i = 0; i < source.position; ++i) start += count_of(results[i]);
    const auto present = [&](size_t at) {
        if (grads[at].defined()) return grads[at];
        const Shape shape = shape_of(at);
        // Of the kind that the others are, some of which take no plain tensors beside them.
        const auto is_other = [](const at::Tensor& t) {
            return t.defined() && t.key_set().has(c10::DispatchKey::Python);
        };
        const auto other = std::find_if(grads.begin(), grads.end(), is_other);
        if (other != grads.end()) return other->new_zeros_symint(shape.sizes, shape.options());
        return at::zeros_symint(shape.sizes, shape.options());
    };
    const int32_t found = results[source.position];
    if (found < 0) {
        const bool absent = !grads[start].defined() && (source.optional || found == Slot::none);
        return absent ? IValue() : IValue(present(start));
    }
    c10::List<at::Tensor> list;
    for (int32_t n = 0; n < found; ++n) list.push_back(present(start + n));
    return list;
}

IValue Backward::mask(const std::vector<bool>& wanted) const {
    c10::List<bool> mask;
    size_t edge = 0;
    for (const int32_t place : edges) {
        bool any = false;
        for (size_t n = 0; n < count_of(place); ++n) any = wanted[edge++] || any;
        mask.push_back(any);
    }
    return mask;
}

std::vector<at::Tensor> Backward::spread(const Stack& stack, const std::vector<bool>& wanted) const {
    std::vector<at::Tensor> out(wanted.size());
    size_t edge = 0;
    for (size_t p = 0; p < edges.size(); ++p) {
        const IValue& found = stack[p];
        if (edges[p] < 0) {
            if (wanted[edge] && found.isTensor()) out[edge] = found.toTensor();
            ++edge;
            continue;
        }
        const auto list = found.isNone() ? c10::ArrayRef<IValue>() : found.toListRef();
        const size_t count = count_of(edges[p]);
        TORCH_CHECK_VALUE(list.empty() || list.size() == count, recorded->name, ": its gradient returned ",
                          std::to_string(list.size()), " gradients for the ", std::to_string(count), " of ",
                          recorded->arguments[recorded->followed[p]]);
        for (size_t n = 0; n < count; ++n, ++edge) {
            if (wanted[edge] && !list.empty()) out[edge] = list[n].toTensor();
        }
    }
    return out;
}

}  // namespace opwright
