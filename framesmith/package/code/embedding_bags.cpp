#include <atomic>
#include <cstring>
#include <vector>

#include "package/code/operands.h"

namespace framesmith {
namespace {

struct Bag {
  const float* table;
  int64_t rows, width, padding;
  bool mean;
};

// The sum or mean of the rows of a table; false: an index is out of range.
template <class Index>
bool add(const Bag& b, const Index* indices, int64_t first, int64_t last, float* __restrict out) {
  std::memset(out, 0, static_cast<size_t>(b.width) * sizeof(float));
  int64_t live = 0;
  for (int64_t i = first; i < last; i++) {
    if (indices[i] < 0 || indices[i] >= b.rows) return false;
    if (indices[i] == b.padding) continue;
    live++;
    const float* row = b.table + indices[i] * b.width;
#pragma omp simd
    for (int64_t j = 0; j < b.width; j++) out[j] += row[j];
  }
  if (b.mean && live > 1)
    for (int64_t j = 0; j < b.width; j++) out[j] *= 1.0f / static_cast<float>(live);
  return true;
}

template <class Item> std::vector<Rows<Item>> dense(Operands operands) {
  std::vector<Rows<Item>> out;
  for (const Operand& t : operands) out.emplace_back(t, t.rank);
  return out;
}

}  // namespace

template <class Index>
int embedding_bags(Operands tables_, Operands indices_, Operands offsets_, bool mean, bool include_last,
                   int64_t padding, const Operand& out) {
  const auto tables = dense<float>(tables_);
  const auto indices = dense<Index>(indices_), offsets = dense<Index>(offsets_);
  const auto count = static_cast<int64_t>(tables.size());
  const int64_t bags = offsets[0].operand.size[0] - (include_last ? 1 : 0), width = out.size[2];
  std::atomic<bool> fine{true};
#pragma omp parallel for schedule(static) if (bags * count * width > 8192)
  for (int64_t b = 0; b < bags; b++)
    for (int64_t t = 0; t < count; t++) {
      const auto k = static_cast<size_t>(t);
      const Operand &table = tables[k].operand, &ids = indices[k].operand, &at = offsets[k].operand;
      const auto* starts = at.template as<const Index>();
      const int64_t first = starts[b], last = b + 1 < at.size[0] ? starts[b + 1] : ids.size[0];
      if (starts[0] != 0 || first < 0 || last > ids.size[0] ||
          !add(Bag{table.as<const float>(), table.size[0], width, padding, mean}, ids.template as<const Index>(), first,
               last, out.as<float>() + (b * count + t) * width))
        fine = false;
    }
  return fine ? 0 : 2;
}

template int embedding_bags<int64_t>(Operands, Operands, Operands, bool, bool, int64_t, const Operand&);
template int embedding_bags<int32_t>(Operands, Operands, Operands, bool, bool, int64_t, const Operand&);

}  // namespace framesmith
