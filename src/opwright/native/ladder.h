// What autograd must know of an operator: which arguments it follows, what the next rung of the ladder takes, and where
// each of that comes from. Python writes it (kit/dispatch/node.py), the node reads it.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

namespace opwright {

// Where an argument of the next rung comes from.
struct Source {
    enum Kind : int64_t { gradient, input, output, wanted };
    Kind kind;
    size_t index;    // of the output that the gradient belongs to, or of the argument or output that is kept
    bool optional;   // a gradient that may be absent; others are zeros then
    bool like;       // its shape, dtype and device are all that is kept
    uint64_t needs;  // whose gradients read its values: a bit for each followed argument
};

struct Ladder {
    std::string name;
    c10::OperatorHandle form;       // what runs when a gradient will be wanted: the operator, or its form that saves
    c10::OperatorHandle reference;  // what PyTorch sees through
    std::optional<c10::OperatorHandle> above;        // the next rung
    std::optional<c10::OperatorHandle> above_plain;  // the next rung's reference, where it has no kernels
    std::string missing;                             // why there is no next rung
    bool by_reference = false;                       // autograd records what the reference does
    size_t inputs = 0;
    size_t outputs = 0;                // of the operator; the form may return extra results after them
    int64_t written = -1;              // the argument that is written to and stands for the output
    std::vector<size_t> updated;       // the arguments that are written to beside the outputs, and not followed
    std::string once;                  // why its gradient cannot be differentiated; empty: it can
    std::vector<size_t> followed;      // the arguments that have gradients
    std::vector<std::string> names;    // of all arguments
    std::vector<bool> differentiable;  // for each output
    std::vector<Source> sources;       // for each argument of the next rung
};

// The operator of this name, `namespace::name.overload`.
c10::OperatorHandle find(const std::string& name);

// Reads what Python wrote: numbers in the order of the reader's loops.
class Reader {
  public:
    explicit Reader(const std::vector<int64_t>& numbers) : numbers_(numbers) {}
    int64_t next() { return numbers_.at(at_++); }
    bool flag() { return next() != 0; }

  private:
    const std::vector<int64_t>& numbers_;
    size_t at_ = 0;
};

}  // namespace opwright
