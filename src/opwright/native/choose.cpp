#include "choose.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace opwright {

using c10::IValue;

namespace {

// Whether it is a list of tensors; numbers, of which most calls have some, are told apart without a call.
bool is_list(const IValue& value) { return value.isList() && value.isTensorList(); }

// What one tensor of a call is; the others are held against it.
struct First {
    bool seen = false;
    at::ScalarType dtype = at::ScalarType::Undefined;
    c10::Device device = at::kCPU;
};

// The first tensor whose dtype the others must share; where there is none, the first of all.
First find_first(const Route& route, at::ArrayRef<IValue> values) {
    First first;
    const auto look = [&](const at::Tensor& t, bool plain) {
        if (t.defined() && (plain || !first.seen)) first = {plain, t.scalar_type(), t.device()};
    };
    for (size_t i = 0; i < values.size() && !first.seen; ++i) {
        const bool plain = !route.arguments[i].wide && route.arguments[i].dtypes.empty();
        if (values[i].isTensor()) {
            look(values[i].toTensor(), plain);
        } else if (is_list(values[i]) && !values[i].toTensorList().empty()) {
            look(values[i].toTensorList().get(0), plain);
        }
    }
    return first;
}

bool takes_tensor(const Route& route, const Argument& argument, const First& first, const at::Tensor& t) {
    if (!t.defined()) return true;
    if (t.layout() != at::kStrided || t.device() != first.device) return false;
    if (t.dim() < argument.least_rank || t.dim() > argument.most_rank) return false;
    const at::ScalarType dtype = t.scalar_type();
    if (!argument.dtypes.empty()) {
        if (!argument.dtypes.has(dtype)) return false;
    } else if (!route.dtypes.empty() && !route.dtypes.has(dtype)) {
        return false;
    } else if (!route.mixed && first.seen && dtype != first.dtype) {
        const bool half = first.dtype == at::kHalf || first.dtype == at::kBFloat16;
        if (!argument.wide || dtype != at::kFloat || !half) return false;
    }
    if (route.layout == Layout::contiguous) return t.is_contiguous();
    if (route.layout == Layout::channels_last) return t.dim() == 4 && t.is_contiguous(at::MemoryFormat::ChannelsLast);
    return true;
}

bool takes_tensors(const Route& route, at::ArrayRef<IValue> values, const First& first) {
    for (const size_t i : route.required) {
        // None where a tensor must be comes as an undefined one, which has no memory to read.
        if (values[i].isTensor() && !values[i].toTensor().defined()) return false;
    }
    for (size_t i = 0; i < values.size(); ++i) {
        if (values[i].isTensor()) {
            if (!takes_tensor(route, route.arguments[i], first, values[i].toTensor())) return false;
        } else if (is_list(values[i])) {
            for (const at::Tensor& t : values[i].toTensorVector()) {
                if (!t.defined() || !takes_tensor(route, route.arguments[i], first, t)) return false;
            }
        }
    }
    return true;
}

// A kernel takes a number as a double; one that would change the result's type is the reference's, and a whole one that
// a double cannot hold.
bool takes_numbers(const Route& route, at::ArrayRef<IValue> values, const First& first) {
    const bool whole = first.seen && !at::isFloatingType(first.dtype) && !at::isComplexType(first.dtype);
    const auto fits = [&](const IValue& x) {
        constexpr int64_t exact = int64_t{1} << std::numeric_limits<double>::digits;
        if (x.isDouble()) return !whole;
        return !x.isComplexDouble() && !(x.isInt() && (x.toInt() > exact || x.toInt() < -exact));
    };
    for (const size_t i : route.numbers) {
        const IValue& value = values[i];
        if (!value.isList() && !fits(value)) return false;
        if (!value.isList()) continue;
        for (const IValue& each : value.toListRef()) {
            if (!fits(each)) return false;
        }
    }
    return true;
}

bool takes_texts(const Route& route, at::ArrayRef<IValue> values) {
    return std::all_of(route.texts.begin(), route.texts.end(), [&](size_t i) {
        const auto& words = route.arguments[i].words;
        return !values[i].isString() || std::find(words.begin(), words.end(), values[i].toStringRef()) != words.end();
    });
}

// Whether all are tensors of one shape, or none: what most calls have.
bool all_alike(at::ArrayRef<IValue> values) {
    const at::Tensor* first = nullptr;
    for (const IValue& value : values) {
        if (value.isList()) return false;
        if (!value.isTensor() || !value.toTensor().defined()) continue;
        const at::Tensor& t = value.toTensor();
        if (first == nullptr) first = &t;
        const auto sizes = t.sizes(), known = first->sizes();
        if (sizes.size() != known.size()) return false;
        for (size_t d = 0; d < sizes.size(); ++d) {
            if (sizes[d] != known[d]) return false;
        }
    }
    return true;
}

// Whether the tensors broadcast together, those of lists too.
bool broadcasts(at::ArrayRef<IValue> values) {
    if (all_alike(values)) return true;
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
        if (!is_list(value)) continue;
        for (const at::Tensor& t : value.toTensorVector()) {
            if (!joins(t)) return false;
        }
    }
    return true;
}

constexpr int64_t unbound = -1;  // a name whose size is not known yet
using Bound = c10::SmallVector<int64_t, 8>;

// Binds the names of a pattern to sizes. Sums come later: `summed` says that there are some.
bool fits(const Pattern& pattern, at::IntArrayRef sizes, Bound& bound, bool& summed) {
    const size_t count = pattern.dimensions.size();
    if (pattern.leading ? sizes.size() < count : sizes.size() != count) return false;
    for (size_t i = 0; i < count; ++i) {
        const Dimension& dimension = pattern.dimensions[i];
        const int64_t size = sizes[sizes.size() - count + i];
        if (dimension.size) {
            if (size != *dimension.size) return false;
            continue;
        }
        if (dimension.divisor > 1 && size % dimension.divisor != 0) return false;
        summed = summed || dimension.plus;
        if (!dimension.name || dimension.plus) continue;  // without a name it is any size, another each time
        if (size % dimension.factor != 0) return false;
        int64_t& known = bound[*dimension.name];
        if (known == unbound) known = size / dimension.factor;
        if (known != size / dimension.factor) return false;
    }
    return true;
}

// The sums of a pattern that fits, when all that they add up is known.
bool adds_up(const Pattern& pattern, at::IntArrayRef sizes, const Bound& bound) {
    const size_t count = pattern.dimensions.size();
    for (size_t i = 0; i < count; ++i) {
        const Dimension& dimension = pattern.dimensions[i];
        if (!dimension.plus) continue;
        const int64_t a = bound[*dimension.name], b = bound[*dimension.plus];
        if (a == unbound || b == unbound || sizes[sizes.size() - count + i] != a + b) return false;
    }
    return true;
}

bool takes_sizes(const Route& route, at::ArrayRef<IValue> values) {
    Bound bound(route.names, unbound);
    bool summed = false;
    const auto all = [&](auto&& holds) {
        for (const Pattern& pattern : route.patterns) {
            const IValue& value = values[pattern.argument];
            if (value.isTensor() && value.toTensor().defined() && !holds(pattern, value.toTensor().sizes())) {
                return false;
            }
        }
        return true;
    };
    return all([&](const Pattern& pattern, at::IntArrayRef sizes) { return fits(pattern, sizes, bound, summed); }) &&
           (!summed ||
            all([&](const Pattern& pattern, at::IntArrayRef sizes) { return adds_up(pattern, sizes, bound); }));
}

std::string describe(const at::Tensor& t) {
    std::ostringstream text;
    text << t.scalar_type() << t.sizes();
    if (t.layout() != at::kStrided) text << ", " << t.layout();
    if (!t.is_contiguous()) text << " with strides " << t.strides();
    text << " on " << t.device();
    return text.str();
}

// Calls for each tensor with its argument's name.
template <class F>
void for_tensors(const c10::FunctionSchema& schema, at::ArrayRef<IValue> values, F&& visit) {
    for (size_t i = 0; i < values.size(); ++i) {
        const std::string& name = schema.arguments()[i].name();
        if (values[i].isTensor()) {
            visit(i, name, values[i].toTensor());
        } else if (is_list(values[i])) {
            for (const at::Tensor& t : values[i].toTensorVector()) visit(i, name, t);
        }
    }
}

}  // namespace

std::string refusal(const Route& route, const c10::FunctionSchema& schema, at::ArrayRef<IValue> values) {
    const First first = find_first(route, values);
    for (const size_t i : route.required) {
        if (values[i].isTensor() && !values[i].toTensor().defined()) return schema.arguments()[i].name() + " is absent";
    }
    std::string why, all;
    for_tensors(schema, values, [&](size_t i, const std::string& name, const at::Tensor& t) {
        if (!t.defined() && why.empty() && is_list(values[i])) why = "a tensor of " + name + " is absent";
        if (!t.defined()) return;
        all += (all.empty() ? "" : ", ") + name + " is " + describe(t);
        if (why.empty() && !takes_tensor(route, route.arguments[i], first, t)) why = name + " is " + describe(t);
    });
    if (!why.empty()) return why;
    for (const size_t i : route.numbers) {
        Route one = route;
        one.numbers = {i};
        if (!takes_numbers(one, values, first)) return schema.arguments()[i].name() + " is a number of another kind";
    }
    for (const size_t i : route.texts) {
        Route one = route;
        one.texts = {i};
        if (takes_texts(one, values)) continue;
        std::string known;
        for (const std::string& word : route.arguments[i].words) known += (known.empty() ? "'" : ", '") + word + "'";
        return schema.arguments()[i].name() + " is '" + values[i].toStringRef() + "', and must be one of " + known;
    }
    return all;
}

bool takes(const Route& route, at::ArrayRef<IValue> values) {
    const First first = find_first(route, values);
    return takes_tensors(route, values, first) && takes_numbers(route, values, first) && takes_texts(route, values) &&
           (!route.broadcast || broadcasts(values)) && (route.patterns.empty() || takes_sizes(route, values));
}

}  // namespace opwright
