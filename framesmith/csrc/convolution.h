// Convolutions of images in training, and their gradients, over raw float32 memory; see convolution.cpp.
#pragma once
#include <cstdint>

namespace framesmith {

// Images (count, groups * channels, height, width), weights (groups * outs, channels, kernel) and results (count,
// groups * outs, out), all dense.
struct Convolution {
  int64_t count, groups, channels, outs;
  int64_t size[2], kernel[2], stride[2], padding[2], dilation[2], out[2];
};

// `bias`: of each channel of the result, or null.
void convolve(const Convolution& c, const float* images, const float* weights, const float* bias, float* results,
              int threads);
// Gradients of the images and of the weights, from that of the results.
void convolve_images(const Convolution& c, const float* tangents, const float* weights, float* images, int threads);
void convolve_weights(const Convolution& c, const float* tangents, const float* images, float* weights, int threads);

}  // namespace framesmith
