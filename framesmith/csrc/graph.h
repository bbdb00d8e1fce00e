// A compiled graph: its library, its plan, its constants, and the pool of frames that its calls run in.
#pragma once
#include "graph_frame.h"
#include "graph_watch.h"
#include "ranges.h"
#include "recordings.h"

#include <c10/core/DeviceGuard.h>

namespace framesmith {

class Graph {
 public:
  Graph(py::handle plan, const std::string& library, py::object constants, py::object refresh);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Runs the graph on `inputs`, a tuple, or a list that it empties: a tensor given up so dies after its last use.
  // Returns a new tuple. The caller holds the interpreter's lock.
  PyObject* call(PyObject* inputs);

  const std::vector<at::Tensor>& constants() const { return constants_; }

  // Throws unless the inputs have the dtypes, sizes and strides that the code was made for.
  void check(PyObject* inputs) const;

  bool checked = false;
  uint64_t calls = 0, refreshes = 0;
  Names names;
  py::object refresh;
  Plan plan;
  std::unique_ptr<Recordings> recordings;  // if calls may be recorded

 private:
  // A frame and an arena for the time of one call, and the graph's device as the current one.
  struct Lease {
    Graph& graph;
    c10::OptionalDeviceGuard device;
    std::unique_ptr<Frame> frame;
    Arena arena;
    explicit Lease(Graph& graph);
    ~Lease();
  };
  std::unique_ptr<Frame> take_frame();
  void read_inputs(Frame& frame, PyObject* inputs) const;
  void read_symbols(Frame& frame, PyObject* inputs) const;
  void check_constants(PyObject* inputs);
  void set_constants(py::handle sequence);
  void ready(Frame& frame, PyObject* inputs);
  void run(Frame& frame, char* arena);
  void run_or_rewind(Frame& frame, char* arena, PyObject* inputs);
  bool has_written(const Frame& frame) const;
  void bump_versions(PyObject* inputs) const;
  char* take_memory(Frame& frame, Arena& arena) const;
  bool recorded(Lease& lease, PyObject* inputs);  // graph_record.cpp
  bool record(Lease& lease, PyObject* inputs, Occasion now, const Choice& choice);
  void settle(const std::shared_ptr<Recording>& made, Arena arena);
  PyObject* results(Frame& frame) const;

  // Of a call that fails: externs with numbers below `clean` run before anything is written to an input or sent to
  // other processes, and so do checks of indices, unless `spoilt`. `rewinds`: it may have drawn random numbers.
  struct Failures {
    int clean = 0;
    bool spoilt = false, rewinds = false;
  };

  Failures failures_;
  void* library_ = nullptr;
  RunFunction run_ = nullptr;
  SizesFunction sizes_ = nullptr;
  std::vector<std::unique_ptr<Frame>> idle_;
  std::vector<at::Tensor> constants_;
  std::vector<CudaKernel> kernels_;
  Watches watches_;
  uint64_t generation_ = 0;  // of constants_; 0: there are none yet
};

// Whether this thread's last failed call had begun to write its inputs: nothing may run in its place. Asked once.
bool take_has_written();

}  // namespace framesmith
