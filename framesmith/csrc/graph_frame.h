// The state of one call of a compiled graph: pointers, tensors and geometry by value number. Frames are pooled by their graph.
#pragma once
#include "graph_memory.h"
#include "graph_plan.h"

#include <exception>
#include <memory>
#include <vector>

namespace framesmith {

struct Geometry {
  std::vector<int64_t> size, stride;
  int64_t offset = 0;
  size_t bytes = 0;  // from the first to the last element
};

// What generated code sees of the host: see codegen/wrapper.py, which declares it alike.
struct Host {
  struct Frame* frame;
  int (*call)(struct Frame*, int);      // run extern number `int`; non-zero: failed, return at once
  void (*release)(struct Frame*, int);  // drop the RESULT value number `int`
};

using RunFunction = int (*)(char* arena, void** pointers, const int64_t* table, const Host* host);
using SizesFunction = void (*)(int64_t* table);

struct Frame {
  explicit Frame(const Plan& plan);

  const Plan& plan;
  Host host;
  char* base = nullptr;                  // of the arena that `tensors` of arena values were made for
  uint64_t generation = 0;               // of the constants that it holds
  std::vector<void*> pointers;           // by value
  std::vector<const at::Tensor*> refs;   // by value: a tensor of the caller or of `tensors`; valid during a call
  std::vector<at::Tensor> tensors;       // by value: what the frame owns
  std::vector<Geometry> geometry;        // by value
  std::vector<int64_t> table, previous;
  torch::jit::Stack stack;
  std::exception_ptr error;

  void resolve();                        // geometry from the table
  void set_arena(char* arena);
  void set_constants(const std::vector<at::Tensor>& constants, uint64_t generation);
  void allocate_outputs();
  void clear_call();                     // drop what one call made
};

// A strided window on `base`'s storage, outside of autograd.
at::Tensor window(const at::Tensor& base, const Geometry& geometry, at::ScalarType dtype);

// Runs extern number `index`; on an exception keeps it in `frame->error` and returns 1.
int call_extern(Frame* frame, int index);
void release_value(Frame* frame, int value);

}  // namespace framesmith
