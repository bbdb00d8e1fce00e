// The operators `framesmith::*`: kernels of our own that graphs call as they call PyTorch's.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <optional>

#include "attention.h"
#include "matmul.h"
#include "operators.h"
#include "rnn.h"

namespace framesmith {
namespace {
using at::Tensor;
using at::TensorList;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Mask = std::optional<Tensor>;
using Scale = std::optional<double>;

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
  recur(r, at::get_num_threads());
}

// Result of a recurrence on x: (steps, batch, width) in memory whatever its dimensions' order, as eager's.
Tensor sequence_like(const Tensor& x, int64_t width, bool batch_first) {
  if (!batch_first) return at::empty({x.size(0), x.size(1), width}, x.options());
  return at::empty({x.size(1), x.size(0), width}, x.options()).transpose(0, 1);
}

Tensor state_like(const Tensor& x, TensorList packed, int64_t hidden, bool batch_first) {
  return at::empty({static_cast<int64_t>(packed.size()), x.size(batch_first ? 0 : 1), hidden}, x.options());
}

Three lstm_results(const Tensor& x, TensorList, TensorList packed, int64_t hidden, bool bidirectional,
                   bool batch_first) {
  return {sequence_like(x, hidden * directions_of(bidirectional), batch_first),
          state_like(x, packed, hidden, batch_first), state_like(x, packed, hidden, batch_first)};
}

void lstm(const Tensor& x, TensorList state, TensorList packed, int64_t hidden, bool bidirectional, bool batch_first,
          Tensor& out, Tensor& hn, Tensor& cn) {
  run_recurrence(4, x, state, packed, hidden, bidirectional, batch_first, out, hn, cn);
}

Two gru_results(const Tensor& x, TensorList, TensorList packed, int64_t hidden, bool bidirectional, bool batch_first) {
  return {sequence_like(x, hidden * directions_of(bidirectional), batch_first),
          state_like(x, packed, hidden, batch_first)};
}

void gru(const Tensor& x, TensorList state, TensorList packed, int64_t hidden, bool bidirectional, bool batch_first,
         Tensor& out, Tensor& hn) {
  run_recurrence(3, x, state, packed, hidden, bidirectional, batch_first, out, hn, {});
}

// The weights of one layer and direction: [w_x, w_h] or [w_x, w_h, b_x, b_h].
Tensor packed_rnn(TensorList weights, int64_t gates) {
  const int64_t hidden = weights[1].size(1);
  TORCH_CHECK(weights[0].size(0) == gates * hidden && weights[1].size(0) == gates * hidden,
              "framesmith: weights of another cell");
  return at::empty({packed_recurrence_size(gates, weights[0].size(1), hidden)}, weights[0].options());
}

Tensor pack_rnn(TensorList weights, int64_t gates) {
  Tensor out = packed_rnn(weights, gates);
  std::vector<Tensor> dense;
  for (const Tensor& w : weights) dense.push_back(w.contiguous());
  auto at = [&](size_t i) { return i < dense.size() ? dense[i].const_data_ptr<float>() : nullptr; };
  pack_recurrence(out.data_ptr<float>(), gates, weights[0].size(1), weights[1].size(1), at(0), at(1), at(2), at(3));
  return out;
}

// ---- attention

template <class T> Planes<T> planes(T* at, const Tensor& t) { return {at, t.stride(0), t.stride(1), t.stride(2)}; }
Planes<const float> read(const Tensor& t) { return planes(t.const_data_ptr<float>(), t); }
Planes<float> written(const Tensor& t) { return planes(t.data_ptr<float>(), t); }

// `mask`: kept alive for the pointers into it.
Attention attention_of(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& given, bool causal, Scale scale,
                       Tensor& mask) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "framesmith: attention's arguments");
  Attention a{};
  a.batch = q.size(0), a.heads = q.size(1), a.queries = q.size(2), a.keys = k.size(2);
  a.shared = a.heads / std::max<int64_t>(k.size(1), 1);
  TORCH_CHECK(a.shared * k.size(1) == a.heads, "framesmith: attention's heads");
  a.width = q.size(3), a.value_width = v.size(3);
  a.scale = static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(a.width))));
  a.causal = causal;
  a.q = read(q), a.k = read(k), a.v = read(v);
  if (given.has_value()) {
    mask = given->expand({a.batch, a.heads, a.queries, a.keys});
    if (mask.stride(3) > 1) mask = given->contiguous().expand({a.batch, a.heads, a.queries, a.keys});
    if (mask.scalar_type() == at::kBool) a.keep = planes(mask.const_data_ptr<bool>(), mask);
    else a.add = read(mask);
    a.mask_column = mask.stride(3);
  }
  return a;
}

void attend_to(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Mask& given, bool causal, Scale scale,
               Tensor& out, Planes<float> log_sums) {
  Tensor mask;
  const Tensor q = rows(q_), k = rows(k_), v = rows(v_);
  TORCH_CHECK(out.stride(3) == 1, "framesmith: attention's results are dense");
  Attention a = attention_of(q, k, v, given, causal, scale, mask);
  a.out = written(out), a.log_sums = log_sums;
  if (!a.keys) out.zero_();
  if (!a.heads || !a.batch || !a.queries || !a.keys) return;
  attend(a, at::get_num_threads());
}

// (batch, row, head, column) in memory: joining the heads is then a view.
Tensor joined(const Tensor& t, int64_t width) {
  return at::empty({t.size(0), t.size(2), t.size(1), width}, t.options()).transpose(1, 2);
}

Tensor attention_results(const Tensor& q, const Tensor&, const Tensor& v, const Mask&, bool, Scale) {
  return joined(q, v.size(3));
}

void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, bool causal, Scale scale,
               Tensor& out) {
  attend_to(q, k, v, mask, causal, scale, out, {});
}

// ---- attention in training

Two attention_sums_results(const Tensor& q, const Tensor&, const Tensor& v, const Mask&, bool, Scale) {
  return {joined(q, v.size(3)), joined(q, 1).squeeze(3)};
}

void attention_sums(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, bool causal, Scale scale,
                    Tensor& out, Tensor& sums) {
  if (!k.size(2)) sums.zero_();
  attend_to(q, k, v, mask, causal, scale, out, written(sums));
}

Three attention_backward_results(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                                 const Tensor&, const Mask&, bool, Scale) {
  return {joined(q, q.size(3)), joined(k, k.size(3)), joined(v, v.size(3))};
}

void attention_backward(const Tensor& tangent_, const Tensor& q_, const Tensor& k_, const Tensor& v_,
                        const Tensor& result_, const Tensor& sums, const Mask& given, bool causal, Scale scale,
                        Tensor& q_gradient, Tensor& k_gradient, Tensor& v_gradient) {
  Tensor mask;
  const Tensor q = rows(q_), k = rows(k_), v = rows(v_), result = rows(result_), tangent = rows(tangent_);
  AttentionGradient a{attention_of(q, k, v, given, causal, scale, mask), read(result), read(tangent),
                      written(q_gradient), written(k_gradient), written(v_gradient)};
  a.forward.log_sums = written(sums);
  if (!a.forward.queries || !a.forward.keys) return q_gradient.zero_(), k_gradient.zero_(), void(v_gradient.zero_());
  const bool dense = q_gradient.stride(3) == 1 && k_gradient.stride(3) == 1 && v_gradient.stride(3) == 1;
  TORCH_CHECK(dense && a.forward.shared == 1 && !a.forward.keep.at, "framesmith: arguments of attention's gradient");
  attend_backward(a, at::get_num_threads());
}

// ---- products of matrices (m, k) (k, n), or of batches of them, plus what broadcasts to the result

template <class T> Matrices<T> matrices(T* at, const Tensor& t) {
  const int64_t d = t.dim();
  return {at, d == 3 ? t.stride(0) : 0, t.stride(d - 2), t.stride(d - 1)};
}

void multiply(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, Tensor& out) {
  const int64_t d = a.dim();
  TORCH_CHECK((d == 2 || d == 3) && b.dim() == d && a.size(d - 1) == b.size(d - 2) &&
                  a.size(0) == (d == 3 ? b.size(0) : a.size(0)),
              "framesmith: matrices of ", a.sizes(), " and ", b.sizes());
  Problem p{a.size(d - 2), b.size(d - 1), a.size(d - 1), matrices(a.const_data_ptr<float>(), a),
            matrices(b.const_data_ptr<float>(), b), matrices(out.data_ptr<float>(), out), {}, false};
  TORCH_CHECK(p.c.column == 1 || p.c.row == 1 || out.numel() < 2, "framesmith: a product's rows or columns are dense");
  if (bias.has_value()) {
    const Tensor whole = bias->expand(out.sizes());
    p.bias = matrices(whole.const_data_ptr<float>(), whole);
  }
  matmul(p, d == 3 ? a.size(0) : 1, at::get_num_threads());
}

Tensor product_of(const Tensor& a, const Tensor& b, const std::optional<Tensor>&) {
  return a.dim() == 2 ? at::empty({a.size(0), b.size(1)}, a.options())
                      : at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
}
}  // namespace

TORCH_LIBRARY(framesmith, m) {
  const char* cell = "Tensor x, Tensor[] state, Tensor[] packed, int hidden, bool bidirectional, bool batch_first";
  define<lstm_results, lstm>(m, "lstm", cell);
  define<gru_results, gru>(m, "gru", cell);
  m.def("pack_rnn(Tensor[] weights, int gates) -> Tensor");
  m.impl("pack_rnn", c10::DispatchKey::CPU, pack_rnn);
  m.impl("pack_rnn", c10::DispatchKey::Meta, packed_rnn);
  const std::string scores = "Tensor? mask, bool causal, float? scale", operands = "Tensor q, Tensor k, Tensor v, ";
  define<attention_results, attention>(m, "attention", operands + scores);
  define<attention_sums_results, attention_sums>(m, "attention_sums", operands + scores);
  define<attention_backward_results, attention_backward>(
      m, "attention_backward", "Tensor tangent, " + operands + "Tensor result, Tensor sums, " + scores);
  define<product_of, multiply>(m, "matmul", "Tensor a, Tensor b, Tensor? bias");
}
}  // namespace framesmith
