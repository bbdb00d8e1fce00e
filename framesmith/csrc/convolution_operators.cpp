// The operators `framesmith::convolution*` of training's graphs.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <array>
#include <optional>

#include "convolution.h"
#include "operators.h"

namespace framesmith {
namespace {
using at::IntArrayRef;
using at::Tensor;

Convolution convolution_of(IntArrayRef images, IntArrayRef weights, IntArrayRef stride, IntArrayRef padding,
                           IntArrayRef dilation, int64_t groups) {
  TORCH_CHECK(images.size() == 4 && weights.size() == 4 && groups > 0 && images[1] == weights[1] * groups &&
                  weights[0] % groups == 0,
              "framesmith: a convolution of ", images, " with ", weights);
  TORCH_CHECK(stride.size() == 2 && padding.size() == 2 && dilation.size() == 2,
              "framesmith: a convolution of images with stride ", stride, ", padding ", padding, ", dilation ",
              dilation);
  Convolution c{};
  c.count = images[0], c.groups = groups, c.channels = weights[1], c.outs = weights[0] / groups;
  for (int d = 0; d < 2; d++) {
    c.size[d] = images[2 + d], c.kernel[d] = weights[2 + d], c.stride[d] = stride[d], c.padding[d] = padding[d],
    c.dilation[d] = dilation[d];
    TORCH_CHECK(c.stride[d] > 0 && c.padding[d] >= 0 && c.dilation[d] > 0, "framesmith: a convolution with stride ",
                stride, ", padding ", padding, ", dilation ", dilation);
    c.out[d] = (c.size[d] + 2 * c.padding[d] - c.dilation[d] * (c.kernel[d] - 1) - 1) / c.stride[d] + 1;
  }
  return c;
}

// `out` is dense memory of `sizes`, and results (or their gradient) are as large as the convolution's.
void check(const Tensor& out, IntArrayRef sizes, const Tensor& results, const Convolution& c) {
  TORCH_CHECK(out.is_contiguous() && out.sizes() == sizes, "framesmith: a convolution's result is dense and of sizes ",
              sizes, ", not ", out.sizes());
  const std::array<int64_t, 4> expected{c.count, c.groups * c.outs, c.out[0], c.out[1]};
  TORCH_CHECK(results.sizes() == IntArrayRef(expected), "framesmith: a convolution with results of ", results.sizes());
}

Tensor convolution_results(const Tensor& x, const Tensor& w, const std::optional<Tensor>&, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  const Convolution c = convolution_of(x.sizes(), w.sizes(), stride, padding, dilation, groups);
  return at::empty({c.count, c.groups * c.outs, c.out[0], c.out[1]}, x.options());
}

void convolution(const Tensor& x_, const Tensor& w_, const std::optional<Tensor>& bias_, IntArrayRef stride,
                 IntArrayRef padding, IntArrayRef dilation, int64_t groups, Tensor& out) {
  const Tensor x = x_.contiguous(), w = w_.contiguous(), bias = bias_.has_value() ? bias_->contiguous() : Tensor();
  const Convolution c = convolution_of(x.sizes(), w.sizes(), stride, padding, dilation, groups);
  check(out, out.sizes(), out, c);
  TORCH_CHECK(!bias.defined() || bias.numel() == w.size(0), "framesmith: a convolution with a bias of ", bias.sizes());
  convolve(c, x.const_data_ptr<float>(), w.const_data_ptr<float>(),
           bias.defined() ? bias.const_data_ptr<float>() : nullptr, out.data_ptr<float>(), at::get_num_threads());
}

// `size`: of the images, or of the weights, that the gradient is of; `other`: the weights, or the images.
Tensor gradient(const Tensor& tangent, const Tensor& other, IntArrayRef size, IntArrayRef, IntArrayRef, IntArrayRef,
                int64_t) {
  return at::empty(size, tangent.options());
}

template <bool Images>
void gradient_of(const Tensor& tangent_, const Tensor& other_, IntArrayRef size, IntArrayRef stride,
                 IntArrayRef padding, IntArrayRef dilation, int64_t groups, Tensor& out) {
  const Tensor tangent = tangent_.contiguous(), other = other_.contiguous();
  const IntArrayRef images = Images ? size : other.sizes(), weights = Images ? other.sizes() : size;
  const Convolution c = convolution_of(images, weights, stride, padding, dilation, groups);
  check(out, size, tangent, c);
  (Images ? convolve_images : convolve_weights)(c, tangent.const_data_ptr<float>(), other.const_data_ptr<float>(),
                                                out.data_ptr<float>(), at::get_num_threads());
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(framesmith, m) {
  const std::string window = ", int[] stride, int[] padding, int[] dilation, int groups";
  define<convolution_results, convolution>(m, "convolution", "Tensor x, Tensor w, Tensor? bias" + window);
  define<gradient, gradient_of<true>>(m, "convolution_images", "Tensor tangent, Tensor w, int[] size" + window);
  define<gradient, gradient_of<false>>(m, "convolution_weights", "Tensor tangent, Tensor x, int[] size" + window);
}
}  // namespace framesmith
