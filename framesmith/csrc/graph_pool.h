// Memory that compiled graphs keep for large values: blocks of one reserved range of addresses. Pages come and go.
//
// Blocks lie behind each other and free neighbours are one, so addresses never run out for want of a wide enough gap;
// and idle pages are kept, so that they are not zeroed again. Before the pool would hold more pages than ever lived at
// once, idle ones move to where pages are missing, or go back to the system. What is held thus has the peak of what
// lives, whatever the order of sizes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

namespace framesmith {

struct Block {
  size_t first, count;      // pages
  Block *before, *after;    // neighbours; no two of them are free
  bool free;
};

class Pool {
 public:
  static Pool& get();  // never destroyed: the process ends first

  // At least `bytes`, aligned to a page; null when the system has no such range, or no memory.
  Block* take(size_t bytes);
  void give(Block* block);
  char* address(const Block* block) const { return base_ + block->first * kPage; }

  // So many bytes more, or fewer, live elsewhere in the pool's stead: what operators return. They count in the peak.
  void outside(ptrdiff_t bytes);

  // So many bytes are about to be used elsewhere, for a while: idle pages make room if the peak would rise otherwise.
  void expect(size_t bytes);

  size_t trim();  // give back all idle pages, and forget how many lived; bytes
  size_t idle();  // bytes

 private:
  static constexpr size_t kPage = 4096;
  struct BySize {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const {
      return a->count != b->count ? a->count < b->count : a->first < b->first;
    }
    bool operator()(const Block* a, size_t count) const { return a->count < count; }
  };

  Pool();
  static void outlive_forks();
  Block* best(size_t count, size_t& missing) const;
  void list(Block* block);
  void cut(Block* block, size_t count);
  void merge(Block* block);
  size_t present(size_t first, size_t count) const;                // pages that are there
  size_t next(size_t first, size_t end, bool there) const;         // the first page that is, or is not, there; or `end`
  size_t last(size_t first, size_t end, bool there) const;         // behind the last one; or `first`
  void mark(size_t first, size_t end, bool there);
  bool fill(size_t first, size_t count);
  size_t move(size_t from, size_t to, const Block* taker);
  size_t empty(Block* block, size_t wanted, const Block* taker);   // up to so many pages; how many
  size_t drop(size_t wanted, const Block* taker = nullptr);
  // For a block of so many pages, and so many new ones, in `taker` or elsewhere.
  void make_room(size_t here, size_t fresh, const Block* taker = nullptr);

  std::mutex mutex_;
  char* base_ = nullptr;
  size_t top_ = 0;  // pages from here on were never there
  size_t limit_ = 0;                // pages to keep idle
  std::vector<uint64_t> there_;     // a bit for each page
  std::set<Block*, BySize> free_;
  size_t held_ = 0, live_ = 0, outside_ = 0, high_ = 0;  // pages; `high_` of the last two together
};

}  // namespace framesmith
