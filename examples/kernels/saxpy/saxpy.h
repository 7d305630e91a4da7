/* Plain C: what any program may call. `stream` is a cudaStream_t; the result is a cudaError_t. */
#pragma once

#ifdef __cplusplus
extern "C"
#endif
    int saxpy_launch(long long n, float a, const float* x, const float* y, float* out, void* stream);
