#include "graph_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <vector>

namespace framesmith {
namespace {

constexpr size_t kHuge = size_t{2} << 20;      // a transparent huge page
constexpr size_t kSmallest = size_t{64} << 10;  // smaller outputs come from the ordinary allocator
constexpr size_t kLarge = size_t{1} << 20;      // from here on a segment is made for a block
constexpr size_t kHeader = 64;                  // keeps the data 64-byte aligned
constexpr size_t kStep = 256;                   // block sizes are multiples of it

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

// What stands before the data of a block. Blocks of a segment lie behind each other; no two neighbours are free.
struct Block {
  size_t bytes;  // with the header
  Block *before, *after;
  class Pool* pool;
  bool free;

  bool is_segment() const { return !before && !after; }
};
static_assert(sizeof(Block) <= kHeader);

struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const { return a->bytes != b->bytes ? a->bytes < b->bytes : a < b; }
  bool operator()(const Block* a, size_t bytes) const { return a->bytes < bytes; }
};

// Best fit over segments that are kept when they are free: no page faults. Never more is asked of the system while free segments could be
// given back for it, so what is held follows the most that lived at once.
class Pool {
 public:
  explicit Pool(size_t segment) : segment_(segment) {}

  Block* take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = free_.lower_bound(bytes);
    Block* block = found == free_.end() ? fresh(bytes) : *found;
    if (found != free_.end()) unlist(block);
    if (block->bytes - bytes >= kSmallest) list(split(block, bytes));
    return block;
  }

  void give(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (block->after && block->after->free) merge(block);
    if (block->before && block->before->free) merge(block = block->before);
    list(block);
    if (idle_ > limit()) drop(idle_ - limit());
  }

  size_t trim() {
    std::lock_guard<std::mutex> lock(mutex_);
    return drop(idle_);
  }

  size_t idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return idle_;
  }

 private:
  static size_t limit() {
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE)) / 8;
    return bytes;
  }

  void list(Block* block) {
    block->free = true;
    free_.insert(block);
    idle_ += block->bytes;
  }

  void unlist(Block* block) {
    free_.erase(block);
    idle_ -= block->bytes;
    block->free = false;
  }

  Block* split(Block* block, size_t bytes) {  // what is left of it
    auto* rest = new (reinterpret_cast<char*>(block) + bytes) Block{block->bytes - bytes, block, block->after, this, false};
    if (rest->after) rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
    return rest;
  }

  void merge(Block* block) {  // with the one after; neither is listed then
    Block* next = block->after;
    for (Block* one : {block, next})
      if (one->free) unlist(one);
    block->bytes += next->bytes;
    block->after = next->after;
    if (block->after) block->after->before = block;
  }

  Block* fresh(size_t bytes) {
    drop(bytes);
    const size_t size = std::max(bytes, segment_);
    return new (allocate_pages(size)) Block{size, nullptr, nullptr, this, false};
  }

  size_t drop(size_t wanted) {  // free segments, the largest first; how much that was
    size_t freed = 0;
    for (auto at = free_.end(); at != free_.begin() && freed < wanted;) {
      Block* block = *--at;
      if (!block->is_segment()) continue;
      freed += block->bytes;
      idle_ -= block->bytes;
      at = free_.erase(at);
      std::free(block);
    }
    return freed;
  }

  const size_t segment_;
  std::mutex mutex_;
  std::set<Block*, BySize> free_;
  size_t idle_ = 0;
};

class OutputAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kSmallest) return c10::GetCPUAllocator()->allocate(bytes);
    const size_t total = (bytes + kHeader + kStep - 1) / kStep * kStep;
    Block* block = (total < kLarge ? small_ : large_).take(total);
    return {reinterpret_cast<char*>(block) + kHeader, block, &OutputAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  size_t trim() { return small_.trim() + large_.trim(); }
  size_t idle() { return small_.idle() + large_.idle(); }

  static OutputAllocator& get() {
    static auto* allocator = new OutputAllocator();
    return *allocator;
  }

 private:
  static void release(void* context) {  // from any thread, with or without the interpreter's lock
    auto* block = static_cast<Block*>(context);
    block->pool->give(block);
  }

  Pool small_{2 * kLarge}, large_{0};
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
  size_t freed = OutputAllocator::get().trim();
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
