#include "memory.h"

#include <cstdlib>
#include <new>

namespace framesmith {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMostBytes = size_t{1} << 46;

size_t rounded(size_t bytes) { return bytes ? (bytes + kAlignment - 1) / kAlignment * kAlignment : kAlignment; }

}  // namespace

void Free::operator()(char* p) const { std::free(p); }

Memory memory(size_t bytes) {
  if (bytes > kMostBytes) throw std::bad_alloc();
  Memory made(static_cast<char*>(std::aligned_alloc(kAlignment, rounded(bytes))));
  return made ? std::move(made) : throw std::bad_alloc();
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
