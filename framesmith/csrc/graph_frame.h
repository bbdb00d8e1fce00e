// The state of one call of a compiled graph: pointers, tensors and geometry by value number. A graph pools its frames.
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
  int (*allocate)(struct Frame*, int);  // memory for the OUTPUT value number `int`; as above
  void (*release)(struct Frame*, int);  // drop the value number `int` (-1: the arena), whoever owns it here
  // run CUDA kernel number `int` on a grid, with pointers to its arguments; non-zero: failed, return at once
  int (*launch)(struct Frame*, int, unsigned, unsigned, unsigned, void**);
  // bytes of the host's memory on the device, kept in slot number `int` while they stay the same; null: return at once
  void* (*upload)(struct Frame*, int, const void*, int64_t);
  // memory for the arena of a plan that is `late`; non-zero: failed, return at once
  int (*scratch)(struct Frame*, char**);
  // told which launch or call comes next; null where nobody wants to know
  void (*mark)(struct Frame*, int);
};

// Bytes that are on the device already, put there on `stream`.
struct Upload {
  std::vector<char> bytes;
  at::Tensor memory;
  void* stream = nullptr;
  bool pending = false;  // of a recording: to be put there once it has ended
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
  bool owns_inputs = false;              // the caller gave them up
  torch::jit::Stack stack;
  std::exception_ptr error;
  c10::Storage scratch;                  // on a CUDA device: the arena of `tensors`; it has memory during a call
  const CudaKernel* kernels = nullptr;   // on a CUDA device: by number
  void* stream = nullptr;                // of the call
  std::vector<std::pair<int, const at::Tensor*>> stand_ins;  // in a call: values, and the inputs that copies stand for
  std::vector<Upload> uploads;           // by slot
  bool recording = false;                // what runs is recorded (recording.h): memory of results is there, tables wait
  int failed = -1;                       // the extern that failed last
  class Ranges* ranges = nullptr;        // of a call that a profiler watches

  void own(int value, at::Tensor t) {
    tensors[value] = std::move(t);
    refs[value] = &tensors[value];
  }
  void point(int value) {                // to what its tensor has
    const at::Tensor& t = *refs[value];
    if (C10_UNLIKELY(!t.has_storage())) pointers[value] = nullptr;
    else pointers[value] = plan.values[value].written ? t.mutable_data_ptr() : const_cast<void*>(t.const_data_ptr());
  }
  void resolve();                        // geometry from the table
  void set_arena(char* arena);
  char* take_scratch();                  // memory for the arena on the current CUDA device, until `drop_scratch`
  void drop_scratch();                   // nothing uses it any more
  void realign();                        // copies stand for inputs whose memory is not aligned as kernels take it
  void settle(int value);                // a copy stands for an input with a lazy conjugation or negation
  void stand_in(int value, at::Tensor copy);
  void give_back();                      // what the call wrote into copies that stand for inputs goes to the inputs
  std::vector<int64_t> table_sizes() const;               // bytes of the tables that a run put on the device, by slot
  void renew_uploads(const std::vector<int64_t>& sizes);  // memory for tables that a recording will hold
  void finish_uploads(void* stream);     // and their bytes
  void set_constants(const std::vector<at::Tensor>& constants, uint64_t generation);
  void allocate(int value);              // an OUTPUT
  void set_result(int value, at::Tensor t);
  void drop_result(int value);
  void clear_call();                     // drop what one call made
};

// Whether a tensor is of the type and the sizes, and each of its elements where the geometry has it.
bool fits(const at::Tensor& t, const Geometry& g, at::ScalarType dtype);

// A new tensor on a storage.
at::Tensor tensor_on(c10::Storage storage, at::ScalarType dtype, at::IntArrayRef size, at::IntArrayRef stride,
                     int64_t offset);

// Memory of its own, of PyTorch's allocator of the current CUDA device or of the output allocator.
at::Tensor new_tensor(const Geometry& geometry, at::ScalarType dtype, bool cuda);

// A strided window on `base`'s storage, outside of autograd.
at::Tensor window(const at::Tensor& base, const Geometry& geometry, at::ScalarType dtype);

// Autograd, autocast and Python: what compiled graphs run below.
const c10::DispatchKeySet& outside_keys();

// Whether a kernel that wants it so takes the memory.
inline bool is_aligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 == 0; }

// Whether the values are not those in memory: kernels read that alone.
inline bool is_lazy(const at::Tensor& t) {
  return t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
}

// The values of a lazy tensor in memory of their own, of the same sizes and strides.
at::Tensor settled(const at::Tensor& t);

// Calls `f`; what it throws is kept in `frame->error`, and the answer is 1.
template <typename F> int guarded(Frame* frame, F f) {
  try {
    f();
    return 0;
  } catch (...) {
    frame->error = std::current_exception();
    return 1;
  }
}

// Runs extern number `index`, guarded.
int call_extern(Frame* frame, int index);
int allocate_value(Frame* frame, int value);
void release_value(Frame* frame, int value);

// Queues CUDA kernel number `index` on the stream of the call (cuda_frame.cpp).
int launch_kernel(Frame* frame, int index, unsigned x, unsigned y, unsigned z, void** arguments);
void* upload_bytes(Frame* frame, int slot, const void* data, int64_t bytes);
int scratch_memory(Frame* frame, char** arena);

}  // namespace framesmith
