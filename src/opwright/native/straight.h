// Kernels called without PyTorch's boxes.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <opwright/offer.h>

#include <atomic>

namespace opwright {

// What a library offers for a kernel; null: nothing yet.
using Offer = std::atomic<decltype(ow_inner::Offered::run)>;

// A kernel as its library offers it, if it does, and what its arguments are.
class Straight {
  public:
    explicit Straight(const c10::OperatorHandle& kernel);

    // Runs it on the arguments from `base` on, in whose place come the results; false: it has to be called by way of
    // the dispatcher, and nothing was done. Where it throws, the arguments are as they were.
    bool run(size_t base, torch::jit::Stack* stack) const;

  private:
    enum class Kind {
        tensor,
        optional_tensor,
        real,
        optional_real,
        integer,
        boolean,
        text,
        integers,
        optional_booleans
    };
    static constexpr size_t most = 32;

    // What lists hold, while a kernel runs.
    struct Lists {
        ow_inner::LentList list[most];
        int64_t numbers[2 * most];
        double reals[most];
        size_t lists = 0, used = 0;
    };
    static bool lend(Kind kind, const c10::IValue& value, StableIValue& lent, Lists& lists);

    bool plain_ = true;  // all arguments and results are of these kinds
    c10::SmallVector<Kind, most> kinds_;
    size_t results_;
    const Offer* offered_;
};

}  // namespace opwright
