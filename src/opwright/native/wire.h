// What Python tells of an operator: the records of kit/dispatch/wire.py, with the same fields in the same order. They
// are read in wire.cpp, which describes them to Python as well: a library whose records differ is not used.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace opwright {

// Counted up with wire.py's when fields mean something else under the same names.
constexpr int version = 4;

// The words that a field may hold.
#define OPWRIGHT_CHOICE(Choice, ...)   \
    enum class Choice { __VA_ARGS__ }; \
    constexpr const char* words_of(Choice) { return #__VA_ARGS__; }

// The fields of a record, for the reader.
#define OPWRIGHT_RECORD(Record, ...)                    \
    static constexpr const char* record = #Record;      \
    static constexpr const char* fields = #__VA_ARGS__; \
    auto tie() { return std::tie(__VA_ARGS__); }

// An operator that Python names; nothing before it is read.
using Operator = std::optional<c10::OperatorHandle>;

struct Dtypes {
    uint64_t bits = 0;  // one for each

    bool empty() const { return bits == 0; }
    bool has(at::ScalarType dtype) const {
        const auto bit = static_cast<uint64_t>(dtype);
        return bit < 64 && (bits >> bit & 1);
    }
};

OPWRIGHT_CHOICE(Origin, gradient, input, output, wanted)
OPWRIGHT_CHOICE(Layout, any, contiguous, channels_last)

// Where one argument of a gradient operator comes from.
struct Source {
    Origin origin;
    size_t position;  // of the output that the gradient belongs to, or of the argument or output that is kept
    bool optional;    // a gradient that may be absent; others are zeros then
    bool like;        // its shape, dtype and device are all that is kept
    uint64_t needs;   // whose gradients read its values: a bit for each followed argument
    std::optional<size_t> when;  // the argument, a bool, without which it is not kept
    OPWRIGHT_RECORD(Source, origin, position, optional, like, needs, when)
};

// An operator as autograd records it.
struct Recorded {
    std::string op;                       // the operator at whose keys autograd stands
    std::string name;                     // what messages call it
    std::vector<std::string> arguments;   // their names
    Operator form;                        // what runs when a gradient will be wanted: itself, or its form that saves
    int64_t reference;                    // the way that runs what PyTorch sees through
    std::optional<Operator> gradient;     // the gradient operator, where it has kernels
    std::optional<int64_t> gradient_way;  // the way that runs it, where it has none
    std::string missing;                  // why there is no gradient operator
    std::optional<std::string> once;      // why its gradient cannot be differentiated; nothing: it can
    bool by_reference;                    // autograd records what the reference does
    std::vector<size_t> followed;         // the arguments that have gradients
    std::optional<size_t> written;        // the argument that is written to and stands for the output
    std::vector<size_t> updated;          // those that are written to beside the outputs, and not followed
    std::vector<bool> differentiable;     // for each output; the form may return extra results after them
    std::vector<Source> sources;          // for each argument of the gradient operator

    bool differentiates() const { return gradient || gradient_way; }

    OPWRIGHT_RECORD(Recorded, op, name, arguments, form, reference, gradient, gradient_way, missing, once, by_reference,
                    followed, written, updated, differentiable, sources)
};

// What a kernel takes for one argument.
struct Argument {
    bool wide;      // may be float beside half and bfloat16
    Dtypes dtypes;  // of its own; empty: those of all
    int64_t least_rank;
    int64_t most_rank;
    std::vector<std::string> words;  // those that a text may be; empty: any
    OPWRIGHT_RECORD(Argument, wide, dtypes, least_rank, most_rank, words)
};

// One dimension of a size pattern; names are numbers. Without a size and a name it is any size.
struct Dimension {
    std::optional<int64_t> size;
    std::optional<size_t> name;
    std::optional<size_t> plus;  // the second name of a sum
    int64_t factor;
    int64_t divisor;
    OPWRIGHT_RECORD(Dimension, size, name, plus, factor, divisor)
};

// The shape that an argument must have.
struct Pattern {
    size_t argument;
    bool leading;  // other dimensions may come first
    std::vector<Dimension> dimensions;
    OPWRIGHT_RECORD(Pattern, argument, leading, dimensions)
};

// A kernel, and the calls that it takes.
struct Route {
    Operator kernel;
    Dtypes dtypes;  // empty: any
    bool mixed;
    bool broadcast;
    Layout layout;
    std::vector<Argument> arguments;
    std::vector<size_t> required;  // the tensors that must be given
    std::vector<size_t> numbers;   // the arguments that it takes as double
    std::vector<size_t> texts;     // those that may be some words alone
    size_t names;                  // how many the patterns have
    std::vector<Pattern> patterns;
    std::string says;  // the same in words, for messages
    OPWRIGHT_RECORD(Route, kernel, dtypes, mixed, broadcast, layout, arguments, required, numbers, texts, names,
                    patterns, says)
};

// The kernels of an operator on one device, in the order in which they are asked.
struct Routing {
    std::string op;
    std::string device;  // the dispatch key
    int64_t reference;   // the way that takes what no kernel does
    int64_t rejecting;   // the way that raises what the reference would, and computes nothing
    std::vector<Route> routes;
    OPWRIGHT_RECORD(Routing, op, device, reference, rejecting, routes)
};

// The record that Python wrote as these words; an error where they are another's, too few or too many.
template <class Record>
Record read(const std::vector<std::string>& words);

// All records, for whoever writes to this side or reads what another one wrote: a line for each, with its fields.
std::string described();

// The operator of this name, `namespace::name.overload`, which must be there.
c10::OperatorHandle find(const std::string& name);

}  // namespace opwright
