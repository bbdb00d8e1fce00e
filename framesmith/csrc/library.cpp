// The operators `framesmith::*`: kernels of our own that graphs call as they call PyTorch's, each with an out= form
// that fills planned memory.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "attention.h"
#include "matmul.h"
#include "rnn.h"

namespace framesmith {
namespace {
using at::Tensor;
using at::TensorList;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// Memory with contiguous last dimension (a copy when it is not).
Tensor rows(const Tensor& t) { return t.size(-1) == 1 || t.stride(-1) == 1 ? t : t.contiguous(); }

int64_t directions_of(bool bidirectional) { return bidirectional ? 2 : 1; }

void run_recurrence(int64_t gates, const Tensor& x_, TensorList state, TensorList packed, int64_t hidden,
                    bool bidirectional, bool batch_first, const Tensor& out, const Tensor& hn, const Tensor& cn) {
  const Tensor x = rows(x_), h0 = state.empty() ? Tensor() : state[0].contiguous(),
               c0 = state.size() < 2 ? Tensor() : state[1].contiguous();
  const int time = batch_first ? 1 : 0, batch = 1 - time;
  Recurrence r{};
  r.gates = gates, r.steps = x.size(time), r.batch = x.size(batch), r.input = x.size(2), r.hidden = hidden;
  r.directions = directions_of(bidirectional), r.layers = static_cast<int64_t>(packed.size()) / r.directions;
  TORCH_CHECK(hn.is_contiguous() && (!cn.defined() || cn.is_contiguous()) && out.stride(2) == 1,
              "framesmith: a recurrence's results are dense");
  std::vector<const float*> weights;
  for (size_t i = 0; i < packed.size(); i++) {
    const int64_t input = static_cast<int64_t>(i) < r.directions ? r.input : hidden * r.directions;
    TORCH_CHECK(packed[i].numel() == packed_recurrence_size(gates, input, hidden),
                "framesmith: a packed weight of another geometry");
    weights.push_back(packed[i].const_data_ptr<float>());
  }
  r.x = x.const_data_ptr<float>(), r.x_step = x.stride(time), r.x_batch = x.stride(batch);
  r.h0 = h0.defined() ? h0.const_data_ptr<float>() : nullptr,
  r.c0 = c0.defined() ? c0.const_data_ptr<float>() : nullptr;
  r.packed = weights.data();
  r.out = out.data_ptr<float>(), r.out_step = out.stride(time), r.out_batch = out.stride(batch);
  r.hn = hn.data_ptr<float>(), r.cn = cn.defined() ? cn.data_ptr<float>() : nullptr;
  const Tensor scratch = at::empty({recurrence_scratch(r)}, x.options());
  recur(r, scratch.data_ptr<float>(), at::get_num_threads());
}

// Result of a recurrence on x: (steps, batch, width) in memory whatever its dimensions' order, as eager's.
Tensor sequence_like(const Tensor& x, int64_t width, bool batch_first) {
  if (!batch_first) return at::empty({x.size(0), x.size(1), width}, x.options());
  return at::empty({x.size(1), x.size(0), width}, x.options()).transpose(0, 1);
}

Tensor state_like(const Tensor& x, TensorList packed, int64_t hidden, bool batch_first) {
  return at::empty({static_cast<int64_t>(packed.size()), x.size(batch_first ? 0 : 1), hidden}, x.options());
}

std::tuple<Tensor&, Tensor&, Tensor&> lstm_out(const Tensor& x, TensorList state, TensorList packed, int64_t hidden,
                                               bool bidirectional, bool batch_first, Tensor& out0, Tensor& out1,
                                               Tensor& out2) {
  run_recurrence(4, x, state, packed, hidden, bidirectional, batch_first, out0, out1, out2);
  return {out0, out1, out2};
}

Three lstm_meta(const Tensor& x, TensorList, TensorList packed, int64_t hidden, bool bidirectional, bool batch_first) {
  return {sequence_like(x, hidden * directions_of(bidirectional), batch_first),
          state_like(x, packed, hidden, batch_first), state_like(x, packed, hidden, batch_first)};
}

Three lstm(const Tensor& x, TensorList state, TensorList packed, int64_t hidden, bool bidirectional, bool batch_first) {
  Three r = lstm_meta(x, state, packed, hidden, bidirectional, batch_first);
  auto& [out, hn, cn] = r;
  run_recurrence(4, x, state, packed, hidden, bidirectional, batch_first, out, hn, cn);
  return r;
}

std::tuple<Tensor&, Tensor&> gru_out(const Tensor& x, TensorList state, TensorList packed, int64_t hidden,
                                     bool bidirectional, bool batch_first, Tensor& out0, Tensor& out1) {
  run_recurrence(3, x, state, packed, hidden, bidirectional, batch_first, out0, out1, {});
  return {out0, out1};
}

std::tuple<Tensor, Tensor> gru_meta(const Tensor& x, TensorList, TensorList packed, int64_t hidden, bool bidirectional,
                                    bool batch_first) {
  return {sequence_like(x, hidden * directions_of(bidirectional), batch_first),
          state_like(x, packed, hidden, batch_first)};
}

std::tuple<Tensor, Tensor> gru(const Tensor& x, TensorList state, TensorList packed, int64_t hidden, bool bidirectional,
                               bool batch_first) {
  auto r = gru_meta(x, state, packed, hidden, bidirectional, batch_first);
  auto& [out, hn] = r;
  run_recurrence(3, x, state, packed, hidden, bidirectional, batch_first, out, hn, {});
  return r;
}

// The weights of one layer and direction: [w_x, w_h] or [w_x, w_h, b_x, b_h].
Tensor pack_rnn_meta(TensorList weights, int64_t gates) {
  const int64_t hidden = weights[1].size(1);
  TORCH_CHECK(weights[0].size(0) == gates * hidden && weights[1].size(0) == gates * hidden,
              "framesmith: weights of another cell");
  return at::empty({packed_recurrence_size(gates, weights[0].size(1), hidden)}, weights[0].options());
}

Tensor pack_rnn(TensorList weights, int64_t gates) {
  Tensor out = pack_rnn_meta(weights, gates);
  std::vector<Tensor> dense;
  for (const Tensor& w : weights) dense.push_back(w.contiguous());
  auto at = [&](size_t i) { return i < dense.size() ? dense[i].const_data_ptr<float>() : nullptr; };
  pack_recurrence(out.data_ptr<float>(), gates, weights[0].size(1), weights[1].size(1), at(0), at(1), at(2), at(3));
  return out;
}

// ---- attention

Plane plane(const Tensor& t) { return {t.const_data_ptr<float>(), t.stride(0), t.stride(1), t.stride(2)}; }

// `mask`: kept alive for the pointers into it.
Attention attention_of(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& given,
                       bool causal, std::optional<double> scale, Tensor& mask) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(1) % k.size(1) == 0,
              "framesmith: attention's arguments");
  Attention a{};
  a.batch = q.size(0), a.heads = q.size(1), a.shared = q.size(1) / k.size(1), a.queries = q.size(2), a.keys = k.size(2);
  a.width = q.size(3), a.value_width = v.size(3);
  a.scale = static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(a.width))));
  a.causal = causal;
  a.q = plane(q), a.k = plane(k), a.v = plane(v);
  if (given.has_value()) {
    mask = given->expand({a.batch, a.heads, a.queries, a.keys});
    if (mask.stride(3) > 1) mask = given->contiguous().expand({a.batch, a.heads, a.queries, a.keys});
    if (mask.scalar_type() == at::kBool) a.keep = mask.const_data_ptr<bool>();
    else a.add = mask.const_data_ptr<float>();
    a.mask_batch = mask.stride(0), a.mask_head = mask.stride(1), a.mask_row = mask.stride(2),
    a.mask_column = mask.stride(3);
  }
  return a;
}

void attend(Attention& a, Tensor& out) {
  TORCH_CHECK(out.stride(3) == 1, "framesmith: attention's results are dense");
  a.out = out.data_ptr<float>(), a.out_batch = out.stride(0), a.out_head = out.stride(1), a.out_row = out.stride(2);
  attend(a, at::get_num_threads());
}

Tensor& attention_out(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& given,
                      bool causal, std::optional<double> scale, Tensor& out) {
  Tensor mask;
  const Tensor dense_q = rows(q), dense_k = rows(k), dense_v = rows(v);
  Attention a = attention_of(dense_q, dense_k, dense_v, given, causal, scale, mask);
  attend(a, out);
  return out;
}

// (batch, row, head, column) in memory: joining the heads is then a view.
Tensor attention_meta(const Tensor& q, const Tensor&, const Tensor& v, const std::optional<Tensor>&, bool,
                      std::optional<double>) {
  return at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, bool causal,
                 std::optional<double> scale) {
  Tensor out = attention_meta(q, k, v, mask, causal, scale);
  attention_out(q, k, v, mask, causal, scale, out);
  return out;
}

// ---- attention in training

void set_sums(Attention& a, const Tensor& sums) {
  a.log_sums = sums.data_ptr<float>(), a.sums_batch = sums.stride(0), a.sums_head = sums.stride(1),
  a.sums_row = sums.stride(2);
}

std::tuple<Tensor&, Tensor&> attention_sums_out(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const std::optional<Tensor>& given, bool causal,
                                                std::optional<double> scale, Tensor& out0, Tensor& out1) {
  Tensor mask;
  const Tensor dense_q = rows(q), dense_k = rows(k), dense_v = rows(v);
  Attention a = attention_of(dense_q, dense_k, dense_v, given, causal, scale, mask);
  set_sums(a, out1);
  attend(a, out0);
  return {out0, out1};
}

std::tuple<Tensor, Tensor> attention_sums_meta(const Tensor& q, const Tensor& k, const Tensor& v,
                                               const std::optional<Tensor>& mask, bool causal,
                                               std::optional<double> scale) {
  return {attention_meta(q, k, v, mask, causal, scale),
          at::empty({q.size(0), q.size(2), q.size(1)}, q.options()).transpose(1, 2)};
}

std::tuple<Tensor, Tensor> attention_sums(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const std::optional<Tensor>& mask, bool causal, std::optional<double> scale) {
  auto r = attention_sums_meta(q, k, v, mask, causal, scale);
  attention_sums_out(q, k, v, mask, causal, scale, std::get<0>(r), std::get<1>(r));
  return r;
}

std::tuple<Tensor&, Tensor&, Tensor&> attention_backward_out(const Tensor& tangent, const Tensor& q, const Tensor& k,
                                                             const Tensor& v, const Tensor& result, const Tensor& sums,
                                                             const std::optional<Tensor>& given, bool causal,
                                                             std::optional<double> scale, Tensor& out0, Tensor& out1,
                                                             Tensor& out2) {
  Tensor mask;
  const Tensor dense_q = rows(q), dense_k = rows(k), dense_v = rows(v), dense_result = rows(result),
               dense_tangent = rows(tangent);
  AttentionGradient a{};
  a.forward = attention_of(dense_q, dense_k, dense_v, given, causal, scale, mask);
  TORCH_CHECK(a.forward.shared == 1 && !a.forward.keep && out0.stride(3) == 1 && out1.stride(3) == 1 &&
                  out2.stride(3) == 1,
              "framesmith: arguments of attention's gradient");
  set_sums(a.forward, sums);
  a.result = plane(dense_result), a.tangent = plane(dense_tangent);
  a.q = plane(out0), a.k = plane(out1), a.v = plane(out2);
  attend_backward(a, at::get_num_threads());
  return {out0, out1, out2};
}

Three attention_backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                              const Tensor&, const std::optional<Tensor>&, bool, std::optional<double>) {
  auto like = [](const Tensor& t) {
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  };
  return {like(q), like(k), like(v)};
}

Three attention_backward(const Tensor& tangent, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& result,
                         const Tensor& sums, const std::optional<Tensor>& mask, bool causal,
                         std::optional<double> scale) {
  Three r = attention_backward_meta(tangent, q, k, v, result, sums, mask, causal, scale);
  attention_backward_out(tangent, q, k, v, result, sums, mask, causal, scale, std::get<0>(r), std::get<1>(r),
                         std::get<2>(r));
  return r;
}

// ---- products of matrices (m, k) (k, n), or of batches of them, plus what broadcasts to the result

template <class T> Matrices<T> matrices(T* at, const Tensor& t) {
  const int64_t d = t.dim();
  return {at, d == 3 ? t.stride(0) : 0, t.stride(d - 2), t.stride(d - 1)};
}

Tensor& matmul_out(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, Tensor& out) {
  const int64_t d = a.dim();
  TORCH_CHECK((d == 2 || d == 3) && b.dim() == d && a.size(d - 1) == b.size(d - 2) &&
                  a.size(0) == (d == 3 ? b.size(0) : a.size(0)),
              "framesmith: matrices of ", a.sizes(), " and ", b.sizes());
  Matmul p{};
  p.batch = d == 3 ? a.size(0) : 1, p.m = a.size(d - 2), p.k = a.size(d - 1), p.n = b.size(d - 1);
  p.a = matrices(a.const_data_ptr<float>(), a), p.b = matrices(b.const_data_ptr<float>(), b),
  p.c = matrices(out.data_ptr<float>(), out);
  TORCH_CHECK(p.c.column == 1 || p.c.row == 1 || out.numel() < 2, "framesmith: a product's rows or columns are dense");
  if (bias.has_value()) {
    const Tensor whole = bias->expand(out.sizes());
    p.bias = matrices(whole.const_data_ptr<float>(), whole);
  }
  matmul(p, at::get_num_threads());
  return out;
}

Tensor matmul_meta(const Tensor& a, const Tensor& b, const std::optional<Tensor>&) {
  return a.dim() == 2 ? at::empty({a.size(0), b.size(1)}, a.options())
                      : at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
}

Tensor matmul_new(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  Tensor out = matmul_meta(a, b, bias);
  return matmul_out(a, b, bias, out);
}
}  // namespace

TORCH_LIBRARY(framesmith, m) {
#define RNN "(Tensor x, Tensor[] state, Tensor[] packed, int hidden, bool bidirectional, bool batch_first"
  m.def("lstm" RNN ") -> (Tensor, Tensor, Tensor)");
  m.def("lstm.out" RNN
        ", *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))");
  m.def("gru" RNN ") -> (Tensor, Tensor)");
  m.def("gru.out" RNN ", *, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))");
  m.def("pack_rnn(Tensor[] weights, int gates) -> Tensor");
#define ATTENTION "(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale"
  m.def("attention" ATTENTION ") -> Tensor");
  m.def("attention.out" ATTENTION ", *, Tensor(a!) out) -> Tensor(a!)");
  m.def("attention_sums" ATTENTION ") -> (Tensor, Tensor)");
  m.def("attention_sums.out" ATTENTION ", *, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))");
#define GRADIENT                                                                                                \
  "(Tensor tangent, Tensor q, Tensor k, Tensor v, Tensor result, Tensor sums, Tensor? mask, bool causal, float? scale"
  m.def("attention_backward" GRADIENT ") -> (Tensor, Tensor, Tensor)");
  m.def("attention_backward.out" GRADIENT
        ", *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))");
  m.def("matmul(Tensor a, Tensor b, Tensor? bias) -> Tensor");
  m.def("matmul.out(Tensor a, Tensor b, Tensor? bias, *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(framesmith, CPU, m) {
  m.impl("lstm", lstm);
  m.impl("lstm.out", lstm_out);
  m.impl("gru", gru);
  m.impl("gru.out", gru_out);
  m.impl("pack_rnn", pack_rnn);
  m.impl("attention", attention);
  m.impl("attention.out", attention_out);
  m.impl("attention_sums", attention_sums);
  m.impl("attention_sums.out", attention_sums_out);
  m.impl("attention_backward", attention_backward);
  m.impl("attention_backward.out", attention_backward_out);
  m.impl("matmul", matmul_new);
  m.impl("matmul.out", matmul_out);
}

TORCH_LIBRARY_IMPL(framesmith, Meta, m) {
  m.impl("lstm", lstm_meta);
  m.impl("gru", gru_meta);
  m.impl("pack_rnn", pack_rnn_meta);
  m.impl("attention", attention_meta);
  m.impl("attention_sums", attention_sums_meta);
  m.impl("attention_backward", attention_backward_meta);
  m.impl("matmul", matmul_meta);
}
}  // namespace framesmith
