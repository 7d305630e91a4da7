#include "device.cuh"

conv_bn::Passes conv_bn::bfloat16_passes() { return passes<BFloat16>(); }
