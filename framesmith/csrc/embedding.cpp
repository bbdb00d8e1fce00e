// `framesmith::embedding_bags`: bags of several tables in one parallel loop: what is stacked later lies side by side.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "operators.h"

namespace framesmith {
namespace {
using at::Tensor;
using at::TensorList;

constexpr int64_t kAhead = 12;  // rows fetched before their turn: a table does not fit the cache
constexpr int64_t kLine = 16;  // floats of a cache line

struct Table {
  const float* rows;
  int64_t count, width, padding;
  bool mean;
};

void fetch(const Table& t, int64_t row) {
  if (row < 0 || row >= t.count) return;
  for (int64_t j = 0; j < t.width; j += kLine) __builtin_prefetch(t.rows + row * t.width + j);
}

typedef float Vector __attribute__((vector_size(64), aligned(4)));

// Columns [j, j + 16 * NV) of a bag: its rows added in registers.
template <int NV, class I>
void columns(const Table& t, const I* indices, int64_t first, int64_t last, int64_t j, float scale, float* out) {
  Vector sum[NV] = {};
  for (int64_t i = first; i < last; i++) {
    if (indices[i] == t.padding) continue;
    const Vector* row = reinterpret_cast<const Vector*>(t.rows + indices[i] * t.width + j);
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) sum[v] += row[v];
  }
#pragma GCC unroll 4
  for (int v = 0; v < NV; v++) reinterpret_cast<Vector*>(out + j)[v] = sum[v] * scale;
}

// Sums (or averages) the rows indices[first, last), but for `padding`; rows up to `stored` may be fetched ahead.
template <class I>
void bag(const Table& t, const I* indices, int64_t first, int64_t last, int64_t stored, float* __restrict out) {
  int64_t live = 0;
  for (int64_t i = first; i < last; i++) {
    if (i + kAhead < stored) fetch(t, indices[i + kAhead]);
    const int64_t row = indices[i];
    TORCH_CHECK_INDEX(row >= 0 && row < t.count,
                      "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be ", row);
    live += row != t.padding;
  }
  const float scale = t.mean && live > 1 ? 1.0f / static_cast<float>(live) : 1.0f;
  int64_t j = 0;
  for (; j + 64 <= t.width; j += 64) columns<4>(t, indices, first, last, j, scale, out);
  for (; j + 16 <= t.width; j += 16) columns<1>(t, indices, first, last, j, scale, out);
  for (; j < t.width; j++) {
    float sum = 0;
    for (int64_t i = first; i < last; i++)
      if (indices[i] != t.padding) sum += t.rows[indices[i] * t.width + j];
    out[j] = sum * scale;
  }
}

int64_t bags_of(const Tensor& offsets, bool include_last) { return offsets.size(0) - (include_last ? 1 : 0); }

template <class I>
void run(TensorList tables, TensorList indices, TensorList offsets, bool mean, bool include_last, int64_t padding,
         Tensor& out) {
  const int64_t bags = bags_of(offsets[0], include_last), count = static_cast<int64_t>(tables.size()),
                width = out.size(2);
  for (const Tensor& o : offsets) {
    const I* starts = o.const_data_ptr<I>();
    TORCH_CHECK(!o.numel() || starts[0] == 0,
                "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
                "However, got ", o.numel() ? starts[0] : I(0));
  }
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width * count));
  at::parallel_for(0, bags, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < count; t++) {
      const Table table{tables[t].const_data_ptr<float>(), tables[t].size(0), width, padding, mean};
      const I *ids = indices[t].const_data_ptr<I>(), *starts = offsets[t].const_data_ptr<I>();
      const int64_t stored = indices[t].size(0);
      for (int64_t b = begin; b < end; b++) {
        const int64_t first = starts[b], last = b + 1 < offsets[t].size(0) ? int64_t(starts[b + 1]) : stored;
        TORCH_CHECK(0 <= first && last <= stored, "embedding_bag: offsets beyond the indices");
        bag(table, ids, first, last, stored, out.data_ptr<float>() + (b * count + t) * width);
      }
    }
  });
}

Tensor bags_results(TensorList tables, TensorList, TensorList offsets, bool, bool include_last, int64_t) {
  return at::empty({bags_of(offsets[0], include_last), static_cast<int64_t>(tables.size()), tables[0].size(1)},
                   tables[0].options());
}

// `padding`: the row left out of each bag (-1: none).
void bags(TensorList tables_, TensorList indices_, TensorList offsets_, bool mean, bool include_last, int64_t padding,
          Tensor& out) {
  std::vector<Tensor> tables, indices, offsets;
  for (const Tensor& t : tables_) tables.push_back(t.contiguous());
  for (const Tensor& t : indices_) indices.push_back(t.contiguous());
  for (const Tensor& t : offsets_) offsets.push_back(t.contiguous());
  TORCH_CHECK(out.is_contiguous(), "framesmith: the result of embedding bags is dense");
  AT_DISPATCH_INDEX_TYPES(indices[0].scalar_type(), "framesmith::embedding_bags", [&] {
    run<index_t>(tables, indices, offsets, mean, include_last, padding, out);
  });
}

// ---- the gradient of a table from those of sums or means of its rows

struct Gradient {
  const float* bags;  // rows bag_stride apart
  int64_t bag_stride, bag_count, stored;
  Table table;  // its rows are written
};

// Rows [low, high) of the table: every thread looks at all indices. Those behind the last offset are in no bag; eager's
// means give them the last bag's gradient all the same.
template <class I>
void add_rows(const Gradient& g, const I* indices, const I* starts, int64_t start_count, int64_t low, int64_t high) {
  const Table& t = g.table;
  float* rows = const_cast<float*>(t.rows);
  std::fill(rows + low * t.width, rows + high * t.width, 0.0f);
  for (int64_t b = 0; b < g.bag_count; b++) {
    const int64_t first = starts[b],
                  end = b + 1 == (t.mean ? g.bag_count : start_count) ? g.stored : int64_t{starts[b + 1]},
                  last = std::max(first, end);
    TORCH_CHECK(0 <= first && last <= g.stored, "embedding_bag: offsets beyond the indices");
    const auto counts = [&](I i) { return i != t.padding; };
    const int64_t live = t.mean ? std::count_if(indices + first, indices + last, counts) : 1;
    const float scale = live > 1 ? 1.0f / static_cast<float>(live) : 1.0f;
    const float* __restrict from = g.bags + b * g.bag_stride;
    for (int64_t i = first; i < last; i++) {
      if (indices[i] < low || indices[i] >= high || indices[i] == t.padding) continue;
      float* __restrict to = rows + indices[i] * t.width;
      for (int64_t j = 0; j < t.width; j++) to[j] += from[j] * scale;
    }
  }
}

// `padding`: as above. Indices were looked at in the forward.
void bag_gradient(const Tensor& tangent_, const Tensor& indices_, const Tensor& offsets_, int64_t count, bool mean,
                  int64_t padding, Tensor& out) {
  const Tensor tangent = tangent_.stride(1) == 1 || tangent_.size(1) == 1 ? tangent_ : tangent_.contiguous();
  const Tensor indices = indices_.contiguous(), offsets = offsets_.contiguous();
  TORCH_CHECK(out.is_contiguous(), "framesmith: the gradient of a table is dense");
  const Gradient g{tangent.const_data_ptr<float>(), tangent.stride(0), tangent.size(0), indices.numel(),
                   {out.data_ptr<float>(), count, out.size(1), padding, mean}};
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, out.size(1)));
  AT_DISPATCH_INDEX_TYPES(indices.scalar_type(), "framesmith::embedding_bag_gradient", [&] {
    const index_t *ids = indices.const_data_ptr<index_t>(), *starts = offsets.const_data_ptr<index_t>();
    at::parallel_for(0, count, grain, [&](int64_t low, int64_t high) {
      add_rows(g, ids, starts, offsets.numel(), low, high);
    });
  });
}

Tensor bag_gradient_results(const Tensor& tangent, const Tensor&, const Tensor&, int64_t count, bool, int64_t) {
  return at::empty({count, tangent.size(1)}, tangent.options());
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(framesmith, m) {
  define<bags_results, bags>(m, "embedding_bags", "Tensor[] tables, Tensor[] indices, Tensor[] offsets, bool mean, "
                                                  "bool include_last, int padding");
  define<bag_gradient_results, bag_gradient>(
      m, "embedding_bag_gradient", "Tensor tangent, Tensor indices, Tensor offsets, int count, bool mean, int padding");
}
}  // namespace framesmith
