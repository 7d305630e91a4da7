// What a kernel takes and returns, in the words of a schema. It is written into the kernel's library, where Python
// reads it and compares it with the operator's schema: a value of another type would be misread without a word.
#pragma once

#include <opwright/crossing.h>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// The word for a type; null for one that no schema has.
template <class T>
constexpr const char* word() {
    if constexpr (std::is_same_v<T, Tensor>) return "Tensor";
    if constexpr (std::is_same_v<T, double>) return "float";
    if constexpr (std::is_same_v<T, bool>) return "bool";
    if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8) return "int";
    if constexpr (std::is_same_v<T, std::string>) return "str";
    if constexpr (std::is_same_v<T, DType>) return "ScalarType";
    if constexpr (std::is_same_v<T, torch::stable::Device>) return "Device";
    if constexpr (std::is_same_v<T, torch::headeronly::Layout>) return "Layout";
    if constexpr (std::is_same_v<T, torch::headeronly::MemoryFormat>) return "MemoryFormat";
    return nullptr;
}

// A type, and what is inside of an optional one and of a list.
template <class T>
struct Type {
    using Inside = T;
    static constexpr const char* after = "";
};
template <class T>
struct Type<std::optional<T>> {
    using Inside = T;
    static constexpr const char* after = "?";
};
template <class T>
struct Type<std::vector<T>> {
    using Inside = T;
    static constexpr const char* after = "[]";
};
template <class T>
struct Type<std::optional<std::vector<T>>> {
    using Inside = T;
    static constexpr const char* after = "[]?";
};

template <class T>
using Crossed = Type<Stable<Owned<T>>>;
template <class T>
using Inside = typename Crossed<T>::Inside;

// What authors write for a double, and for an int64_t.
template <class T>
constexpr bool is_other_float = (std::is_floating_point_v<T> && !std::is_same_v<T, double>) ||
                                std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <class T>
constexpr bool is_other_integer = std::is_integral_v<T> && word<T>() == nullptr;

template <class T>
constexpr bool is_result = is_tensor<std::decay_t<T>> || is_list_of_tensors<T>;

// Whether a function may write to what it takes: a Tensor&, alone, in a list or an optional.
template <class T>
constexpr bool is_written =
    std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>> && std::is_same_v<Inside<T>, Tensor>;

// The words for several types, after a mark that tells what they are.
template <size_t count>
struct Words {
    char text[count * 16 + 2] = {};  // MemoryFormat[]? and a comma

    template <class... T>
    static constexpr Words of(char mark) {
        Words words;
        words.text[0] = mark;
        (words.add(word<Inside<T>>(), Crossed<T>::after, is_written<T>), ...);
        return words;
    }

  private:
    constexpr void add(const char* word, const char* after, bool written) {
        size_t at = 1;
        while (text[at]) ++at;
        if (at > 1) text[at++] = ',';
        while (word && *word) text[at++] = *word++;
        while (*after) text[at++] = *after++;
        if (written) text[at++] = '!';
    }
};

template <class R>
struct Results {
    static constexpr size_t count = 1;
    static constexpr bool fit = is_result<R>;
    static constexpr auto words() { return Words<1>::template of<R>('\2'); }
};
template <>
struct Results<void> {
    static constexpr size_t count = 0;
    static constexpr bool fit = true;
    static constexpr auto words() { return Words<0>::of<>('\2'); }
};
template <class... R>
struct Results<std::tuple<R...>> {
    static constexpr size_t count = sizeof...(R);
    static constexpr bool fit = (is_result<R> && ...);
    static constexpr auto words() { return Words<sizeof...(R)>::template of<R...>('\2'); }
};

template <class Function>
struct KernelTypes;

template <class R, class... A>
struct KernelTypes<R (*)(A...)> {
    static constexpr bool no_other_float = !(is_other_float<Inside<A>> || ...);
    static constexpr bool no_other_integer = !(is_other_integer<Inside<A>> || ...);
    static constexpr bool known =
        ((word<Inside<A>>() != nullptr || is_other_float<Inside<A>> || is_other_integer<Inside<A>>) && ...);
    static constexpr bool results_fit = Results<R>::fit;
    static constexpr auto results = Results<R>::words();
    static constexpr auto parameters = Words<sizeof...(A)>::template of<A...>('\3');
};

// What Python looks for in a library. There is nothing between the members: all are of char.
template <size_t size, class Function>
struct Record {
    char bound[size];
    decltype(KernelTypes<Function>::results) results = KernelTypes<Function>::results;
    decltype(KernelTypes<Function>::parameters) parameters = KernelTypes<Function>::parameters;
};

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop

// Refuses what no schema has, in a sentence that says what to write, and leaves a record of the rest.
#define OPWRIGHT_RECORD(op, device, function)                                                                        \
    OPWRIGHT_REQUIRE(function, no_other_float, "write double, a schema's float is a C++ double");                    \
    OPWRIGHT_REQUIRE(function, no_other_integer, "write int64_t, a schema's int is a C++ int64_t");                  \
    OPWRIGHT_REQUIRE(function, known,                                                                                \
                     "it may take const Tensor&, int64_t, double, bool, std::string, DType, torch::stable::Device, " \
                     "and std::optional and std::vector of these");                                                  \
    OPWRIGHT_REQUIRE(function, results_fit,                                                                          \
                     "it may return Tensor, std::vector<Tensor>, a std::tuple of these, or void");                   \
    __attribute__((used)) static constexpr opwright::ow_inner::Record<sizeof(OPWRIGHT_BOUND(op, device, function)),  \
                                                                      decltype(&function)>                           \
    C10_CONCATENATE(opwright_record_, C10_UID) = {OPWRIGHT_BOUND(op, device, function)}
// clang-format off
#define OPWRIGHT_REQUIRE(function, property, sentence)                             \
    static_assert(opwright::ow_inner::KernelTypes<decltype(&function)>::property, \
                  C10_STRINGIZE(function) ": " sentence)
#define OPWRIGHT_BOUND(op, device, function)                                                         \
    "\1opwright kernel\1" C10_STRINGIZE(op) "\1" OPWRIGHT_ON_##device "\1" C10_STRINGIZE(function) \
    "\1" __FILE__ "\1" C10_STRINGIZE(__LINE__)
// clang-format on
