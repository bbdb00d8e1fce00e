// oneDNN's recurrent layer in training, as graphs need it: PyTorch's keeps its workspace only where gradients are on,
// which is not so in a graph that holds its own derivative; and it reads its arguments' memory without looking at their
// strides.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace framesmith {
namespace {
using at::Tensor;

// The last result is the workspace.
std::tuple<Tensor, Tensor, Tensor, Tensor> rnn_layer(const Tensor& x, const Tensor& w0, const Tensor& w1,
                                                     const Tensor& w2, const Tensor& w3, const Tensor& hidden,
                                                     const Tensor& cell, bool reverse, at::IntArrayRef sizes,
                                                     int64_t mode, int64_t width, int64_t layers, bool biases,
                                                     bool bidirectional, bool batch_first, bool train) {
  at::AutoGradMode on(true);
  return at::mkldnn_rnn_layer(x.contiguous(), w0.contiguous(), w1.contiguous(), w2.contiguous(), w3.contiguous(),
                              hidden.contiguous(), cell.contiguous(), reverse, sizes, mode, width, layers, biases,
                              bidirectional, batch_first, train);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> rnn_layer_backward(
    const Tensor& x, const Tensor& w0, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& hidden,
    const Tensor& cell, const Tensor& output, const Tensor& last_hidden, const Tensor& last_cell,
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_hidden,
    const std::optional<Tensor>& grad_cell, bool reverse, int64_t mode, int64_t width, int64_t layers, bool biases,
    bool train, bool bidirectional, at::IntArrayRef sizes, bool batch_first, const Tensor& workspace) {
  auto dense = [](const std::optional<Tensor>& t) {
    return t.has_value() && t->defined() ? std::optional<Tensor>(t->contiguous()) : std::nullopt;
  };
  return at::mkldnn_rnn_layer_backward(x.contiguous(), w0.contiguous(), w1.contiguous(), w2.contiguous(),
                                       w3.contiguous(), hidden.contiguous(), cell.contiguous(), output.contiguous(),
                                       last_hidden.contiguous(), last_cell.contiguous(), dense(grad_output),
                                       dense(grad_hidden), dense(grad_cell), reverse, mode, width, layers, biases,
                                       train, bidirectional, sizes, batch_first, workspace.contiguous());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(framesmith, m) {
  m.def(
      "mkldnn_rnn_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx_, "
      "Tensor cx_, bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases, "
      "bool bidirectional, bool batch_first, bool train) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "mkldnn_rnn_layer_backward(Tensor input, Tensor weight1, Tensor weight2, Tensor weight3, Tensor weight4, "
      "Tensor hx_, Tensor cx_tmp, Tensor output, Tensor hy_, Tensor cy_, Tensor? grad_output, Tensor? grad_hy, "
      "Tensor? grad_cy, bool reverse, int mode, int hidden_size, int num_layers, bool has_biases, bool train, "
      "bool bidirectional, int[] batch_sizes, bool batch_first, Tensor workspace) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(framesmith, CPU, m) {
  m.impl("mkldnn_rnn_layer", rnn_layer);
  m.impl("mkldnn_rnn_layer_backward", rnn_layer_backward);
}

}  // namespace framesmith
