// `framesmith::draw_state`: the state of a device's generator for kernels that draw by it, in the order of operators.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <torch/library.h>

#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda.h"

namespace framesmith {
namespace {
using at::Tensor;
constexpr int64_t kState = 2;  // seed and offset

// Of the recording that this thread makes: where its kernels will read states, and how far draws move the generator.
struct Recorded {
  Tensor states;
  std::vector<int64_t> counts;
};
thread_local std::optional<Recorded> recorded;

at::TensorOptions options_on(at::Device device) { return at::TensorOptions().dtype(at::kLong).device(device); }

// Seed and offset now, in pairs: of each draw, one behind the other.
std::vector<int64_t> advance(at::Device device, const std::vector<int64_t>& counts) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  c10::GeneratorImpl* impl = generator.unsafeGetGeneratorImpl();
  const auto seed = static_cast<int64_t>(impl->current_seed());
  uint64_t offset = impl->get_offset();
  std::vector<int64_t> found;
  for (int64_t count : counts) {
    found.insert(found.end(), {seed, static_cast<int64_t>(offset)});
    offset += static_cast<uint64_t>(count);
  }
  impl->set_offset(offset);
  return found;
}

void put(const Tensor& states, const std::vector<int64_t>& numbers, void* stream) {
  copy_to_cuda(states.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(int64_t), stream);
}

// A state that an operator has drawn: the generator stands still until the program's own recording is played.
Tensor drawn_state(at::Device device) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max() / 2;
  return at::randint(-most, most, {kState}, options_on(device));
}

// The state of the device's generator, which moves on by `count`.
Tensor draw_state(at::Device device, int64_t count) {
  if (!device.is_cuda()) return drawn_state(device);
  if (recorded) {
    const auto next = static_cast<int64_t>(recorded->counts.size());
    recorded->counts.push_back(count);
    return recorded->states.narrow(0, kState * next, kState);
  }
  void* stream = cuda_stream(device.index());
  if (cuda_is_capturing(stream)) return drawn_state(device);
  Tensor state = at::empty({kState}, options_on(device));
  put(state, advance(device, {count}), stream);
  return state;
}

// From here on, draws of this thread take their states in turn from `states`, two elements a draw, until `end_draws`,
// which says by how much each moves the generator on.
void begin_draws(const Tensor& states) { recorded = Recorded{states, {}}; }

std::vector<int64_t> end_draws() {
  std::vector<int64_t> counts = recorded ? std::move(recorded->counts) : std::vector<int64_t>{};
  recorded.reset();
  return counts;
}

// Before a replay, on its stream: the states as they are now; the generator moves on.
void play_draws(const Tensor& states, at::IntArrayRef counts) {
  put(states, advance(states.device(), counts.vec()), cuda_stream(states.device().index()));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(framesmith, m) {
  m.def("draw_state(Device device, int count) -> Tensor", {at::Tag::nondeterministic_seeded});
  m.def("begin_draws(Tensor states) -> ()");
  m.def("end_draws() -> int[]");
  m.def("play_draws(Tensor(a!) states, int[] counts) -> ()");
  m.impl("draw_state", c10::DispatchKey::CompositeExplicitAutograd, draw_state);
  m.impl("begin_draws", c10::DispatchKey::CompositeExplicitAutograd, begin_draws);
  m.impl("end_draws", c10::DispatchKey::CompositeExplicitAutograd, end_draws);
  m.impl("play_draws", c10::DispatchKey::CompositeExplicitAutograd, play_draws);
}

}  // namespace framesmith
