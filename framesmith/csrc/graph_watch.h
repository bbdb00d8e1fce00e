// Whether the inputs that constants were computed from are still what they were.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace framesmith {

// The state of one watched tensor: identity of tensor and storage (held weakly, so that an address cannot come back as something else),
// data pointer, version, and a few words of its data: writes through `.data` do not raise the version.
class Watch {
 public:
  explicit Watch(const at::Tensor& t);
  bool holds(const at::Tensor& t) const;

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* tensor_address_;
  const void* storage_address_ = nullptr;
  const void* data_ = nullptr;
  uint32_t version_ = 0;
  uint64_t sample_ = 0;
};

}  // namespace framesmith
