// Kernels on lent tensors: what opwright's own C++ calls.
#pragma once

#ifdef OPWRIGHT_CUDA
#include <opwright/device.h>
#endif
#include <opwright/crossing.h>
#include <opwright/offer.h>
#include <opwright/signature.h>

#include <memory>
#include <utility>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// The tensors of a call, held together: whoever copies one of them keeps them all.
template <size_t count>
struct Frame {
    explicit Frame(const Lent& call) : drop(call.drop) {}
    Frame(const Frame&) = delete;
    ~Frame() {
        for (size_t i = 0; i < held; ++i) drop(&place[i]);
    }
    AtenTensorHandle hold(const Lent& call, AtenTensorHandle tensor) {
        call.hold(&place[held], tensor);
        return reinterpret_cast<AtenTensorHandle>(&place[held++]);
    }

    void (*const drop)(void** place);
    size_t held = 0;
    void* place[count];
};

// A tensor of a frame. PyTorch's class has no way to make one that shares its owner; it is a shared pointer and nothing
// else, and that is what is made here.
template <class Owner>
Tensor tensor_of(const std::shared_ptr<Owner>& frame, AtenTensorHandle handle) {
    using Pointer = std::shared_ptr<AtenTensorOpaque>;
    static_assert(sizeof(Tensor) == sizeof(Pointer) && alignof(Tensor) == alignof(Pointer));
    union Made {
        Pointer pointer;
        Tensor tensor;
        Made(Pointer&& p) : pointer(std::move(p)) {}
        ~Made() { tensor.~Tensor(); }
    } made(Pointer(frame, handle));
    return std::move(made.tensor);
}

template <class T>
constexpr bool is_number = std::is_same_v<T, double> || std::is_same_v<T, int64_t> || std::is_same_v<T, bool>;
template <class T>
constexpr bool is_optional_tensor = std::is_same_v<Stable<T>, std::optional<Tensor>>;
template <class T>
constexpr bool is_lent_list = std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<int64_t>> ||
                              std::is_same_v<T, Wanted> || std::is_same_v<T, std::optional<double>>;
template <class R>
constexpr bool gives_tensors = is_tensor<std::decay_t<R>>;
template <class... R>
constexpr bool gives_tensors<std::tuple<R...>> = (is_tensor<R> && ...);
template <>
inline constexpr bool gives_tensors<void> = true;

template <auto function>
struct Lending;

template <class R, class... A, R (*function)(A...)>
struct Lending<function> {
    static constexpr bool possible =
        ((is_tensor<Owned<A>> || is_optional_tensor<Owned<A>> || is_number<Owned<A>> || is_lent_list<Owned<A>>) &&
         ...) &&
        gives_tensors<R> && sizeof(Tensor) == sizeof(std::shared_ptr<AtenTensorOpaque>);

    static void run(const char* op, const Lent& call) {
        if constexpr (possible) {
            check(call.count == sizeof...(A) && call.results == Results<R>::count, op, ": the kernel has ",
                  sizeof...(A), " parameters and ", Results<R>::count, " results, its schema ", call.count, " and ",
                  call.results);
            run(call, std::index_sequence_for<A...>());
        }
    }

#ifdef OPWRIGHT_CUDA
    static void run_on_device(const char* op, const Lent& call) {
        const OnDevice guard(op, first_tensor<A...>(op, call.arguments));
        run(op, call);
    }
#endif

  private:
    using Tensors = Frame<sizeof...(A) + 1>;

    template <size_t... I>
    static void run(const Lent& call, std::index_sequence<I...>) {
        const auto frame = std::make_shared<Tensors>(call);
        // In the order of the arguments, and each is there until the kernel is done.
        std::tuple<Owned<A>...> arguments{
            Crossing<Owned<A>>::in(received<Owned<A>>(call, frame, call.arguments[I]))...};
        if constexpr (std::is_void_v<R>) {
            function(pass<A>(std::get<I>(arguments))...);
        } else {
            give(call, function(pass<A>(std::get<I>(arguments))...));
        }
    }

    template <class T>
    static Stable<T> received(const Lent& call, const std::shared_ptr<Tensors>& frame, StableIValue value) {
        if constexpr (is_number<T>) {
            return torch::stable::detail::to<T>(value);
        } else if constexpr (std::is_same_v<T, std::string>) {
            const auto* const text = torch::stable::detail::to<const LentList*>(value);
            return std::string(static_cast<const char*>(text->data), text->size);
        } else if constexpr (std::is_same_v<T, std::optional<double>>) {
            const auto* const real = torch::stable::detail::to<const LentList*>(value);
            return real ? T(*static_cast<const double*>(real->data)) : std::nullopt;
        } else if constexpr (is_lent_list<T>) {
            const auto* const list = torch::stable::detail::to<const LentList*>(value);
            if constexpr (std::is_same_v<T, Wanted>) {
                if (list == nullptr) return std::nullopt;
            }
            const auto* const first = static_cast<const int64_t*>(list->data);
            using List = std::conditional_t<std::is_same_v<T, Wanted>, std::vector<bool>, T>;
            return List(first, first + list->size);
        } else {
            const auto handle = torch::stable::detail::to<AtenTensorHandle>(value);
            if constexpr (is_optional_tensor<T>) {
                if (handle == nullptr) return std::nullopt;
            }
            return tensor_of(frame, frame->hold(call, handle));
        }
    }

    template <class P, class T>
    static decltype(auto) pass(T& value) {
        if constexpr (std::is_same_v<T, std::decay_t<P>>) {
            return static_cast<P&&>(value);
        } else {
            return std::decay_t<P>(value);
        }
    }

    template <class T>
    static void give(const Lent& call, const T& result) {
        call.give(call.to, Crossing<T>::out(result).get());
    }
    template <class... T>
    static void give(const Lent& call, const std::tuple<T...>& result) {
        std::apply([&](const auto&... each) { (give(call, each), ...); }, result);
    }
};

// What this library offers.
inline const Offered* offered = nullptr;

template <auto function>
void offer(Offered& entry) {
    if constexpr (Lending<function>::possible) {
        if (opwright_offer_1 != nullptr) opwright_offer_1(&entry);
        entry.next = std::exchange(offered, &entry);
    }
}

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop

// Asked by Python, of each library.
extern "C" __attribute__((used, visibility("default"))) inline const void* opwright_offered_1() {
    return opwright::ow_inner::offered;
}
