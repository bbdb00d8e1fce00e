#include "graph_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace framesmith {
namespace {

constexpr size_t kHuge = size_t{2} << 20;         // a transparent huge page
constexpr size_t kSmallest = size_t{64} << 10;    // smaller outputs come from the ordinary allocator
constexpr size_t kHeader = 64;                    // before each block: its size class; keeps the data 64-byte aligned
constexpr size_t kIdleLimit = size_t{256} << 20;  // bytes of free output blocks kept

char* allocate_pages(size_t bytes) {
  void* p = nullptr;
  bool huge = bytes >= 2 * kHuge;
  TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&p, huge ? kHuge : 64, bytes) == 0, "framesmith: cannot allocate ", bytes, " bytes");
  if (huge) madvise(p, bytes & ~(kHuge - 1), MADV_HUGEPAGE);
  return static_cast<char*>(p);
}

// Arenas not in use; guarded by the interpreter's lock. Never destroyed: the process ends first.
std::vector<Arena>& arenas() {
  static auto* pool = new std::vector<Arena>();
  return *pool;
}

// Eight classes for each power of two: at most an eighth is wasted.
size_t size_class(size_t bytes) {
  size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

struct Idle {
  size_t bytes;
  char* block;
};

class OutputAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kSmallest) return c10::GetCPUAllocator()->allocate(bytes);
    size_t total = size_class(bytes + kHeader);
    char* block = take(total);
    if (!block) block = allocate_pages(total);
    *reinterpret_cast<size_t*>(block) = total;
    return {block + kHeader, block, &OutputAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  size_t trim(size_t limit) {
    std::lock_guard<std::mutex> lock(mutex_);
    return trim_locked(limit);
  }

  size_t idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return idle_bytes_;
  }

  static OutputAllocator& get() {
    static auto* allocator = new OutputAllocator();
    return *allocator;
  }

 private:
  char* take(size_t total) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = idle_.size(); i-- > 0;) {
      if (idle_[i].bytes != total) continue;
      char* block = idle_[i].block;
      idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
      idle_bytes_ -= total;
      return block;
    }
    return nullptr;
  }

  static void release(void* context) {  // from any thread, with or without the interpreter's lock
    auto* block = static_cast<char*>(context);
    size_t total = *reinterpret_cast<size_t*>(block);
    OutputAllocator& self = get();
    std::lock_guard<std::mutex> lock(self.mutex_);
    self.idle_.push_back({total, block});
    self.idle_bytes_ += total;
    if (self.idle_bytes_ > kIdleLimit) self.trim_locked(kIdleLimit);
  }

  size_t trim_locked(size_t limit) {  // the longest idle go first
    size_t freed = 0, count = 0;
    while (idle_bytes_ > limit) {
      std::free(idle_[count].block);
      freed += idle_[count].bytes;
      idle_bytes_ -= idle_[count++].bytes;
    }
    idle_.erase(idle_.begin(), idle_.begin() + static_cast<std::ptrdiff_t>(count));
    return freed;
  }

  std::mutex mutex_;
  std::vector<Idle> idle_;
  size_t idle_bytes_ = 0;
};

}  // namespace

Arena take_arena(size_t bytes) {
  if (bytes == 0) return {};
  auto& pool = arenas();
  for (size_t i = pool.size(); i-- > 0;) {
    if (pool[i].bytes < bytes) continue;
    Arena found = pool[i];
    pool.erase(pool.begin() + static_cast<std::ptrdiff_t>(i));
    return found;
  }
  size_t unit = bytes >= 2 * kHuge ? kHuge : 4096;
  size_t rounded = (bytes + unit - 1) / unit * unit;
  if (!pool.empty()) {  // grow: the new one serves the old one's graphs as well
    std::free(pool.back().base);
    pool.pop_back();
  }
  return {allocate_pages(rounded), rounded};
}

void give_arena(Arena arena) {
  if (arena.base) arenas().push_back(arena);
}

c10::Allocator* output_allocator() { return &OutputAllocator::get(); }

size_t trim_memory() {
  size_t freed = OutputAllocator::get().trim(0);
  for (Arena& a : arenas()) {
    freed += a.bytes;
    std::free(a.base);
  }
  arenas().clear();
  return freed;
}

size_t idle_memory() {
  size_t bytes = OutputAllocator::get().idle();
  for (const Arena& a : arenas()) bytes += a.bytes;
  return bytes;
}

}  // namespace framesmith
