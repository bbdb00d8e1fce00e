// The default generators that a graph may draw from, as they were before a call.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace framesmith {

class GeneratorStates {
 public:
  explicit GeneratorStates(int device);  // index of the CUDA device; -1: the CPU alone
  void restore();

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace framesmith
