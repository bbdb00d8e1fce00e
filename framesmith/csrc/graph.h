// A compiled graph: its library, its plan, its constants, and the pool of frames that its calls run in.
#pragma once
#include "graph_frame.h"
#include "graph_watch.h"

namespace framesmith {

class Graph {
 public:
  Graph(py::handle plan, const std::string& library, py::object constants, py::object refresh);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Runs the graph on `inputs`, a tuple, or a list that it empties: a tensor given up so dies after its last use. Returns a new tuple. The
  // caller holds the interpreter's lock.
  PyObject* call(PyObject* inputs);

  // Throws unless the inputs have the dtypes, sizes and strides that the code was made for.
  void check(PyObject* inputs) const;

  bool checked = false;
  uint64_t calls = 0, refreshes = 0;
  py::object refresh;
  Plan plan;

 private:
  struct Lease;
  std::unique_ptr<Frame> take_frame();
  void give_frame(std::unique_ptr<Frame> frame);
  void read_inputs(Frame& frame, PyObject* inputs) const;
  void read_symbols(Frame& frame, PyObject* inputs) const;
  void check_constants(PyObject* inputs);
  void set_constants(py::handle sequence);
  void run(Frame& frame, char* arena);
  char* take_memory(Lease& lease) const;
  PyObject* results(Frame& frame) const;

  void* library_ = nullptr;
  RunFunction run_ = nullptr;
  SizesFunction sizes_ = nullptr;
  std::vector<std::unique_ptr<Frame>> idle_;
  std::vector<at::Tensor> constants_;
  std::vector<CudaKernel> kernels_;
  std::vector<Watch> watches_;
  uint64_t generation_ = 0;  // of constants_; 0: there are none yet
};

}  // namespace framesmith
