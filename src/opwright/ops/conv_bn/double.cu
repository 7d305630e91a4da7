#include "device.cuh"

conv_bn::Passes conv_bn::double_passes() { return passes<double>(); }
