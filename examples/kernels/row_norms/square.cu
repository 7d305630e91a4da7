#include "square.cuh"

__device__ float square(float x) { return x * x; }
