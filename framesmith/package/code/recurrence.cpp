#include <vector>

#include "csrc/rnn.h"
#include "package/code/operands.h"

namespace framesmith {

int recurrence(int64_t gates, const Operand& x_, Operands states, Operands packed, int64_t hidden,
               bool bidirectional, bool batch_first, const Operand& out,
               const Operand& hn, const Operand& cn) {
  const auto state = [&](size_t k) { return k < states.size() ? states.begin()[k] : Operand{}; };
  const Rows<float> x(x_, 1), h0(state(0), state(0).rank), c0(state(1), state(1).rank);
  const int time = batch_first ? 1 : 0, batch = 1 - time;
  std::vector<const float*> weights;
  for (const Operand& weight : packed) weights.push_back(weight.as<const float>());
  Recurrence r{};
  r.gates = gates, r.steps = x_.size[time], r.batch = x_.size[batch], r.input = x_.size[2], r.hidden = hidden;
  r.directions = bidirectional ? 2 : 1, r.layers = static_cast<int64_t>(packed.size()) / r.directions;
  r.x = x.operand.as<const float>(), r.x_step = x.operand.stride[time], r.x_batch = x.operand.stride[batch];
  r.h0 = h0.operand.as<const float>(), r.c0 = c0.operand.as<const float>();
  r.packed = weights.data();
  r.out = out.as<float>(), r.out_step = out.stride[time], r.out_batch = out.stride[batch];
  r.hn = hn.as<float>(), r.cn = cn.as<float>();
  recur(r, omp_get_max_threads());
  return 0;
}

}  // namespace framesmith
