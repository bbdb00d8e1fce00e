// Calls that are recorded, or replayed from a recording.
#include "graph.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>

namespace framesmith {

static bool overlap(const Frame& f, int a, int b) {
  const char *from = static_cast<const char*>(f.pointers[a]), *other = static_cast<const char*>(f.pointers[b]);
  return from < other + f.geometry[b].bytes && other < from + f.geometry[a].bytes;
}

// Whether an input that is written shares memory with another, and would not in a recording that copies one of them.
static bool would_part(const Frame& f, const std::vector<bool>& copied) {
  for (int v : f.plan.input_values)
    for (int u : f.plan.input_values)
      if (u != v && f.plan.values[v].written && (copied[u] || copied[v]) &&
          overlap(f, v, u))
        return true;
  return false;
}

static std::vector<int64_t> numbers_of(const Frame& f) {
  std::vector<int64_t> out;
  for (int v : f.plan.numbers)
    std::memcpy(&out.emplace_back(0), f.pointers[v], c10::elementSize(f.plan.values[v].dtype));
  return out;
}

bool Graph::recorded(Lease& lease, PyObject* inputs) {
  Frame& frame = *lease.frame;
  if (recordings->stopped() || recordings->busy) return false;
  if (plan.device >= 0) {
    frame.stream = cuda_stream(plan.device);
    if (cuda_is_capturing(frame.stream)) return false;  // it becomes part of the program's own CUDA graph
  }
  c10::impl::ExcludeDispatchKeyGuard below(outside_keys());
  const auto sizes = frame.table.begin() + static_cast<std::ptrdiff_t>(plan.symbols.size());
  Occasion now{frame.stream, generation_, {frame.table.begin(), sizes}, numbers_of(frame)};
  Choice choice = recordings->choose(frame, now);
  if (choice.replay) choice.replay->replay(frame);
  else if (!choice.record || !record(lease, inputs, std::move(now), choice)) return false;
  return true;
}

static std::string said(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (python_error& e) {
    e.restore();
    return py::error_already_set().what();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown";
  }
}

static std::vector<Segment> segments(py::handle pairs) {
  std::vector<Segment> out;
  for (py::handle pair : pairs) {
    auto [start, bytes] = pair.cast<std::pair<uintptr_t, size_t>>();
    out.push_back({reinterpret_cast<const char*>(start), bytes});
  }
  return out;
}

// On failure the call is to run plainly; whoever cannot be recorded once is not tried again.
bool Graph::record(Lease& lease, PyObject* inputs, Occasion now, const Choice& choice) {
  const std::vector<bool> copied = recordings->copied(*lease.frame);
  if (would_part(*lease.frame, copied)) return false;
  // Graphs that are given their inputs up, backward ones, have pools of their own: the gradients that they return live
  // on while the next forward graphs are replayed.
  const int number = choice.twin + (lease.frame->owns_inputs ? kTwins : 0);
  auto made = std::make_shared<Recording>(std::exchange(lease.frame, take_frame()), std::move(now), number);
  Frame& own = made->frame();
  lease.frame->owns_inputs = std::exchange(own.owns_inputs, false);
  lease.frame->stream = own.stream;
  ready(*lease.frame, inputs);
  for (int v : plan.input_values) {  // the recording keeps none of the caller's tensors
    own.refs[v] = lease.frame->refs[v];
    own.tensors[v].reset();
  }
  own.stand_ins.clear();
  Recordings& all = *recordings;
  all.busy = true;
  Arena arena;
  try {
    made->place_inputs(copied);
    made->place_results();
    made->fill(*lease.frame);
    own.renew_uploads(all.tables);
    all.recorder.attr("begin")(plan.device, reinterpret_cast<uintptr_t>(made->occasion().stream), number);
    own.recording = true;
    char* memory = take_memory(own, arena);
    for (int v : plan.early_values) own.allocate(v);
    run(own, memory);
    py::object pool = all.recorder.attr("end")();
    made->keep_results();
    own.finish_uploads(made->occasion().stream);
    settle(made, arena);
    made->settle(segments(pool), made);
  } catch (...) {
    std::string why = said(std::current_exception());
    give_arena(arena);
    all.busy = false;
    all.stop();
    all.recorder.attr("fail")(own.failed, why);
    return false;
  }
  made->copies_results = choice.copies_results;
  made->finish(*lease.frame);
  all.busy = false;
  all.add(std::move(made));
  return true;
}

// Plays the new recording for the first time, or (without a device) has it run at the same addresses when played.
void Graph::settle(const std::shared_ptr<Recording>& made, Arena arena) {
  py::object again = py::none();
  if (plan.device < 0) {
    again = py::cpp_function([this, recording = made.get(), arena] {
      run(recording->frame(), arena.base);
      recording->bring_home();
    });
  }
  auto played = recordings->recorder.attr("play")(again).cast<py::tuple>();
  made->executable = reinterpret_cast<void*>(played[0].cast<uintptr_t>());
  made->play = played[1];
}

}  // namespace framesmith
