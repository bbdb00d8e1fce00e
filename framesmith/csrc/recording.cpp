#include "recording.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <tuple>

namespace framesmith {

// -------------------------------------------------------------------------------------------------------------- memory

static std::atomic<int64_t>& bytes_on(int device) {
  static std::array<std::atomic<int64_t>, 129> counts{};  // 0: the CPU
  return counts.at(static_cast<size_t>(device + 1));
}

static void copy_bytes(int device, void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0 || to == from) return;
  if (device < 0) std::memcpy(to, from, bytes);
  else copy_on_cuda(to, from, bytes, stream);
}

static void let_go(void* storage) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

bool is_at_home(const at::Tensor& t) { return t.has_storage() && t.storage().data_ptr().get_deleter() == &let_go; }

Home::Home(c10::Storage memory, int device, bool counted)
    : memory_(std::move(memory)), given_(c10::intrusive_ptr<c10::StorageImpl>()), device_(device),
      counted_(counted ? bytes() : 0) {
  bytes_on(device_) += static_cast<int64_t>(counted_);
}

Home::~Home() { bytes_on(device_) -= static_cast<int64_t>(counted_); }

c10::Storage Home::give() {
  c10::StorageImpl* impl = memory_.unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(impl);  // the memory lives as long as what is given out
  c10::DataPtr pointer(impl->mutable_data(), impl, &let_go, impl->device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), impl->nbytes(), std::move(pointer), impl->allocator(), /*resizable=*/true);
  given_ = c10::weak_intrusive_ptr<c10::StorageImpl>(storage);
  return c10::Storage(std::move(storage));
}

void Home::move_out(void* stream) {
  c10::intrusive_ptr<c10::StorageImpl> storage = given_.lock();
  given_.reset();
  if (!storage || storage->data() != memory_.data()) return;  // its owner has given it other memory
  c10::Allocator* allocator = storage->allocator() ? storage->allocator() : c10::GetAllocator(storage->device_type());
  c10::DataPtr own = allocator->allocate(storage->nbytes());
  copy_bytes(device_, own.get(), memory_.data(), std::min(storage->nbytes(), bytes()), stream);
  storage->set_data_ptr_noswap(std::move(own));
}

// ----------------------------------------------------------------------------------------------------------- recording

Recording::Recording(std::unique_ptr<Frame> frame, Occasion occasion, int number)
    : frame_(std::move(frame)), occasion_(std::move(occasion)), number_(number) {}

Recording::~Recording() {
  for (const auto& home : homes_) home->retired = true;
  bytes_on(frame_->plan.device) -= static_cast<int64_t>(copied_bytes());
}

void Recording::place_inputs(const std::vector<bool>& copied) {
  c10::InferenceMode normal(false);  // these tensors outlive the call
  Frame& f = *frame_;
  copied_.reserve(f.plan.input_values.size());
  windows_.reserve(f.plan.input_values.size());
  for (int v : f.plan.input_values) {
    const Value& value = f.plan.values[v];
    if (f.refs[v]->device().is_cpu() != (f.plan.device < 0)) continue;  // no operator that can be recorded reads it
    if (!copied[v]) {
      fixed_.emplace_back(v, f.pointers[v]);
      if (f.plan.device >= 0) continue;
      const Geometry& g = f.geometry[v];  // there, whoever plays the recording runs operators again, at these addresses
      windows_.push_back(at::from_blob(f.pointers[v], g.size, g.stride, at::TensorOptions().dtype(value.dtype)));
      f.refs[v] = &windows_.back();
      continue;
    }
    const size_t bytes = f.geometry[v].bytes;
    copied_.push_back({v, bytes, new_tensor(f.geometry[v], value.dtype, f.plan.device >= 0), value.written});
    f.refs[v] = &copied_.back().memory;
    f.pointers[v] = copied_.back().memory.mutable_data_ptr();
    bytes_on(f.plan.device) += static_cast<int64_t>(bytes);
  }
}

void Recording::place_results() {
  c10::InferenceMode normal(false);  // these tensors outlive the call
  for (int v : frame_->plan.given_values)
    if (frame_->plan.values[v].kind == Kind::Output) frame_->allocate(v);
}

void Recording::fill(const Frame& call) {
  for (const Copied& c : copied_)
    copy_bytes(frame_->plan.device, c.memory.mutable_data_ptr(), call.pointers[c.value], c.bytes, occasion_.stream);
}

void Recording::keep_results() {
  Frame& f = *frame_;
  std::map<c10::StorageImpl*, int> known;
  for (int v : f.plan.given_values) {
    const at::Tensor& t = f.tensors[v];
    if (!t.defined()) {
      given_.push_back({v, -1, at::kFloat, {}, {}, 0});
      continue;
    }
    auto [at, added] = known.try_emplace(t.storage().unsafeGetStorageImpl(), static_cast<int>(homes_.size()));
    if (added)
      homes_.push_back(std::make_shared<Home>(t.storage(), f.plan.device, f.plan.values[v].kind == Kind::Output));
    given_.push_back({v, at->second, t.scalar_type(), t.sizes().vec(), t.strides().vec(), t.storage_offset()});
  }
  f.recording = false;
  if (f.plan.device >= 0) f.clear_call();  // the pool has back what is not of the results
}

void Recording::bring_home() {
  const Frame& f = *frame_;
  for (const Given& g : given_) {
    const Home* home = g.home < 0 ? nullptr : homes_[g.home].get();
    if (home && f.tensors[g.value].defined())
      std::memmove(const_cast<char*>(home->start()), f.tensors[g.value].storage().data(), home->bytes());
  }
}

// Recordings by pool: those that may write where newer ones keep their results.
using Pools = std::map<std::tuple<int, void*, int>, std::vector<std::weak_ptr<Recording>>>;

static Pools& pools() {
  static auto* all = new Pools();
  return *all;
}

int64_t recorded_bytes(int device, bool idle) {
  if (!idle) return bytes_on(device);
  int64_t bytes = 0;
  for (const auto& [key, recordings] : pools())
    for (const auto& one : recordings)
      if (auto recording = one.lock(); recording && std::get<0>(key) == device) bytes += recording->idle_bytes();
  return bytes;
}

static bool is_within(const std::vector<Segment>& pool, const Home& home) {
  return std::any_of(pool.begin(), pool.end(), [&](const Segment& s) {
    return home.start() < s.start + s.bytes && s.start < home.start() + home.bytes();
  });
}

void Recording::settle(std::vector<Segment> pool, const std::shared_ptr<Recording>& self) {
  pool_ = std::move(pool);
  auto& others = pools()[{frame_->plan.device, occasion_.stream, number_}];
  std::erase_if(others, [](const auto& other) { return other.expired(); });
  for (const auto& other : others) {
    auto older = other.lock();
    std::erase_if(older->endangered_, [](const auto& home) { return home->retired && !home->alive(); });
    for (const auto& home : homes_)
      if (is_within(older->pool_, *home)) older->endangered_.push_back(home);
  }
  others.push_back(self);
}

bool Recording::takes(const Frame& call, const Occasion& occasion) const {
  if (!(occasion == occasion_)) return false;
  for (auto [v, address] : fixed_)
    if (call.pointers[v] != address) return false;
  for (const Copied& c : copied_)
    if (call.refs[c.value]->device() != c.memory.device()) return false;
  return true;
}

static size_t bytes_where(const std::vector<std::shared_ptr<Home>>& homes, bool alive) {
  size_t bytes = 0;
  for (const auto& home : homes) bytes += home->alive() == alive ? home->bytes() : 0;
  return bytes;
}

size_t Recording::copied_bytes() const {
  size_t bytes = 0;
  for (const Copied& c : copied_) bytes += c.bytes;
  return bytes;
}

size_t Recording::cost() const { return bytes_where(homes_, true) + bytes_where(endangered_, true) + copied_bytes(); }

bool Recording::would_move() const { return bytes_where(homes_, true) + bytes_where(endangered_, true) > 0; }

int64_t Recording::idle_bytes() const { return static_cast<int64_t>(bytes_where(homes_, false) + copied_bytes()); }

bool Recording::is_crowded() const {
  const size_t alive = bytes_where(homes_, true);
  return alive > 0 && alive >= bytes_where(homes_, false);
}

// -------------------------------------------------------------------------------------------------------------- replay

void Recording::make_room(void* stream) {
  for (const auto* homes : {&homes_, &endangered_})
    for (const auto& home : *homes)
      if (C10_UNLIKELY(home->alive())) home->move_out(stream);
}

void Recording::replay(Frame& call) {
  fill(call);
  make_room(occasion_.stream);
  replays++;
  if (C10_LIKELY(executable != nullptr))
    check_cuda(launch_cuda_graph(executable, occasion_.stream), "cannot launch a CUDA graph");
  else play();
  finish(call);
}

static bool is_dense(const at::Tensor& t, size_t bytes) {
  return static_cast<size_t>(t.numel()) * t.element_size() == bytes;
}

void Recording::finish(Frame& call) {
  for (const Copied& c : copied_) {
    if (!c.written) continue;
    const at::Tensor& given = *call.refs[c.value];
    if (is_dense(c.memory, c.bytes))
      copy_bytes(frame_->plan.device, given.mutable_data_ptr(), c.memory.const_data_ptr(), c.bytes, occasion_.stream);
    else const_cast<at::Tensor&>(given).copy_(c.memory);  // what lies between its elements is not ours
  }
  give_results(call);
}

void Recording::give_results(Frame& call) {
  std::vector<c10::Storage> storages;
  storages.reserve(homes_.size());
  for (const auto& home : homes_) storages.push_back(home->give());
  for (const Given& g : given_) {
    at::Tensor& t = call.tensors[g.value];
    t = g.home < 0 ? at::Tensor() : tensor_on(storages[g.home], g.dtype, g.size, g.stride, g.offset);
    call.refs[g.value] = &t;
  }
  if (copies_results)
    for (const auto& home : homes_) home->move_out(occasion_.stream);  // nobody has seen them yet
}

}  // namespace framesmith
