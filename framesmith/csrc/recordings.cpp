#include "recordings.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>

namespace framesmith {

static constexpr size_t kSeen = 64;        // occasions that are remembered
static constexpr size_t kThreads = 8;      // threads that called once each; the next one's first call is recorded
static constexpr uint64_t kCrowded = 2;    // replays that found most results alive, after which there is a twin
static constexpr uint64_t kUseful = 3;     // replays after which a recording was worth its making
static constexpr unsigned kSteady = 3;     // moves of an input that is expected to stay, after which it is copied

static bool is_askew(const Frame& call, int v) {
  const auto& aligned = call.plan.aligned;
  return !is_aligned(call.pointers[v]) && std::find(aligned.begin(), aligned.end(), v) != aligned.end();
}

// Parameters, and results of other recordings: they may move, but will stay where they are then.
static bool is_steady(const at::Tensor& t) {
  if (t.requires_grad() || is_at_home(t)) return true;
  auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(t));
  return object && Py_TYPE(object.ptr()) != reinterpret_cast<PyTypeObject*>(THPVariableClass);
}

void Recordings::note_places(const Frame& call) {
  places_.resize(call.pointers.size());
  for (int v : call.plan.input_values) {
    Place& place = places_[v];
    if (place.known && place.address != call.pointers[v]) place.moves++;
    place.address = call.pointers[v];
    place.known = true;
    place.on_device = place.on_device || !call.refs[v]->device().is_cpu();
  }
}

// Attention keeps its seeds on the device while it is recorded, and otherwise in the CPU's memory.
bool Recordings::is_astray(const Frame& call) const {
  const auto& inputs = call.plan.input_values;
  return std::any_of(inputs.begin(), inputs.end(), [&](int v) {
    return places_[v].on_device && call.refs[v]->device().is_cpu();
  });
}

std::vector<bool> Recordings::copied(const Frame& call) const {
  std::vector<bool> out(call.pointers.size());
  for (int v : call.plan.input_values) {
    const auto i = static_cast<size_t>(v);
    out[i] = is_askew(call, v) || places_[i].moves > (is_steady(*call.refs[v]) ? kSteady : 0);
  }
  return out;
}

static uint64_t this_thread() {
  static std::atomic<uint64_t> next{0};
  thread_local const uint64_t number = next++;
  return number;
}

bool Recordings::is_due(const Occasion& now) {
  auto at = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& one) { return one.occasion == now; });
  if (at == seen_.end()) {
    if (seen_.size() == kSeen) seen_.pop_back();
    at = seen_.insert(seen_.end(), Seen{now, {}});
  }
  std::rotate(seen_.begin(), at, at + 1);
  auto& threads = seen_.front().threads;
  const uint64_t self = this_thread();
  if (std::find(threads.begin(), threads.end(), self) != threads.end() || threads.size() == kThreads) return true;
  threads.push_back(self);
  return false;
}

// Whether another thread of Python may be within an operator, which lets the interpreter's lock go.
static bool has_threads() {
  static PyObject* active = py::object(py::module_::import("threading").attr("_active")).release().ptr();
  return PyDict_Size(active) > 1;
}

Choice Recordings::choose(const Frame& call, const Occasion& now) {
  int twins = 0;
  size_t least = 0, best = 0;
  for (size_t i = 0; i < kept_.size(); i++) {
    if (!kept_[i]->takes(call, now)) continue;
    const size_t cost = kept_[i]->cost();
    if (twins++ == 0 || cost < least) least = cost, best = i;
    if (cost == 0) break;
  }
  if (twins == 0) {
    note_places(call);
    return {nullptr, !is_astray(call) && is_due(now), 0};
  }
  std::shared_ptr<Recording> found = kept_[best];
  if (C10_UNLIKELY(least > 0)) {
    const bool room = twins < kTwins && limit_ > 1;
    if (found->would_move() && has_threads()) {
      if (room) return {nullptr, is_due(now), twins};
      if (++found->crowded < kCrowded) return {};
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(best));  // its results live on where they are
      return {nullptr, is_due(now), found->twin(), /*copies_results=*/true};
    }
    if (room && found->is_crowded() && ++found->crowded >= kCrowded && is_due(now)) return {nullptr, true, twins};
  }
  if (best > 0)
    std::rotate(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(best),
                kept_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  replays_++;
  return {std::move(found), false, 0};
}

void Recordings::add(std::shared_ptr<Recording> made) {
  const uint64_t now = made->occasion().generation;
  // their constants are not those of any call to come
  std::erase_if(kept_, [&](const auto& r) { return r->occasion().generation != now; });
  kept_.insert(kept_.begin(), std::move(made));
  if (kept_.size() <= limit_) return;
  if (kept_.back()->replays < kUseful) wasted_++;
  kept_.pop_back();
  if (wasted_ <= 2 * limit_) return;
  recorder.attr("tell")("its sizes or the addresses of its inputs keep changing");
  stop();
}

void Recordings::stop() {
  stopped_ = true;
  kept_.clear();
  seen_.clear();
}

}  // namespace framesmith
