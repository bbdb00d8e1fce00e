// Times a package: run_cpp model.fsm [runs] [threads that call it]. Inputs are zeros, and sizes that vary are 1.
#include <framesmith.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

void check(framesmith_status status) {
  if (status) throw std::runtime_error(framesmith_error());
}

struct Free {
  void operator()(framesmith_model* m) const { framesmith_free(m); }
};
using Model = std::unique_ptr<framesmith_model, Free>;

Model load(const char* path) {
  framesmith_model* model = nullptr;
  check(framesmith_load(path, nullptr, &model));
  return Model(model);
}

// Tensors with memory of their own: of 8 bytes an element at most.
struct Tensors {
  std::vector<framesmith_tensor> tensors;
  std::vector<std::vector<double>> memory;

  void fill() {
    for (framesmith_tensor& t : tensors) {
      size_t count = 1;
      for (int d = 0; d < t.rank; d++) count *= static_cast<size_t>(t.size[d]);
      memory.emplace_back(std::max<size_t>(count, 1));
      t.data = memory.back().data();
    }
  }
  int32_t count() const { return static_cast<int32_t>(tensors.size()); }
};

Tensors inputs_of(const framesmith_model* model) {
  Tensors out;
  for (int32_t i = 0; i < framesmith_inputs(model); i++) {
    framesmith_info info;
    check(framesmith_input(model, i, &info));
    framesmith_tensor t{};
    t.dtype = info.dtype, t.rank = info.rank;
    for (int d = 0; d < t.rank; d++) t.size[d] = info.size[d] < 0 ? 1 : info.size[d];
    out.tensors.push_back(t);
  }
  out.fill();
  return out;
}

// Seconds of the fastest of some runs.
double fastest(framesmith_model* model, int runs) {
  const Tensors inputs = inputs_of(model);
  Tensors outputs;
  outputs.tensors.resize(static_cast<size_t>(framesmith_outputs(model)));
  check(framesmith_shapes(model, inputs.tensors.data(), inputs.count(), outputs.tensors.data(), outputs.count()));
  outputs.fill();
  double best = 1e9;
  for (int k = 0; k < runs; k++) {
    const auto start = std::chrono::steady_clock::now();
    check(framesmith_run(model, inputs.tensors.data(), inputs.count(), outputs.tensors.data(), outputs.count()));
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("run_cpp model.fsm [runs] [threads that call it]");
  const Model model = load(argv[1]);
  const int runs = argc > 2 ? std::atoi(argv[2]) : 10, callers = argc > 3 ? std::atoi(argv[3]) : 1;
  std::vector<std::thread> threads;
  std::vector<double> best(static_cast<size_t>(callers));
  for (double& seconds : best) threads.emplace_back([&] { seconds = fastest(model.get(), runs); });
  for (std::thread& t : threads) t.join();
  std::printf("%s: %.3f ms\n", framesmith_target(model.get()), *std::max_element(best.begin(), best.end()) * 1e3);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
