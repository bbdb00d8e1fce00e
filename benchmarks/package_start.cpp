// Loads a package of AOTInductor and computes one answer: package_start model.pt2 float32:1,3,224,224 int64:1,128 ...
// Inputs are ones, integers zeros.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <iostream>
#include <sstream>

static at::Tensor filled(const std::string& text) {
  const auto colon = text.find(':');
  std::vector<int64_t> sizes;
  std::istringstream rest(text.substr(colon + 1));
  for (std::string size; std::getline(rest, size, ',');) sizes.push_back(std::stoll(size));
  return text.substr(0, colon) == "float32" ? torch::ones(sizes) : torch::zeros(sizes, at::kLong);
}

int main(int argc, char** argv) {
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  std::vector<at::Tensor> inputs;
  for (int i = 2; i < argc; i++) inputs.push_back(filled(argv[i]));
  c10::InferenceMode inference;
  std::cout << loader.run(inputs).at(0).sum().item<double>() << std::endl;
}
