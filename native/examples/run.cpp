// Times a package: run_cpp model.fsm [runs] [threads that call it]. Inputs are zeros, and sizes that vary their least.
#include <framesmith.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using framesmith::Model;
using framesmith::Tensor;

namespace {

// Seconds of the fastest of some runs.
double fastest(Model& model, int runs) {
  std::vector<int64_t> sizes;
  for (const framesmith_range& d : model.dimensions()) sizes.push_back(std::max<int64_t>(d.least, 1));
  const std::vector<Tensor> inputs = model.inputs(sizes);
  std::vector<Tensor> outputs = model.outputs(inputs);
  double best = 1e9;
  for (int k = 0; k < runs; k++) {
    const auto start = std::chrono::steady_clock::now();
    model.run(inputs, outputs);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "run_cpp model.fsm [runs] [threads that call it]\n"), 1;
  Model model(argv[1]);
  const int runs = argc > 2 ? std::atoi(argv[2]) : 10, callers = argc > 3 ? std::atoi(argv[3]) : 1;
  std::vector<std::thread> threads;
  std::vector<double> best(static_cast<size_t>(callers));
  for (double& seconds : best) threads.emplace_back([&] { seconds = fastest(model, runs); });
  for (std::thread& t : threads) t.join();
  std::printf("%s: %.3f ms\n", model.target().c_str(), *std::max_element(best.begin(), best.end()) * 1e3);
} catch (const framesmith::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
