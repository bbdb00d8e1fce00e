// Ranges that a profiler is shown of a call: the graph, and in it each launch and each call of an operator.
#pragma once
#include "graph_frame.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>
#include <string>

namespace framesmith {

struct Names {
  std::string graph;
  std::vector<std::string> steps;  // by number of the mark
};

// Whether torch.profiler or emit_nvtx watches this thread: a few nanoseconds, where to ask for its observers takes 20.
inline bool is_profiled() { return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr; }

class Ranges {
 public:
  Ranges(Frame& frame, const Names& names) : frame_(frame), names_(names), graph_(at::RecordScope::USER_SCOPE) {
    graph_.before(std::string_view(names.graph));
    frame.ranges = this;
    frame.host.mark = [](Frame* f, int step) { f->ranges->begin(static_cast<size_t>(step)); };
  }
  ~Ranges() {
    step_.reset();
    frame_.host.mark = nullptr;
    frame_.ranges = nullptr;
  }
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;

 private:
  void begin(size_t step) {
    step_.reset();
    if (step >= names_.steps.size()) return;
    step_.emplace(at::RecordScope::USER_SCOPE);
    step_->before(std::string_view(names_.steps[step]));
  }

  Frame& frame_;
  const Names& names_;
  at::RecordFunction graph_;
  std::optional<at::RecordFunction> step_;
};

}  // namespace framesmith
