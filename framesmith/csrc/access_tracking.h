// Accesses to a storage that may write, by PyTorch's account: whoever asks a tensor on it for an address to write to
// (an operator in place, an alias, an export) runs a hook of the storage's. Addresses that were given out before are
// not told of. The hook takes no interpreter's lock.
#pragma once
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>

namespace framesmith {

class Accesses {
 public:
  explicit Accesses(c10::StorageImpl* storage);
  ~Accesses();
  Accesses(const Accesses&) = delete;
  Accesses& operator=(const Accesses&) = delete;

  // Those from now on. Null where the storage's hook is taken, or PyTorch (before 2.13) has none.
  static std::unique_ptr<Accesses> track(c10::StorageImpl* storage);
  static const bool kKnown;  // whether PyTorch has such hooks

  bool any() const { return any_; }

 private:
  static bool hook(c10::StorageImpl* storage);  // whether it is ours
  static void note(c10::StorageImpl* storage);
  c10::StorageImpl* storage_;
  std::atomic<bool> any_{false};
};

// A storage that was accessed though no version rose: somebody may hold an address.
void expose(c10::StorageImpl* storage);
bool is_exposed(const c10::StorageImpl* storage);

}  // namespace framesmith
