#include "graph_pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

namespace framesmith {
namespace {

constexpr size_t kRange = 4;       // addresses reserved, over the machine's memory
constexpr size_t kIdlePart = 8;    // the machine's memory over what is kept idle
constexpr size_t kSpare = 64;      // the peak over what is left free of idle pages, for what no one tells the pool of
constexpr size_t kWord = 64;
constexpr size_t kHuge = 512;      // pages of a transparent huge page
constexpr size_t kFewest = 16;     // pages that move together
constexpr size_t kPieces = 4096;   // what is held over the least that moves: each is a mapping, of Linux's 65,530
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

// The bits of word `w` that stand for pages from `first` to before `end`.
uint64_t mask(size_t w, size_t first, size_t end) {
  uint64_t bits = ~uint64_t{0};
  if (w == first / kWord) bits &= ~uint64_t{0} << first % kWord;
  if (w == end / kWord) bits &= (uint64_t{1} << end % kWord) - 1;
  return bits;
}

}  // namespace

Pool& Pool::get() {
  static auto* pool = new Pool();
  return *pool;
}

// A thread that holds the lock when another forks does not go on in the child: so the one that forks waits for it.
void Pool::outlive_forks() {
  pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().mutex_.unlock(); });
}

Pool::Pool() {
  const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE)) /
                        kPage;
  const size_t bytes = (kRange * memory + kHuge) * kPage, huge = kHuge * kPage;
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return;
  base_ = reinterpret_cast<char*>((reinterpret_cast<size_t>(range) + huge - 1) / huge * huge);
  limit_ = memory / kIdlePart;
  there_.resize(kRange * memory / kWord + 1);
  free_.insert(new Block{0, kRange * memory, nullptr, nullptr, true});
  outlive_forks();
}

Block* Pool::take(size_t bytes) {
  const size_t count = std::max<size_t>(1, (bytes + kPage - 1) / kPage);
  std::lock_guard<std::mutex> lock(mutex_);
  size_t missing = 0;
  Block* block = best(count, missing);
  if (!block) return nullptr;
  free_.erase(block);
  block->free = false;
  cut(block, count);
  make_room(count, missing, block);
  live_ += count;
  if (fill(block->first, count)) return block;
  list(block);
  return nullptr;
}

void Pool::give(Block* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  list(block);
  if (held_ - live_ > limit_) drop(held_ - live_ - limit_);
}

void Pool::outside(ptrdiff_t bytes) {
  const ptrdiff_t pages = bytes / static_cast<ptrdiff_t>(kPage);
  std::lock_guard<std::mutex> lock(mutex_);
  outside_ += static_cast<size_t>(pages);
  if (pages > 0) make_room(0, 0);
}

void Pool::expect(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  make_room(0, bytes / kPage);
}

void Pool::make_room(size_t here, size_t fresh, const Block* taker) {
  high_ = std::max(high_, live_ + here + outside_);
  const size_t room = high_ - high_ / kSpare, wanted = held_ + outside_ + fresh;
  const size_t idle = held_ - std::min(held_, live_ + here - std::min(here, fresh));
  if (wanted > room) drop(std::min(wanted - room, idle), taker);
}

size_t Pool::trim() {
  std::lock_guard<std::mutex> lock(mutex_);
  high_ = live_ + outside_;
  return drop(held_ - live_) * kPage;
}

size_t Pool::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return (held_ - live_) * kPage;
}

// The free block that lacks the fewest pages, of these the smallest.
Block* Pool::best(size_t count, size_t& missing) const {
  Block* found = nullptr;
  for (auto at = free_.lower_bound(count); at != free_.end(); ++at) {
    const size_t lacks = count - present((*at)->first, count);
    if (found && lacks >= missing) continue;
    found = *at;
    missing = lacks;
    if (lacks == 0) break;
  }
  return found;
}

// A block that was in use is free.
void Pool::list(Block* block) {
  live_ -= block->count;
  if (block->after && block->after->free) merge(block);
  if (block->before && block->before->free) merge(block = block->before);
  block->free = true;
  free_.insert(block);
}

// What is left of a block that is not listed becomes a free one.
void Pool::cut(Block* block, size_t count) {
  if (block->count == count) return;
  auto* rest = new Block{block->first + count, block->count - count, block, block->after, true};
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->count = count;
  free_.insert(rest);
}

// With the block after it; neither is listed then.
void Pool::merge(Block* block) {
  Block* next = block->after;
  for (Block* one : {block, next})
    if (one->free) free_.erase(one);
  block->count += next->count;
  block->after = next->after;
  if (block->after) block->after->before = block;
  delete next;
}

size_t Pool::present(size_t first, size_t count) const {
  size_t found = 0;
  for (size_t w = first / kWord; w * kWord < first + count; ++w)
    found += static_cast<size_t>(std::popcount(there_[w] & mask(w, first, first + count)));
  return found;
}

size_t Pool::next(size_t first, size_t end, bool there) const {
  for (size_t w = first / kWord; w * kWord < end; ++w)
    if (const uint64_t bits = (there ? there_[w] : ~there_[w]) & mask(w, first, end))
      return w * kWord + static_cast<size_t>(std::countr_zero(bits));
  return end;
}

size_t Pool::last(size_t first, size_t end, bool there) const {
  for (size_t w = (end + kWord - 1) / kWord; w-- > first / kWord;)
    if (const uint64_t bits = (there ? there_[w] : ~there_[w]) & mask(w, first, end))
      return (w + 1) * kWord - static_cast<size_t>(std::countl_zero(bits));
  return first;
}

void Pool::mark(size_t first, size_t end, bool there) {
  for (size_t w = first / kWord; w * kWord < end; ++w)
    there_[w] = there ? there_[w] | mask(w, first, end) : there_[w] & ~mask(w, first, end);
  held_ = there ? held_ + (end - first) : held_ - (end - first);
  if (there) top_ = std::max(top_, end);
}

bool Pool::fill(size_t first, size_t count) {
  const size_t end = first + count;
  for (size_t from = next(first, end, false); from < end;) {
    const size_t to = next(from, end, true);
    char* start = base_ + from * kPage;
    const size_t bytes = (to - from) * kPage;
    if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
      return false;
    madvise(start, bytes, MADV_HUGEPAGE);
    mark(from, to, true);
    from = next(to, end, false);
  }
  return true;
}

// Pages that end at `to`, of those from `from`, go with what they hold to the first gap of a block: without a fault and
// without zeros. How many. Where they were stays mapped, so no other mapping of the process can come there.
size_t Pool::move(size_t from, size_t to, const Block* taker) {
  const size_t end = taker->first + taker->count, at = next(taker->first, end, false);
  const size_t gap = next(at, end, true) - at, count = std::min(gap, to - from), bytes = count * kPage;
  // a gap that holds a huge page is filled with one: that is one fault, and faster to use than pages that moved
  if (count < std::max(kFewest, held_ / kPieces) || (at + kHuge - 1) / kHuge * kHuge + kHuge <= at + gap) return 0;
  if (mremap(base_ + (to - count) * kPage, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
             base_ + at * kPage) == MAP_FAILED)
    return 0;
  mark(at, at + count, true);
  return count;
}

// From its end: blocks are taken from the front of a free one.
size_t Pool::empty(Block* block, size_t wanted, const Block* taker) {
  size_t gone = 0;
  for (size_t to = last(block->first, std::min(block->first + block->count, top_), true);
       to > block->first && gone < wanted;) {
    size_t from = std::max(last(block->first, to, false), to - std::min(to, wanted - gone));
    if (const size_t moved = taker ? move(from, to, taker) : 0) from = to - moved;
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(base_ + from * kPage, (to - from) * kPage, PROT_NONE, flags, -1, 0) == MAP_FAILED) break;
    mark(from, to, false);
    gone += to - from;
    to = last(block->first, from, true);
  }
  return gone;
}

// Idle pages, of the largest blocks first, to the gaps of a block if they fit, else back to the system; how many.
size_t Pool::drop(size_t wanted, const Block* taker) {
  size_t gone = 0;
  for (auto at = free_.rbegin(); at != free_.rend() && gone < wanted; ++at) gone += empty(*at, wanted - gone, taker);
  return gone;
}

}  // namespace framesmith
