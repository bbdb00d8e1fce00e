// The state of one run: where each value of the plan is.
#pragma once
#include <string_view>
#include <vector>

#include "code.h"
#include "memory.h"
#include "plan.h"
#include "state.h"

namespace framesmith {

struct Geometry {
  std::vector<int64_t> size, stride;
  int64_t offset = 0;
  size_t bytes = 0;  // from the first to the last element
};

class Frame {
 public:
  Frame(const Plan& plan, const Functions& code, const std::vector<std::string_view>& constants, const State& state);

  // Reads sizes; throws `Error` unless the inputs are what the plan takes.
  void bind(const framesmith_tensor* inputs, int count);
  // Sets the plan's dimensions, in order, and infers the sizes of the inputs.
  void bind(const int64_t* dimensions, framesmith_tensor* inputs);
  void shape(int output, framesmith_tensor& out) const;
  void run(const framesmith_tensor* inputs, const framesmith_tensor* outputs, int count);

 private:
  void take_dimensions();
  void check(int input, const framesmith_tensor& given) const;
  void resolve();
  void place_inputs(const framesmith_tensor* inputs);
  void place_outputs(const framesmith_tensor* outputs, int count);
  void place_rest();
  void finish(const framesmith_tensor* outputs, int count);
  char* hold(size_t bytes);  // until the end of the run
  void drop();
  static int call(void* frame, int index);
  static int allocate(void* frame, int value);
  static void release(void* frame, int value);

  const Plan& plan_;
  const Functions code_;
  const std::vector<std::string_view>& constants_;
  const State& state_;
  Host host_;
  std::vector<int64_t> dimensions_, table_;
  bool resolved_ = false;
  int failed_ = 0;  // what the call that failed returned
  std::vector<Geometry> geometry_;
  std::vector<void*> pointers_;
  std::vector<char*> own_;      // by value: its block
  std::vector<char*> held_;
  std::vector<bool> given_;     // by value: the caller's memory is used as it is
  Memory arena_;
  size_t arena_bytes_ = 0;
  Blocks blocks_;
};

}  // namespace framesmith
