// Attention by register tiles: some query rows against all keys of a block, their softmax in L1, then the values.
//
// A thread copies a block of keys (transposed) and values into panels once, and runs its query rows over it. Up to
// kBlock keys a row's softmax is exact and the result needs no second look; beyond, blocks follow each other with a
// running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022).
#include "attention.h"

#include <omp.h>

#include <cmath>

#include "tile.h"

namespace framesmith {
namespace {

constexpr i64 kBlock = 512;              // keys of a block: its panels stay in L2
constexpr i64 kGroup = 32;               // row tiles that run over a block before it is packed anew
constexpr double kParallelWork = 2e5;    // multiply-adds from which a second thread pays
constexpr i64 kFewRows = 2;              // queries of a head for which packing costs more than it saves
constexpr int kColumns = kWide * W;
const float kNever = -__builtin_inff();

template <int NV, int MR>
__attribute__((noinline)) void product(const float* a, i64 lda, const float* b, i64 depth, float* out, i64 ldo) {
  vf acc[MR][NV] = {};
  fs::multiply<false>(acc, a, lda, b, depth);
  fs::store_sums(acc, out, ldo);
}
auto product_of(int rows, int vectors) {
  return with_constant<kWide>(vectors, [rows](auto nv) {
    return with_constant<kRows>(rows, [](auto mr) { return &product<decltype(nv)::value, mr>; });
  });
}

// All panels of `columns` columns (a multiple of W), each `depth` rows high.
void multiply_panels(int rows, const float* a, i64 lda, const float* b, i64 depth, i64 stored_depth, i64 columns,
                     float* out, i64 ldo) {
  for (i64 j = 0; j < columns; j += kColumns) {
    const i64 wide = std::min(columns - j, i64(kColumns));
    product_of(rows, (int)(wide / W))(a, lda, b + j * stored_depth, depth, out + j, ldo);
  }
}

// One row times each of `count` rows of b; whole vectors of results are written.
void dot_products(const float* a, const float* b, i64 ldb, i64 width, i64 count, float* out) {
  const i64 whole = width / W * W;
  for (i64 j = 0; j < count; j += W) {
    vf sums[W] = {};
    auto row = [&](int t) { return b + std::min(j + t, count - 1) * ldb; };
    for (i64 i = 0; i < whole; i += W) {
      const vf x = load(a + i, full);
      for (int t = 0; t < W; t++) sums[t] += x * load(row(t) + i, full);
    }
    if (const int rest = (int)(width - whole)) {
      const vf x = load(a + whole, rest);
      for (int t = 0; t < W; t++) sums[t] += x * load(row(t) + whole, rest);
    }
    fs::transpose(sums);
    for (int n = W / 2; n > 0; n /= 2)
      for (int t = 0; t < n; t++) sums[t] += sums[t + n];
    store(out + j, sums[0], full);
  }
}

// The sum of `count` rows of b, each times its weight: NV vectors of columns, the last of which has `n` lanes.
template <int NV, class N>
FN void weighted(const float* weights, const float* b, i64 ldb, i64 count, float* out, N n) {
  vf even[NV] = {}, odd[NV] = {};
  i64 j = 0;
  auto add = [&](vf(&sums)[NV], i64 row) {
    const vf weight = fs::splat(weights[row]);
    for (int v = 0; v < NV - 1; v++) sums[v] += weight * load(b + row * ldb + v * W, full);
    sums[NV - 1] += weight * load(b + row * ldb + (NV - 1) * W, n);
  };
  for (; j + 1 < count; j += 2) add(even, j), add(odd, j + 1);
  if (j < count) add(even, j);
  for (int v = 0; v < NV; v++) store(out + v * W, even[v] + odd[v], full);
}

void weighted_sum(const float* weights, const float* b, i64 ldb, i64 width, i64 count, float* out) {
  i64 c = 0;
  for (; width - c >= 4 * W; c += 4 * W) weighted<4>(weights, b + c, ldb, count, out + c, full);
  for (; width - c >= W; c += W) weighted<1>(weights, b + c, ldb, count, out + c, full);
  if (c < width) weighted<1>(weights, b + c, ldb, count, out + c, (int)(width - c));
}

// The keys' weights of one query row.
struct Row {
  float* s;          // scores in, weights out; `width` of them (a multiple of W), those from `live` on become 0
  i64 live, width;
  const float* add;  // of the block's first key, or null
  const bool* keep;
  i64 step;          // of the mask: 0 or 1
};

// A key that is masked out has -inf added, as in eager: its score stays NaN where it is NaN or inf.
template <class M>
FN vf masked(const Row& r, i64 j, vf x, M n) {
  if (r.add) x += r.step ? load(r.add + j, n) : fs::splat(*r.add);
  if (r.keep)
    x += r.step ? where(load(r.keep + j, n), fs::splat(0.0f), fs::splat(kNever)) : fs::splat(*r.keep ? 0.0f : kNever);
  return fs::keep(x, kNever, n);
}

// Scales and masks; the maximum.
float scale_row(const Row& r, float scale) {
  vf top = fs::splat(kNever);
  const i64 whole = r.live / W * W;
  if (!r.add && !r.keep) {
    for (i64 j = 0; j < whole; j += W) {
      const vf x = load(r.s + j, full) * scale;
      store(r.s + j, x, full);
      top = fs::max_(x, top);
    }
  } else {
    for (i64 j = 0; j < whole; j += W) {
      const vf x = masked(r, j, load(r.s + j, full) * scale, full);
      store(r.s + j, x, full);
      top = fs::max_(x, top);
    }
  }
  if (whole < r.live) {
    const vf x = masked(r, whole, load(r.s + whole, full) * scale, (int)(r.live - whole));
    store(r.s + whole, x, full);
    top = fs::max_(x, top);
  }
  for (i64 j = round_up(r.live, W); j < r.width; j += W) store(r.s + j, fs::splat(kNever), full);
  return fs::fold_max(top);
}

// exp(s - top); the sum.
float exponentials(const Row& r, float top) {
  vf sum = {};
  for (i64 j = 0; j < r.width; j += W) {
    const vf e = decay(load(r.s + j, full) - top);
    store(r.s + j, e, full);
    sum += e;
  }
  return fs::fold_sum(sum);
}

class Worker {
 public:
  explicit Worker(const Attention& a)
      : a_(a), block_(std::min(a.keys, kBlock)), value_columns_(round_up(a.value_width, W)),
        scores_(memory(kRows * round_up(block_, W))), fresh_(memory(kRows * value_columns_)) {
    if (a.keys > kBlock) kept_ = memory(kGroup * kRows * value_columns_);
    if (a.queries <= kFewRows) return;
    keys_ = memory(round_up(block_, W) * a.width);
    values_ = memory(block_ * value_columns_);
  }

  // Row tiles [begin, end) of one head.
  void head(i64 b, i64 h, const Even& tiles, i64 begin, i64 end) {
    if (a_.queries <= kFewRows) return rows(b, h, tiles.begin(begin), tiles.begin(end));
    for (i64 first = begin; first < end; first += kGroup) group(b, h, tiles, first, std::min(end, first + kGroup));
  }

 private:
  void group(i64 b, i64 h, const Even& tiles, i64 begin, i64 end) {
    const i64 reach = limit(tiles.begin(end) - 1);
    for (i64 key = 0; key < reach; key += kBlock) {
      pack(b, h / a_.shared, key);
      for (i64 t = begin; t < end; t++)
        if (limit(tiles.begin(t + 1) - 1) > key) tile(b, h, tiles.begin(t), tiles.size(t), (t - begin) * kRows, key);
    }
  }

  // Query rows [begin, end) of a head, against keys and values as they lie.
  void rows(i64 b, i64 h, i64 begin, i64 end) {
    for (i64 query = begin; query < end; query++) {
      const i64 reach = limit(query);
      for (i64 key = 0; key < reach; key += kBlock) {
        const i64 depth = std::min(reach - key, kBlock);
        float* scores = scores_.get();
        dot_products(a_.q(b, h, query), a_.k(b, h / a_.shared, key), a_.k.row, a_.width, depth, scores);
        const float shrink = weigh(b, h, query, 0, key, scores, depth, round_up(depth, W));
        weighted_sum(scores, a_.v(b, h / a_.shared, key), a_.v.row, a_.value_width, depth, fresh_.get());
        finish(b, h, query, 0, key, shrink, key + depth >= reach, fresh_.get());
      }
    }
  }

  // Keys that query `row` may see.
  i64 limit(i64 row) const { return a_.causal && row + 1 < a_.keys ? row + 1 : a_.keys; }

  void pack(i64 b, i64 h, i64 key) {
    if (b == packed_b_ && h == packed_h_ && key == packed_key_) return;
    packed_b_ = b, packed_h_ = h, packed_key_ = key;
    rows_ = std::min(a_.keys - key, block_);
    pack_turned<kWide>(a_.k(b, h, key), a_.k.row, a_.width, rows_, keys_.get());
    pack_straight<kWide>(a_.v(b, h, key), a_.v.row, rows_, a_.value_width, values_.get());
  }

  // `slot`: where the tile's running state is kept between blocks.
  void tile(i64 b, i64 h, i64 row, int rows, i64 slot, i64 key) {
    const i64 depth = std::min(limit(row + rows - 1) - key, rows_), columns = round_up(depth, W);
    float* scores = scores_.get();
    multiply_panels(rows, a_.q(b, h, row), a_.q.row, keys_.get(), a_.width, a_.width,
                    std::min(round_up(rows_, W), round_up(columns, kColumns)), scores, stride());
    float correction[kRows];
    for (int i = 0; i < rows; i++)
      correction[i] = weigh(b, h, row + i, slot + i, key, scores + i * stride(), depth, columns);
    multiply_panels(rows, scores, stride(), values_.get(), depth, rows_, value_columns_, fresh_.get(), value_columns_);
    const bool last = key + rows_ >= limit(row + rows - 1);
    for (int i = 0; i < rows; i++)
      finish(b, h, row + i, slot + i, key, correction[i], last, fresh_.get() + i * value_columns_);
  }

  i64 stride() const { return round_up(block_, W); }

  // Turns a row's scores into weights, keeps its running maximum and sum; what earlier blocks' results shrink by.
  float weigh(i64 b, i64 h, i64 query, i64 slot, i64 key, float* s, i64 depth, i64 columns) {
    const i64 first = key * a_.mask_column;
    const Row r{s, std::clamp(limit(query) - key, i64(0), depth), columns,
                a_.add.at ? a_.add(b, h, query) + first : nullptr, a_.keep.at ? a_.keep(b, h, query) + first : nullptr,
                a_.mask_column};
    float top = scale_row(r, a_.scale);
    if (key && !(top > tops_[slot])) top = tops_[slot];
    const float from = top == kNever ? 0 : top, shrink = key ? fs::exp(tops_[slot] - from) : 0;
    sums_[slot] = (key ? sums_[slot] * shrink : 0) + exponentials(r, from);
    tops_[slot] = top;
    return shrink;
  }

  void finish(i64 b, i64 h, i64 query, i64 slot, i64 key, float shrink, bool last, const float* fresh) {
    float* kept = kept_.get() + slot * value_columns_;
    float* out = a_.out(b, h, query);
    const float sum = sums_[slot], weight = sum == 0 ? 0 : 1 / sum;
    if (last && a_.log_sums.at) *a_.log_sums(b, h, query) = sum == 0 ? 0 : tops_[slot] + std::log(sum);
    for (i64 j = 0; j < value_columns_; j += W) {
      vf x = load(fresh + j, full);
      if (key) x += load(kept + j, full) * shrink;
      if (!last) store(kept + j, x, full);
      else if (a_.value_width - j >= W) store(out + j, x * weight, full);
      else store(out + j, x * weight, (int)(a_.value_width - j));
    }
  }

  const Attention& a_;
  const i64 block_, value_columns_;
  Memory keys_, values_, scores_, fresh_, kept_;
  float tops_[kGroup * kRows], sums_[kGroup * kRows];
  i64 packed_b_ = -1, packed_h_ = -1, packed_key_ = -1, rows_ = 0;
};

}  // namespace

void attend(const Attention& a, int threads) {
  const Even tiles(a.queries, kRows);
  const i64 heads = a.batch * a.heads;
  // Cost of the tiles before t in a head: the keys that they see.
  auto before = [&](i64 t) {
    const i64 rows = tiles.begin(t), ramp = std::min(rows, a.keys);
    return a.causal ? ramp * (ramp + 1) / 2 + (rows - ramp) * a.keys + t : rows * a.keys;
  };
  const i64 cost = before(tiles.groups);
  if ((double)heads * cost * (a.width + a.value_width) < kParallelWork) threads = 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const i64 id = omp_get_thread_num(), count = omp_get_num_threads();
    const i64 low = share(heads * cost, id, count), high = share(heads * cost, id + 1, count);
    Worker worker(a);
    for (i64 n = low / cost; n < heads && n * cost < high; n++) {
      i64 begin = 0, end;
      while (begin < tiles.groups && n * cost + before(begin) < low) begin++;
      for (end = begin; end < tiles.groups && n * cost + before(end) < high;) end++;
      worker.head(n / a.heads, n % a.heads, tiles, begin, end);
    }
  }
}

}  // namespace framesmith
