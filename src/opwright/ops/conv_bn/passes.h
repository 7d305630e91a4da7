// The passes over a convolution's result, as every device has them: what they read, what they write, in which layout.
#pragma once

#include <opwright/aten.h>

#pragma GCC visibility push(hidden)

namespace conv_bn {

// A batch of images with any number of channels. In memory either all places of a channel of an image lie side by side,
// or (`last`) all channels of a place.
struct Planes {
    int64_t images, channels, places;
    bool last;
    int64_t numel() const { return images * channels * places; }
};

// A number for each channel: of the tensors' own dtype, or `wide`, of that in which statistics are. Null where there is
// none.
struct Numbers {
    void* data = nullptr;
    bool wide = true;
};

enum class Activation : int { none, relu, leaky_relu, elu, silu, gelu };

// What normalises a channel. The convolution has no bias here; where one is given, `mean` is that with the bias.
struct Channels {
    Numbers mean, var, gamma, beta, bias;
    double eps;
    Activation activation;
    double slope;
};

// out = activation((y - mean) · γ / √(var + eps) + β + residual).
struct Apply {
    Planes planes;
    Channels channels;
    const void *y, *residual;
    void* out;
};

// What the gradient reads. The derivative of the activation is taken at what `output` says, where it is given, and else
// at what follows from y and residual. Where it is `inverse`, y follows from the output, except in channels in which
// too little of it would be left: there it has been written to `out` before.
struct Gradient {
    Planes planes;
    Channels channels;
    const void *grad, *y, *output, *residual;
    bool inverse;
    double least, most;  // inverse: the least |γ| and the most |β| / |γ|
    void* sums;          // Σ dz and Σ dz · (y - mean), for each channel
    bool fixed;          // the statistics do not depend on y
    double values;       // of a channel, in the whole batch; where `count` is given, it says
    const void* count;
    void *out, *d_residual;
    Numbers d_gamma, d_beta, d_bias;
};

// What a convolution is, to compute some of its channels alone.
struct Convolution {
    const void *x, *weight;
    int64_t inputs, height, width, out_height, out_width, kernel_height, kernel_width, groups;
    int64_t stride[2], padding[2], dilation[2];
    int64_t x_strides[4], weight_strides[4];
};

}  // namespace conv_bn

#pragma GCC visibility pop
