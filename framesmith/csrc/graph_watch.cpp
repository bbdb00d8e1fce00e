#include "graph_watch.h"

#include "cuda.h"
#include "graph.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace framesmith {
namespace {

constexpr size_t kSmall = 16384;      // bytes that are compared sooner than the system is asked
constexpr size_t kBlock = 256 << 10;  // bytes that one thread digests at a time
constexpr size_t kLanes = 32;         // words that are mixed at a time: each waits for its multiplication
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;

Detection detection = Detection::automatic;

uint32_t version_of(const at::Tensor& t) {
  return t.is_inference() ? 0 : t.unsafeGetTensorImpl()->version_counter().current_version();
}

uint64_t mixed(uint64_t state, uint64_t word) {
  state = (state ^ word) * kOdd;  // one to one in each of both, so that another word gives another state
  return state ^ state >> 32;
}

uint64_t digest_of_block(const char* data, size_t bytes) {
  std::array<uint64_t, kLanes> lanes, words;
  for (size_t k = 0; k < kLanes; k++) lanes[k] = k;
  for (; bytes >= sizeof words; data += sizeof words, bytes -= sizeof words) {
    std::memcpy(words.data(), data, sizeof words);
    for (size_t k = 0; k < kLanes; k++) lanes[k] = mixed(lanes[k], words[k]);
  }
  words.fill(0);
  std::memcpy(words.data(), data, bytes);
  uint64_t state = bytes;
  for (size_t k = 0; k < kLanes; k++) state = mixed(mixed(state, words[k]), lanes[k]);
  return state;
}

// The bytes from a tensor's first element on, without a history or a mode.
at::Tensor bytes_of(const at::Tensor& t, size_t bytes) {
  c10::InferenceMode normal(false);
  c10::impl::ExcludeDispatchKeyGuard below(outside_keys());
  const auto offset = t.storage_offset() * static_cast<int64_t>(t.itemsize());
  return at::empty({0}, t.options().dtype(at::kByte)).set_(t.storage(), offset, {static_cast<int64_t>(bytes)}, {1});
}

// Whether a device may write the memory, past its pages' protection. A device's runtime gives a forked child no answer.
bool may_be_pinned(const at::Tensor& t) {
  try {
    return t.is_pinned();
  } catch (const c10::Error&) {
    return true;
  }
}

const pid_t kLoadedBy = getpid();

// Of all bytes, by PyTorch's threads. A forked child has none of them, and OpenMP would wait for them for ever.
uint64_t digest_of(const char* data, size_t bytes) {
  std::vector<uint64_t> blocks((bytes + kBlock - 1) / kBlock);
  const auto digest_blocks = [&](int64_t first, int64_t end) {
    for (auto k = static_cast<size_t>(first); k < static_cast<size_t>(end); k++)
      blocks[k] = digest_of_block(data + k * kBlock, std::min(kBlock, bytes - k * kBlock));
  };
  const auto count = static_cast<int64_t>(blocks.size());
  if (getpid() == kLoadedBy) at::parallel_for(0, count, 1, digest_blocks);
  else digest_blocks(0, count);
  uint64_t state = 0;
  for (uint64_t block : blocks) state = mixed(state, block);
  return state;
}

}  // namespace

Detection detect_writes_by(Detection how) { return std::exchange(detection, how); }

Watch::Watch(const at::Tensor& t, WriteTracker& tracker)
    : tensor_(t.getIntrusivePtr()), storage_(c10::intrusive_ptr<c10::StorageImpl>()),
      tensor_address_(t.unsafeGetTensorImpl()) {
  version_ = version_of(t);
  if (!t.has_storage()) return;
  storage_ = c10::weak_intrusive_ptr<c10::StorageImpl>(t.storage().getWeakStorageImpl());
  storage_address_ = t.storage().unsafeGetStorageImpl();
  storage_bytes_ = t.storage().nbytes();
  data_ = static_cast<const char*>(t.const_data_ptr());
  if (!data_ || t.numel() == 0) return;
  bytes_ = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize());
  if (t.device().is_cpu() && detection != Detection::accesses) watch_memory(t, tracker);
  else track_accesses(t);
}

void Watch::watch_memory(const at::Tensor& t, WriteTracker& tracker) {
  const bool small = detection == Detection::copy || (detection == Detection::automatic && bytes_ <= kSmall);
  if (small) head_ = bytes_;
  else if (detection != Detection::digest && !may_be_pinned(t)) track_data(tracker);
  if (!small && !tracked_) digest_ = digest_of(data_, bytes_);
  copy_.assign(data_, data_ + head_);
  copy_.insert(copy_.end(), data_ + bytes_ - tail_, data_ + bytes_);
}

void Watch::track_data(WriteTracker& tracker) {
  tracked_ = tracker.track(data_, bytes_);
  if (!tracked_) return;
  writes_ = tracked_->writes;
  head_ = tracked_->inner.first - reinterpret_cast<Address>(data_);
  tail_ = reinterpret_cast<Address>(data_) + bytes_ - tracked_->inner.end;
}

void Watch::track_accesses(const at::Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  if (!Accesses::kKnown) return;
  if (!is_exposed(storage)) accesses_ = Accesses::track(storage);
  if (!accesses_) device_copy_ = bytes_of(t, bytes_).clone();
}

bool Watch::has_same_device_data(const at::Tensor& t) const {
  if (accesses_ && !accesses_->any()) return true;
  if (accesses_) {
    expose(t.storage().unsafeGetStorageImpl());
    return false;
  }
  if (t.is_cuda() && cuda_is_capturing(cuda_stream(t.get_device()))) return true;  // nothing can be read
  return at::equal(bytes_of(t, bytes_), device_copy_);
}

bool Watch::has_copied_data() const {
  return std::memcmp(copy_.data(), data_, head_) == 0 &&
         std::memcmp(copy_.data() + head_, data_ + bytes_ - tail_, tail_) == 0;
}

bool Watch::has_same_data(const at::Tensor& t) const {
  if (accesses_ || device_copy_.defined()) return has_same_device_data(t);
  if (!t.device().is_cpu()) return true;
  if (!tracked_) return head_ == bytes_ ? has_copied_data() : digest_of(data_, bytes_) == digest_;
  return !tracked_->lost && tracked_->writes == writes_ && (!tracked_->edges_written || has_copied_data());
}

bool Watch::holds(const at::Tensor& t) const {
  if (t.unsafeGetTensorImpl() != tensor_address_ || version_of(t) != version_) return false;
  if (!t.has_storage()) return storage_address_ == nullptr;
  return t.storage().unsafeGetStorageImpl() == storage_address_ && t.storage().nbytes() == storage_bytes_ &&
         t.const_data_ptr() == data_ && (bytes_ == 0 || has_same_data(t));
}

Watches::Watches(const std::vector<const at::Tensor*>& tensors) {
  WriteTracker tracker;
  std::vector<std::shared_ptr<Tracked>> tracked;
  for (const at::Tensor* t : tensors) {
    watches_.emplace_back(*t, tracker);
    if (watches_.back().tracked()) tracked.push_back(watches_.back().tracked());
  }
  tracked_ = TrackedSet(std::move(tracked));
}

}  // namespace framesmith
