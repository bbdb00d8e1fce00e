#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace framesmith {
namespace {

constexpr size_t kAlignment = 64, kHugePage = size_t{2} << 20;
constexpr size_t kMostBytes = size_t{1} << 46;

size_t rounded(size_t bytes) { return bytes ? (bytes + kAlignment - 1) / kAlignment * kAlignment : kAlignment; }

}  // namespace

void Free::operator()(char* p) const { std::free(p); }

Memory memory(size_t bytes) {
  if (bytes > kMostBytes) throw std::bad_alloc();
  const size_t alignment = bytes < kHugePage ? kAlignment : kHugePage, size = rounded(bytes);
  Memory made(static_cast<char*>(std::aligned_alloc(alignment, size)));
  if (!made) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(made.get(), size, MADV_HUGEPAGE);  // one fault for each of them, not 512
  return made;
}

char* Blocks::take(size_t bytes) {
  const auto found = idle_.lower_bound(bytes);
  if (found != idle_.end() && found->first / 2 <= bytes) {
    char* block = found->second;
    idle_.erase(found);
    return block;
  }
  owned_.push_back(memory(bytes));
  char* block = owned_.back().get();
  sizes_.emplace(block, rounded(bytes));
  return block;
}

void Blocks::give(char* block) { idle_.emplace(sizes_.at(block), block); }

}  // namespace framesmith
