#include "generators.h"

#include <ATen/Context.h>

#include <mutex>

#include "cuda.h"

namespace framesmith {

GeneratorStates::GeneratorStates(int device) {
  auto add = [this](at::Generator generator) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    at::Tensor state = generator.get_state();
    states_.emplace_back(std::move(generator), std::move(state));
  };
  add(at::globalContext().defaultGenerator(at::kCPU));
  if (device >= 0 && !cuda_is_capturing(cuda_stream(device)))  // what is captured draws when it is played
    add(at::globalContext().defaultGenerator(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device))));
}

void GeneratorStates::restore() {
  for (auto& [generator, state] : states_) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace framesmith
