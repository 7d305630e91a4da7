// What a persistent kernel is told, and which kernels there are. Nothing here knows PyTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::persist {

struct Walk {
    int steps, batch, hidden;
    int slices;       // blocks to a group of batch rows, a multiple of the cluster's size
    int first_group;  // of batch rows: where this launch begins
    bool reverse;
    const int64_t* lengths;  // or null
};

// T: the elements, uint16_t for half precisions.
template <class T>
struct Forward : Walk {
    T* gates;  // [steps, batch, 3 hidden]: pre-activations from the input in; gates out, where they are kept
    bool keep_gates;
    T* kept_c;                             // [steps, batch, hidden] or null
    const T *weights, *bias_ih, *bias_hh;  // [3 hidden, hidden], [3 hidden] or null
    const T* h_0;                          // [batch, hidden] or null
    T *output, *h_n;
    // The state, of floats where it is wide and else of T's: [batch, hidden], [steps, batch, hidden]; null for none.
    const void* c_0;
    void *c_n, *cells;  // c_n: always there
    bool is_wide;
    uint4* exchange;  // zeros
};

template <class T>
struct Backward : Walk {
    const T* weights;  // [3 hidden, hidden]
    const T* gates;    // [steps, batch, 3 hidden]: i, o, and g before its function; may be grad_gates itself
    const T* kept_c;   // [steps, batch, hidden]
    const T *grad_output, *grad_h_n;    // or null
    const void *grad_cells, *grad_c_n;  // or null; of floats where they are wide
    void* grad_c_0;
    bool cells_are_wide, c_n_is_wide, c_0_is_wide;
    T* grad_gates;  // [steps, batch, 3 hidden]
    T* grad_h_0;    // or null
    uint4* exchange;
};

struct Kernel {
    const void* code;
    int units, rows;  // hidden units to a block, batch rows to a group
    int cluster;      // blocks
    int most_hidden;
    int multiple;  // that the slices are of
    int threads;
    int word_bytes;                      // of the exchange, to a hidden unit and batch row
    int (*shared)(int hidden);           // bytes
    double (*microseconds)(int hidden);  // a step is thought to take
};

struct Table {
    const Kernel* first;
    int count;
    const Kernel* begin() const { return first; }
    const Kernel* end() const { return first + count; }
};

Table half_kernels(bool forward);
Table bfloat16_kernels(bool forward);
Table single_kernels(bool forward);

}  // namespace lltm::persist
