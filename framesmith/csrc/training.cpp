// oneDNN's recurrent layer in training, as graphs need it: PyTorch's keeps its workspace only where gradients are on,
// as they are not in a graph that holds its own derivative, and takes its arguments' memory for dense.
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

Tensor dense(const Tensor& t) { return t.contiguous(); }
std::optional<Tensor> dense(const std::optional<Tensor>& t) {
  return t.has_value() && t->defined() ? std::optional<Tensor>(t->contiguous()) : std::nullopt;
}
template <class T> const T& dense(const T& x) { return x; }

// The last result of the layer is the workspace.
template <auto Function> struct OfDense;
template <class R, class... A, R (*Function)(A...)> struct OfDense<Function> {
  static R call(A... a) {
    at::AutoGradMode on(true);
    return Function(dense(a)...);
  }
};

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
  m.impl("mkldnn_rnn_layer", c10::DispatchKey::CPU, &OfDense<at::mkldnn_rnn_layer>::call);
  m.impl("mkldnn_rnn_layer_backward", c10::DispatchKey::CPU, &OfDense<at::mkldnn_rnn_layer_backward>::call);
}

}  // namespace framesmith
