// The C interface in C++17: models that free themselves, tensors that own their memory, errors as exceptions.
//
//     framesmith::Model model("model.fsm");
//     std::vector<framesmith::Tensor> inputs = model.inputs({4});  // where the first dimension that varies is 4
//     std::fill_n(inputs[0].data<float>(), inputs[0].elements(), 1.0f);
//     const float* y = model(inputs)[0].data<float>();
//
// It is the C interface and nothing else: there is no library to link besides that.
#ifndef FRAMESMITH_HPP
#define FRAMESMITH_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "framesmith.h"

namespace framesmith {

// A call that failed: its status, and the text that says why.
class Error : public std::runtime_error {
 public:
  Error(framesmith_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  framesmith_status status() const noexcept { return status_; }

 private:
  framesmith_status status_;
};

inline void check(framesmith_status status) {
  if (status) throw Error(status, framesmith_error());
}

// Whether elements of a dtype are of a C++ type; floats of 16 bits, which C++17 has no type for, are `uint16_t`.
template <class T> constexpr bool holds(int32_t dtype) {
  switch (dtype) {
    case FRAMESMITH_FLOAT32: return std::is_same_v<T, float>;
    case FRAMESMITH_FLOAT64: return std::is_same_v<T, double>;
    case FRAMESMITH_FLOAT16:
    case FRAMESMITH_BFLOAT16: return std::is_same_v<T, uint16_t>;
    case FRAMESMITH_INT8: return std::is_same_v<T, int8_t>;
    case FRAMESMITH_INT16: return std::is_same_v<T, int16_t>;
    case FRAMESMITH_INT32: return std::is_same_v<T, int32_t>;
    case FRAMESMITH_INT64: return std::is_same_v<T, int64_t>;
    case FRAMESMITH_UINT8: return std::is_same_v<T, uint8_t>;
    case FRAMESMITH_BOOL: return std::is_same_v<T, bool>;
    default: return false;
  }
}

// A row-major tensor with memory of its own.
class Tensor {
 public:
  // Zeros, of the type and the sizes of `like`.
  explicit Tensor(const framesmith_tensor& like) : tensor_(like) {
    static const size_t item[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};
    std::fill_n(tensor_.stride, FRAMESMITH_MAX_RANK, 0);
    const size_t bytes = elements() * item[like.dtype];
    memory_.resize(bytes / sizeof(double) + 1);
    tensor_.data = memory_.data();
  }
  Tensor(const Tensor& other) : tensor_(other.tensor_), memory_(other.memory_) { tensor_.data = memory_.data(); }
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor other) noexcept {
    tensor_ = other.tensor_;
    memory_.swap(other.memory_);
    return *this;
  }

  std::vector<int64_t> size() const { return {tensor_.size, tensor_.size + tensor_.rank}; }
  size_t elements() const {
    size_t count = 1;
    for (int32_t d = 0; d < tensor_.rank; d++) count *= static_cast<size_t>(tensor_.size[d]);
    return count;
  }
  int32_t dtype() const { return tensor_.dtype; }
  template <class T> T* data() { return static_cast<T*>(typed<T>()); }
  template <class T> const T* data() const { return static_cast<const T*>(typed<T>()); }
  const framesmith_tensor& c() const { return tensor_; }

 private:
  template <class T> void* typed() const {
    if (!holds<T>(tensor_.dtype)) throw Error(FRAMESMITH_BAD_ARGUMENT, "the tensor's elements are of another type");
    return tensor_.data;
  }
  framesmith_tensor tensor_;
  std::vector<double> memory_;
};

// An instance of a model: see framesmith.h for what may be done from several threads. All throw `Error`.
class Model {
 public:
  explicit Model(const std::string& path, const char* target = nullptr) {
    framesmith_model* made = nullptr;
    check(framesmith_load(path.c_str(), target, &made));
    handle_.reset(made);
  }

  // Another one, which shares code and weights, and whose buffers are as they were packaged.
  Model instance() const {
    framesmith_model* made = nullptr;
    check(framesmith_instance(c(), &made));
    return Model(made);
  }
  void reset() { check(framesmith_reset(c())); }
  void verify() const { check(framesmith_verify(c())); }

  std::string manifest() const { return framesmith_manifest(c()); }
  std::string target() const { return framesmith_target(c()); }
  std::vector<framesmith_range> dimensions() const {
    return all<framesmith_range>(framesmith_dimensions(c()), framesmith_dimension);
  }
  std::vector<framesmith_info> input_infos() const {
    return all<framesmith_info>(framesmith_inputs(c()), framesmith_input);
  }
  std::vector<framesmith_info> output_infos() const {
    return all<framesmith_info>(framesmith_outputs(c()), framesmith_output);
  }

  // Zeros for each input, where the dimensions have these sizes.
  std::vector<Tensor> inputs(const std::vector<int64_t>& dimensions = {}) const {
    std::vector<framesmith_tensor> shapes(static_cast<size_t>(framesmith_inputs(c())));
    check(framesmith_input_shapes(c(), dimensions.data(), length(dimensions), shapes.data(), length(shapes)));
    return {shapes.begin(), shapes.end()};
  }

  // Zeros for each output of a run on these inputs.
  std::vector<Tensor> outputs(const std::vector<Tensor>& inputs) const {
    const std::vector<framesmith_tensor> given = views(inputs);
    std::vector<framesmith_tensor> shapes(static_cast<size_t>(framesmith_outputs(c())));
    check(framesmith_shapes(c(), given.data(), length(given), shapes.data(), length(shapes)));
    return {shapes.begin(), shapes.end()};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
    const std::vector<framesmith_tensor> given = views(inputs), results = views(outputs);
    check(framesmith_run(c(), given.data(), length(given), results.data(), length(results)));
  }
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs) {
    std::vector<Tensor> results = outputs(inputs);
    run(inputs, results);
    return results;
  }

  framesmith_model* c() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(framesmith_model* m) const { framesmith_free(m); }
  };
  explicit Model(framesmith_model* handle) : handle_(handle) {}

  template <class T> static int32_t length(const std::vector<T>& v) { return static_cast<int32_t>(v.size()); }
  static std::vector<framesmith_tensor> views(const std::vector<Tensor>& tensors) {
    std::vector<framesmith_tensor> out;
    for (const Tensor& t : tensors) out.push_back(t.c());
    return out;
  }
  template <class Info, class Get> std::vector<Info> all(int32_t count, Get get) const {
    std::vector<Info> out(static_cast<size_t>(count));
    for (int32_t k = 0; k < count; k++) check(get(c(), k, &out[static_cast<size_t>(k)]));
    return out;
  }

  std::unique_ptr<framesmith_model, Free> handle_;
};

}  // namespace framesmith
#endif
