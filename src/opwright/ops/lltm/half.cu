#include "persist_half.cuh"

lltm::persist::Table lltm::persist::half_kernels(bool forward) { return kernels<__half>(forward); }
