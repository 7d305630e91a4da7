#include "device.cuh"

conv_bn::Passes conv_bn::half_passes() { return passes<Half>(); }
