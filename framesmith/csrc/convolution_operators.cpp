// The operators `framesmith::convolution*` of training's graphs.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <optional>

#include "convolution.h"

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

Tensor& convolution_out(const Tensor& x_, const Tensor& w_, const std::optional<Tensor>& bias_, IntArrayRef stride,
                        IntArrayRef padding, IntArrayRef dilation, int64_t groups, Tensor& out) {
  const Tensor x = x_.contiguous(), w = w_.contiguous(), bias = bias_.has_value() ? bias_->contiguous() : Tensor();
  const Convolution c = convolution_of(x.sizes(), w.sizes(), stride, padding, dilation, groups);
  check(out, out.sizes(), out, c);
  TORCH_CHECK(!bias.defined() || bias.numel() == w.size(0), "framesmith: a convolution with a bias of ", bias.sizes());
  convolve(c, x.const_data_ptr<float>(), w.const_data_ptr<float>(),
           bias.defined() ? bias.const_data_ptr<float>() : nullptr, out.data_ptr<float>(), at::get_num_threads());
  return out;
}

Tensor convolution_meta(const Tensor& x, const Tensor& w, const std::optional<Tensor>&, IntArrayRef stride,
                        IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  const Convolution c = convolution_of(x.sizes(), w.sizes(), stride, padding, dilation, groups);
  return at::empty({c.count, c.groups * c.outs, c.out[0], c.out[1]}, x.options());
}

Tensor convolution(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  Tensor out = convolution_meta(x, w, bias, stride, padding, dilation, groups);
  return convolution_out(x, w, bias, stride, padding, dilation, groups, out);
}

// `size`: of the images, or of the weights, that the gradient is of.
Tensor& images_out(const Tensor& tangent_, const Tensor& w_, IntArrayRef size, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, int64_t groups, Tensor& out) {
  const Tensor tangent = tangent_.contiguous(), w = w_.contiguous();
  const Convolution c = convolution_of(size, w.sizes(), stride, padding, dilation, groups);
  check(out, size, tangent, c);
  convolve_images(c, tangent.const_data_ptr<float>(), w.const_data_ptr<float>(),
                  out.data_ptr<float>(), at::get_num_threads());
  return out;
}

Tensor& weights_out(const Tensor& tangent_, const Tensor& x_, IntArrayRef size, IntArrayRef stride, IntArrayRef padding,
                    IntArrayRef dilation, int64_t groups, Tensor& out) {
  const Tensor tangent = tangent_.contiguous(), x = x_.contiguous();
  const Convolution c = convolution_of(x.sizes(), size, stride, padding, dilation, groups);
  check(out, size, tangent, c);
  convolve_weights(c, tangent.const_data_ptr<float>(), x.const_data_ptr<float>(),
                   out.data_ptr<float>(), at::get_num_threads());
  return out;
}

Tensor gradient_meta(const Tensor& tangent, const Tensor&, IntArrayRef size, IntArrayRef, IntArrayRef, IntArrayRef,
                     int64_t) {
  return at::empty(size, tangent.options());
}

Tensor images(const Tensor& tangent, const Tensor& w, IntArrayRef size, IntArrayRef stride, IntArrayRef padding,
              IntArrayRef dilation, int64_t groups) {
  Tensor out = at::empty(size, tangent.options());
  return images_out(tangent, w, size, stride, padding, dilation, groups, out);
}

Tensor weights(const Tensor& tangent, const Tensor& x, IntArrayRef size, IntArrayRef stride, IntArrayRef padding,
               IntArrayRef dilation, int64_t groups) {
  Tensor out = at::empty(size, tangent.options());
  return weights_out(tangent, x, size, stride, padding, dilation, groups, out);
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(framesmith, m) {
#define WINDOW ", int[] stride, int[] padding, int[] dilation, int groups"
  m.def("convolution(Tensor x, Tensor w, Tensor? bias" WINDOW ") -> Tensor");
  m.def("convolution.out(Tensor x, Tensor w, Tensor? bias" WINDOW ", *, Tensor(a!) out) -> Tensor(a!)");
  m.def("convolution_images(Tensor tangent, Tensor w, int[] size" WINDOW ") -> Tensor");
  m.def("convolution_images.out(Tensor tangent, Tensor w, int[] size" WINDOW ", *, Tensor(a!) out) -> Tensor(a!)");
  m.def("convolution_weights(Tensor tangent, Tensor x, int[] size" WINDOW ") -> Tensor");
  m.def("convolution_weights.out(Tensor tangent, Tensor x, int[] size" WINDOW ", *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(framesmith, CPU, m) {
  m.impl("convolution", convolution);
  m.impl("convolution.out", convolution_out);
  m.impl("convolution_images", images);
  m.impl("convolution_images.out", images_out);
  m.impl("convolution_weights", weights);
  m.impl("convolution_weights.out", weights_out);
}

TORCH_LIBRARY_IMPL(framesmith, Meta, m) {
  m.impl("convolution", convolution_meta);
  m.impl("convolution_images", gradient_meta);
  m.impl("convolution_weights", gradient_meta);
}
}  // namespace framesmith
