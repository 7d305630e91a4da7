// LLTM's steps through time. The products that do not depend on the step before are PyTorch's, one for the whole
// sequence; here is what is left: h · Whhᵀ and the gates, forward, and the same backward, in one parallel region.
//
// A thread owns some hidden units, all three gates of each, or some rows of the batch, or both. In the first case it
// needs what the others have made of the step before, and one barrier a step; in the second nothing.
#pragma once

#include <opwright/kernel.h>
#include <opwright/team.h>
#include <opwright/tile.h>

namespace lltm {

// The numbers of one call. C is what is computed in: float for float, half and bfloat16.
template <class C>
struct Steps {
    int64_t steps, batch, hidden;
    bool reverse;
    // The batch by decreasing length, so that the rows that are still running are the first ones.
    std::vector<int64_t> order, length, active;

    ow_inner::Conversion convert;
    int64_t bytes;  // of an element

    const char* weight;  // [3 · hidden, hidden]
    const C* bias;       // [3 · hidden], or null
    const C* h_0;        // [batch, hidden] in the order of the batch, or null for zeros
    C* c;                // [batch, padded] in the sorted order: the state on the way forward, its gradient back

    C* panel;  // the packed weights
    C* backward_panel;
    C* scratch;  // [2, batch, hidden], where elements are not numbers: h of the last step and of this one
    C* zeros;    // [3 · hidden]
    C* own;      // room for each thread
    int64_t own_size;
    int64_t padded;  // hidden, rounded up to whole vectors

    // Forward: pre-activations from the input come in, gates go out where they are kept.
    char* gates;  // [steps · batch, 3 · hidden]
    bool keep_gates;
    char* kept_c;  // [steps · batch, hidden] or null
    char* output;
    char* cells;  // or null; as elements, or as numbers
    char* wide_cells;

    // Backward: gates, kept_c and output are read.
    const char* grad_output;  // or null, as those that follow
    const C* grad_cells;
    const C* grad_h_n;
    char* grad_gates;  // [steps · batch, 3 · hidden]
    bool recompute;    // gates are to be made again from the pre-activations that stand in grad_gates

    // Of matrices [steps · batch, …].
    int64_t row(int64_t position, int64_t step) const {
        const int64_t t = reverse ? length[position] - 1 - step : step;
        return t * batch + order[position];
    }
    // Whether elements are numbers.
    bool direct() const { return convert.widen == nullptr; }

    OPWRIGHT_NOINLINE void load(C* to, const char* from, int64_t n) const {
        if (convert.widen) return convert.widen(reinterpret_cast<char*>(to), from, n);
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(C));
    }
    OPWRIGHT_NOINLINE void store(char* to, const C* from, int64_t n) const {
        if (convert.narrow) return convert.narrow(to, reinterpret_cast<const char*>(from), n);
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(C));
    }
};

// The tiles for the processor at hand, compiled in float.cpp and double.cpp: functions for as many rows as fit its
// registers, for 4, and for one.
template <class C>
struct Tiles {
    using Function = void (*)(const Steps<C>*, int64_t step, int64_t first, int64_t end, int64_t unit, C* own);
    int64_t rows, lanes;
    Function many, four, one;

    static Tiles forward();
    static Tiles backward();
};

}  // namespace lltm
