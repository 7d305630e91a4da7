#include "persist_half.cuh"

lltm::persist::Table lltm::persist::bfloat16_kernels(bool forward) { return kernels<__nv_bfloat16>(forward); }
