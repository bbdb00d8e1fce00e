#include "access_tracking.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace framesmith {
namespace {

// In a template, so that a PyTorch without these hooks is not asked for them.
template <typename Storage>
constexpr bool kHasHooks = requires(Storage* s) { s->has_materializer(); };

// False where there is none, or it is taken.
template <typename Storage>
bool set_hook(Storage* storage, void (*function)(c10::StorageImpl*)) {
  if constexpr (kHasHooks<Storage>) {
    if (storage->has_materializer()) return false;
    storage->set_materializer(function);
    return true;
  }
  return false;
}

using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

std::mutex mutex;

auto& tracked() {
  static auto* all = new std::unordered_multimap<const c10::StorageImpl*, Accesses*>();
  return *all;
}

// Storages whose hook is ours.
auto& hooked() {
  static auto* all = new std::unordered_map<const c10::StorageImpl*, Weak>();
  return *all;
}

std::vector<Weak>& exposed() {
  static auto* all = new std::vector<Weak>();
  return *all;
}

Weak weak(c10::StorageImpl* storage) { return Weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)); }

}  // namespace

const bool Accesses::kKnown = kHasHooks<c10::StorageImpl>;

Accesses::Accesses(c10::StorageImpl* storage) : storage_(storage) {
  std::lock_guard<std::mutex> lock(mutex);
  tracked().emplace(storage, this);
}

Accesses::~Accesses() {
  std::lock_guard<std::mutex> lock(mutex);
  auto [it, end] = tracked().equal_range(storage_);
  while (it->second != this) ++it;
  tracked().erase(it);
}

bool Accesses::hook(c10::StorageImpl* storage) {
  std::lock_guard<std::mutex> lock(mutex);
  if (hooked().contains(storage)) return true;
  std::erase_if(hooked(), [](const auto& known) { return known.second.expired(); });
  if (!set_hook(storage, &Accesses::note)) return false;
  hooked().emplace(storage, weak(storage));
  return true;
}

void Accesses::note(c10::StorageImpl* storage) {
  std::lock_guard<std::mutex> lock(mutex);
  hooked().erase(storage);
  auto [it, end] = tracked().equal_range(storage);
  for (; it != end; ++it) it->second->any_ = true;
}

std::unique_ptr<Accesses> Accesses::track(c10::StorageImpl* storage) {
  auto made = std::make_unique<Accesses>(storage);  // before the hook: an access in between is noted
  return hook(storage) ? std::move(made) : nullptr;
}

void expose(c10::StorageImpl* storage) {
  std::erase_if(exposed(), [](const Weak& known) { return known.expired(); });
  exposed().push_back(weak(storage));
}

bool is_exposed(const c10::StorageImpl* storage) {
  return std::any_of(exposed().begin(), exposed().end(),
                     [&](const Weak& known) { return known._unsafe_get_target() == storage; });
}

}  // namespace framesmith
