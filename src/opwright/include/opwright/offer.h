// How a library offers its kernels to opwright's own C++, which calls them without PyTorch's boxes: tensors are lent
// for the call, and nothing is allocated for each of them.
#pragma once

#include <torch/csrc/stable/stableivalue_conversions.h>

namespace opwright {
namespace ow_inner {

// A text, the whole numbers of a list (of truths, 0 and 1), or a number that may be absent.
struct LentList {
    const void* data;
    uint64_t size;
};

// A call. Tensors are handles that the caller owns, null for one that is absent; numbers are as in any StableIValue;
// texts, lists and what else may be absent are pointers to a LentList, null where there is none.
struct Lent {
    const StableIValue* arguments;
    uint64_t count;
    uint64_t results;
    void* to;
    void (*give)(void* to, AtenTensorHandle result);      // copies a result, which stays the kernel's
    void (*hold)(void** place, AtenTensorHandle tensor);  // makes a tensor of one's own, to whose place handles point
    void (*drop)(void** place);
};

struct Offered {
    const char* kernel;  // namespace::name.overload
    void (*run)(const Lent& call);
    const Offered* next;
};

}  // namespace ow_inner
}  // namespace opwright

// The number counts up when Lent or Offered changes: libraries are shipped, and meet another opwright's C++.
// In opwright's own C++; null in a library that is loaded where that is not in sight. Python hands the list over then.
extern "C" __attribute__((weak, visibility("default"))) void opwright_offer_1(const opwright::ow_inner::Offered* list);
