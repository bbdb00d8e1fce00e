// Whether the inputs that constants were computed from are still what they were.
#pragma once
#include "access_tracking.h"
#include "write_tracking.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace framesmith {

// How writes that leave a tensor's version are found. `automatic`: small data by a copy, other data by the operating
// system, and where that cannot tell by a digest of all bytes. Data of a device, always by accesses: PyTorch's account,
// and once memory was accessed though no version rose, by a copy on the device. (`accesses`: so on the CPU as well.)
enum class Detection { automatic, copy, tracking, digest, accesses };
Detection detect_writes_by(Detection how);  // for what is watched from now on; returns what was so far

// The state of one watched tensor: identity of tensor and storage (held weakly, so that an address cannot come back as
// something else), data pointer, version, and its data, since writes through `.data`, an array or an address do not
// raise the version.
class Watch {
 public:
  Watch(const at::Tensor& t, WriteTracker& tracker);
  bool holds(const at::Tensor& t) const;
  const std::shared_ptr<Tracked>& tracked() const { return tracked_; }

 private:
  void watch_memory(const at::Tensor& t, WriteTracker& tracker);
  void track_data(WriteTracker& tracker);
  void track_accesses(const at::Tensor& t);
  bool has_same_device_data(const at::Tensor& t) const;
  bool has_copied_data() const;
  bool has_same_data(const at::Tensor& t) const;

  c10::weak_intrusive_ptr<c10::TensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* tensor_address_;
  const void* storage_address_ = nullptr;
  const char* data_ = nullptr;
  size_t storage_bytes_ = 0, bytes_ = 0;  // `bytes_` from `data_`: what the tensor's elements lie in
  uint32_t version_ = 0;
  // Of the data, one of these; with `tracked_` goes a copy of what lies in its edges.
  std::shared_ptr<Tracked> tracked_;
  uint64_t writes_ = 0, digest_ = 0;
  size_t head_ = 0, tail_ = 0;  // bytes at the beginning and the end that have a copy
  std::vector<char> copy_;
  std::unique_ptr<Accesses> accesses_;  // or, of a device, one of these
  at::Tensor device_copy_;
};

// Tensors that are watched together. What is computed from their data afterwards is up to date as long as they hold.
class Watches {
 public:
  Watches() = default;
  explicit Watches(const std::vector<const at::Tensor*>& tensors);
  size_t size() const { return watches_.size(); }

  // `tensor_at(i)`: what is tensor number i by now.
  template <typename TensorAt>
  bool hold(TensorAt tensor_at) const {
    tracked_.look();
    for (size_t i = 0; i < watches_.size(); i++)
      if (C10_UNLIKELY(!watches_[i].holds(tensor_at(i)))) return false;
    return true;
  }

 private:
  std::vector<Watch> watches_;
  TrackedSet tracked_;
};

}  // namespace framesmith
