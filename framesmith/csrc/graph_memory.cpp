#include "graph_memory.h"

#include "graph_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstdlib>
#include <vector>

namespace framesmith {
namespace {

constexpr size_t kHuge = size_t{2} << 20;       // a transparent huge page
constexpr size_t kSmallest = size_t{64} << 10;  // smaller outputs come from the ordinary allocator

char* allocate_pages(size_t bytes) {
  void* p = nullptr;
  bool huge = bytes >= 2 * kHuge;
  TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&p, huge ? kHuge : 64, bytes) == 0, "framesmith: cannot allocate ",
                   bytes, " bytes");
  if (huge) madvise(p, bytes & ~(kHuge - 1), MADV_HUGEPAGE);
  return static_cast<char*>(p);
}

// Arenas not in use; guarded by the interpreter's lock. Never destroyed: the process ends first.
std::vector<Arena>& arenas() {
  static auto* pool = new std::vector<Arena>();
  return *pool;
}

class OutputAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Block* block = bytes < kSmallest ? nullptr : Pool::get().take(bytes);
    if (!block) return c10::GetCPUAllocator()->allocate(bytes);
    return {Pool::get().address(block), block, &OutputAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void release(void* context) { Pool::get().give(static_cast<Block*>(context)); }  // from any thread
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

c10::Allocator* output_allocator() {
  static auto* allocator = new OutputAllocator();
  return allocator;
}

void count_result(ptrdiff_t bytes) {
  if (std::abs(bytes) >= static_cast<ptrdiff_t>(kSmallest)) Pool::get().outside(bytes);
}

void expect_results(size_t bytes) {
  if (bytes >= kSmallest) Pool::get().expect(2 * bytes);
}

size_t trim_memory() {
  size_t freed = Pool::get().trim();
  for (Arena& a : arenas()) {
    freed += a.bytes;
    std::free(a.base);
  }
  arenas().clear();
  return freed;
}

size_t idle_memory() {
  size_t bytes = Pool::get().idle();
  for (const Arena& a : arenas()) bytes += a.bytes;
  return bytes;
}

}  // namespace framesmith
