#include "straight.h"

#include <map>
#include <memory>
#include <mutex>

#include "once.h"

namespace opwright {

using c10::IValue;
using ow_inner::Lent;
using ow_inner::Offered;

namespace {

// Never freed: calls may be under way when the process ends.
Offer& offered(const std::string& kernel) {
    static std::mutex guard;
    static auto* const all = new std::map<std::string, Offer>();
    const std::lock_guard<std::mutex> lock(guard);
    return (*all)[kernel];
}

template <class T>
StableIValue bits(T value) {
    StableIValue found = 0;
    std::memcpy(&found, &value, sizeof(T));
    return found;
}

}  // namespace

Straight::Straight(const c10::OperatorHandle& kernel)
    : results_(kernel.schema().returns().size()), offered_(&offered(toString(kernel.operator_name()))) {
    using c10::TypeKind;
    for (const c10::Argument& argument : kernel.schema().arguments()) {
        const c10::TypePtr& type = argument.real_type();
        switch (type->kind()) {
            case TypeKind::TensorType:
                kinds_.push_back(Kind::tensor);
                break;
            case TypeKind::FloatType:
                kinds_.push_back(Kind::real);
                break;
            case TypeKind::IntType:
            case TypeKind::SymIntType:
                kinds_.push_back(Kind::integer);
                break;
            case TypeKind::BoolType:
                kinds_.push_back(Kind::boolean);
                break;
            case TypeKind::StringType:
                kinds_.push_back(Kind::text);
                break;
            case TypeKind::ListType: {
                const TypeKind inside = type->expectRef<c10::ListType>().getElementType()->kind();
                plain_ = plain_ && (inside == TypeKind::IntType || inside == TypeKind::SymIntType);
                kinds_.push_back(Kind::integers);
                break;
            }
            default: {
                const bool booleans = *type == *c10::OptionalType::create(c10::ListType::ofBools());
                const bool real = *type == *c10::OptionalType::create(c10::FloatType::get());
                plain_ = plain_ && (booleans || real || *type == *c10::OptionalType::ofTensor());
                kinds_.push_back(booleans ? Kind::optional_booleans
                                 : real   ? Kind::optional_real
                                          : Kind::optional_tensor);
            }
        }
    }
    for (const c10::Argument& result : kernel.schema().returns()) {
        plain_ = plain_ && result.real_type()->kind() == TypeKind::TensorType;
    }
    plain_ = plain_ && kinds_.size() <= most && results_ <= most;
}

// Whether a value is of its argument's kind, and what the kernel gets of it.
bool Straight::lend(Kind kind, const IValue& value, StableIValue& lent, Lists& lists) {
    switch (kind) {
        case Kind::optional_real: {
            if (value.isNone()) {
                lent = bits(nullptr);
                return true;
            }
            if (!value.isDouble() && !value.isInt()) return false;
            double& real = lists.reals[lists.lists];
            real = value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
            ow_inner::LentList& list = lists.list[lists.lists++] = {&real, 1};
            lent = bits(&list);
            return true;
        }
        case Kind::text: {
            if (!value.isString()) return false;
            const std::string& text = value.toStringRef();
            ow_inner::LentList& list = lists.list[lists.lists++] = {text.data(), text.size()};
            lent = bits(&list);
            return true;
        }
        case Kind::optional_booleans:
            if (value.isNone()) {
                lent = bits(nullptr);
                return true;
            }
            [[fallthrough]];
        case Kind::integers: {
            if (!value.isList()) return false;
            const auto given = value.toListRef();
            if (lists.used + given.size() > std::size(lists.numbers)) return false;
            ow_inner::LentList& list = lists.list[lists.lists++] = {lists.numbers + lists.used, given.size()};
            for (const IValue& each : given) {
                if (!each.isInt() && !each.isBool()) return false;
                lists.numbers[lists.used++] = each.isInt() ? each.toInt() : each.toBool();
            }
            lent = bits(&list);
            return true;
        }
        case Kind::optional_tensor:
            if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
                lent = bits(nullptr);
                return true;
            }
            [[fallthrough]];
        case Kind::tensor:
            if (!value.isTensor()) return false;
            lent = bits(&value.toTensor());
            return true;
        case Kind::real:
            if (!value.isDouble() && !value.isInt()) return false;
            lent = bits(value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble());
            return true;
        case Kind::integer:
            if (!value.isInt()) return false;
            lent = bits(value.toInt());
            return true;
        default:
            if (!value.isBool()) return false;
            lent = bits(value.toBool());
            return true;
    }
}

bool Straight::run(size_t base, torch::jit::Stack* stack) const {
    const auto kernel = offered_->load(std::memory_order_acquire);
    if (kernel == nullptr || !plain_ || stack->size() - base != kinds_.size()) return false;
    StableIValue lent[most];
    Lists lists;
    for (size_t i = 0; i < kinds_.size(); ++i) {
        if (!lend(kinds_[i], (*stack)[base + i], lent[i], lists)) return false;
    }
    static_assert(sizeof(at::Tensor) == sizeof(void*));
    using Handle = AtenTensorHandle;
    c10::SmallVector<at::Tensor, 8> results;
    kernel({lent, kinds_.size(), results_, &results,
            [](void* to, Handle result) {
                static_cast<decltype(results)*>(to)->push_back(*reinterpret_cast<const at::Tensor*>(result));
            },
            [](void** place, Handle handle) { new (place) at::Tensor(*reinterpret_cast<const at::Tensor*>(handle)); },
            [](void** place) { reinterpret_cast<at::Tensor*>(place)->~Tensor(); }});
    stack->resize(base);
    for (at::Tensor& result : results) stack->emplace_back(std::move(result));
    return true;
}

namespace {

void take(const Offered* list) {
    for (; list != nullptr; list = list->next) offered(list->kernel).store(list->run, std::memory_order_release);
}

OPWRIGHT_OPERATORS(m) {
    // Python calls it with what a library lists. No operator takes the list itself: a graph could hand in any number.
    m.def("offer() -> int", [] { return reinterpret_cast<int64_t>(&opwright_offer_1); });
}

}  // namespace
}  // namespace opwright

extern "C" void opwright_offer_1(const opwright::ow_inner::Offered* list) { opwright::take(list); }
