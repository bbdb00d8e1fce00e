#include "graph_watch.h"

#include <cstring>

namespace framesmith {
namespace {

uint32_t version_of(const at::Tensor& t) { return t.is_inference() ? 0 : t.unsafeGetTensorImpl()->version_counter().current_version(); }

// Five words spread over the tensor's part of the storage, mixed.
uint64_t sample_of(const at::Tensor& t) {
  if (!t.device().is_cpu()) return 0;
  const size_t bytes = t.storage().nbytes();
  const auto* data = static_cast<const char*>(t.storage().data());
  if (!data || bytes < sizeof(uint64_t)) return bytes && data ? static_cast<uint64_t>(data[0]) : 0;
  uint64_t mixed = 0;
  const size_t last = bytes - sizeof(uint64_t);
  for (size_t k = 0; k <= 4; k++) {
    uint64_t word;
    std::memcpy(&word, data + last / 4 * k, sizeof word);
    mixed = (mixed ^ word) * 0x9e3779b97f4a7c15u;
  }
  return mixed;
}

}  // namespace

Watch::Watch(const at::Tensor& t) : tensor_(t.getIntrusivePtr()), storage_(c10::intrusive_ptr<c10::StorageImpl>()), tensor_address_(t.unsafeGetTensorImpl()) {
  version_ = version_of(t);
  if (!t.has_storage()) return;
  storage_ = c10::weak_intrusive_ptr<c10::StorageImpl>(t.storage().getWeakStorageImpl());
  storage_address_ = t.storage().unsafeGetStorageImpl();
  data_ = t.const_data_ptr();
  sample_ = sample_of(t);
}

bool Watch::holds(const at::Tensor& t) const {
  if (t.unsafeGetTensorImpl() != tensor_address_ || version_of(t) != version_) return false;
  if (!t.has_storage()) return storage_address_ == nullptr;
  return t.storage().unsafeGetStorageImpl() == storage_address_ && t.const_data_ptr() == data_ && sample_of(t) == sample_;
}

}  // namespace framesmith
