#include "device.cuh"

conv_bn::Passes conv_bn::float_passes() { return passes<float>(); }
