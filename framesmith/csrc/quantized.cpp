// Products with packed integers. A tile of rows and panels is summed up in registers:
//
//   a float     for each row of B in a group:  the row as floats, times elements of A; the sum, times its scale
//   a integer   for each four rows of B:       sums of four products by VNNI, where the processor has it
//
// B is read once for a tile of rows, as integers: with few rows of A the product takes the time of reading it. With
// many, blocks of B become floats in L2, and the product is that of floats (blocks.h).
#include "quantized.h"

#include <cstring>
#include <memory>

#include "blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace framesmith {
namespace {
using fs::vi;

constexpr int kVectors = kPanelColumns / W;      // of a panel
constexpr int kPanels = W == 16 ? 2 : 1;         // of a tile
constexpr int kMostRows = W == 16 ? 8 : 4;
constexpr i64 kTileColumns = kPanels * kPanelColumns;
constexpr i64 kParallel = 1 << 18;               // multiply-adds from which a second thread pays
constexpr i64 kManyRows = 4 * kMostRows;         // of A, from which B is made floats

// Which part of the result a tile is. `live`: its columns. `sums`: for each column a number that the first of a
// thread's tiles of these columns makes, for those that follow.
struct Place {
  i64 row, panel, live;
  bool first;
  int32_t* sums;
};

// `run(rows, place)` for all tiles of the result, on threads; `rows` is a constant.
template <class F> void for_tiles(i64 m, const PackedIntegers& b, int threads, F run) {
  const i64 across = (b.n + kTileColumns - 1) / kTileColumns;
  const Even down(m, kMostRows);
  // a thread has all rows of some columns, which stay in its cache, unless there are few
  const i64 blocks = across >= threads ? 1 : std::min<i64>(down.groups, threads);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1 && m * b.n * b.k > kParallel)
  for (i64 j = 0; j < across; j++)
    for (i64 block = 0; block < blocks; block++) {
      const i64 begin = share(down.groups, block, blocks), end = share(down.groups, block + 1, blocks);
      const i64 live = std::min(kTileColumns, b.n - j * kTileColumns);
      int32_t sums[kTileColumns];
      for (i64 i = begin; i < end; i++)
        with_constant<kMostRows>(
            down.size(i), [&](auto rows) { run(rows, Place{down.begin(i), j * kPanels, live, i == begin, sums}); });
    }
}

// Row `r` of the rows whose integers `words` have, of BITS bits each.
template <int BITS> FN vi integers(vi words, int r) { return (words << (32 - BITS * (r + 1))) >> (32 - BITS); }

// The panels of a tile, of which the last may not be there: then the first stands for it.
struct Panels {
  const int32_t* at[kPanels];
  Panels(const PackedIntegers& b, const Place& place) {
    const i64 size = (b.k * b.bits + 31) / 32 * kPanelColumns;
    for (int p = 0; p < kPanels; p++)
      at[p] = b.at + (place.panel + (p * kPanelColumns < place.live ? p : 0)) * size;
  }
};

// Columns of a row of what has an element for each column, all panels filled up; see Panels.
FN vf columns(const float* row, const Place& place, int p, int v) {
  return load(row + (place.panel + (p * kPanelColumns < place.live ? p : 0)) * kPanelColumns + v * W, full);
}

template <int BITS, int MR> void float_tile(const QuantizedProduct& q, const Place& place) {
  constexpr i64 per = 32 / BITS;
  const Panels panels(q.b, place);
  const i64 padded = round_up(q.b.n, kPanelColumns);
  const float* a = q.a + place.row * q.a_row;
  vf total[MR][kPanels][kVectors] = {};
  for (i64 begin = 0, g = 0; begin < q.b.k; begin += q.group, g++) {
    const i64 end = std::min(begin + q.group, q.b.k);
    vf sum[MR][kPanels][kVectors] = {}, zero[kPanels][kVectors] = {};
    if (q.zero)
      for (int p = 0; p < kPanels; p++)
        for (int v = 0; v < kVectors; v++) zero[p][v] = columns(q.zero + g * padded, place, p, v);
    auto add = [&](i64 k, int r, const vi (&words)[kPanels][kVectors]) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; p++)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) {
          const vf b = __builtin_convertvector(integers<BITS>(words[p][v], r), vf) - zero[p][v];
#pragma GCC unroll 8
          for (int i = 0; i < MR; i++) sum[i][p][v] += fs::splat(a[i * q.a_row + k + r]) * b;
        }
    };
    for (i64 k = begin; k < end; k += per) {
      vi words[kPanels][kVectors];
      for (int p = 0; p < kPanels; p++)
        for (int v = 0; v < kVectors; v++)
          std::memcpy(&words[p][v], panels.at[p] + k / per * kPanelColumns + v * W, sizeof(vi));
      if (end - k >= per) {
#pragma GCC unroll 8
        for (int r = 0; r < per; r++) add(k, r, words);
      } else {
        for (int r = 0; r < end - k; r++) add(k, r, words);
      }
    }
    for (int p = 0; p < kPanels; p++)
      for (int v = 0; v < kVectors; v++) {
        const vf scale = q.scale ? columns(q.scale + g * padded, place, p, v) : fs::splat(1.0f);
        for (int i = 0; i < MR; i++) total[i][p][v] += sum[i][p][v] * scale;
      }
  }
  float* out = q.c + place.row * q.b.n + place.panel * kPanelColumns;
  for (int i = 0; i < MR; i++)
    for (int v = 0; v < kPanels * kVectors && v * W < place.live; v++)
      store(out + i * q.b.n + v * W, total[i][v / kVectors][v % kVectors], (int)std::min(place.live - v * W, i64(W)));
}

// Rows [k0, k0 + depth) and columns [j0, j0 + n) of B as floats, packed as in blocks.h. `j0`: a multiple of W.
template <int BITS> void unpack(const QuantizedProduct& q, i64 k0, i64 depth, i64 j0, i64 n, float* out) {
  constexpr i64 per = 32 / BITS;
  const i64 padded = round_up(q.b.n, kPanelColumns), size = (q.b.k + per - 1) / per * kPanelColumns;
  for (i64 j = 0; j < n; j += W) {
    const i64 panel = j / kColumns * kColumns, wide = std::min(kColumns, round_up(n - panel, W)), column = j0 + j;
    const int32_t* const words = q.b.at + column / kPanelColumns * size + column % kPanelColumns;
    float* at = out + panel * depth + (j - panel);
    for (i64 k = k0, g = k0 / q.group; k < k0 + depth; g++) {
      const i64 end = std::min((g + 1) * q.group, k0 + depth);
      const vf scale = q.scale ? load(q.scale + g * padded + column, full) : fs::splat(1.0f);
      const vf zero = q.zero ? load(q.zero + g * padded + column, full) : vf{};
      auto put = [&](vi row, int r) __attribute__((always_inline)) {
        store(at, (__builtin_convertvector(integers<BITS>(row, r), vf) - zero) * scale, full);
        at += wide;
      };
      while (k < end) {
        vi row;
        std::memcpy(&row, words + k / per * kPanelColumns, sizeof(vi));
        const int first = (int)(k % per), last = (int)std::min(per, first + end - k);
        if (last - first == per) {
#pragma GCC unroll 8
          for (int r = 0; r < per; r++) put(row, r);
        } else {
          for (int r = first; r < last; r++) put(row, r);
        }
        k += last - first;
      }
    }
  }
}

template <int BITS> void multiply_many_rows(const QuantizedProduct& q, int threads) {
  const i64 panels = (q.b.n + kColumns - 1) / kColumns, parts = std::min<i64>(threads, panels);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && q.m * q.b.n * q.b.k > kParallel)
  for (i64 part = 0; part < parts; part++) {
    const i64 begin = share(panels, part, parts) * kColumns, end = share(panels, part + 1, parts) * kColumns;
    const Problem p{q.m, std::min(end, q.b.n) - begin, q.b.k, {q.a, 0, q.a_row, 1}, {},
                    {q.c + begin, 0, q.b.n, 1}, {}, false};
    multiply(
        p, [&](i64 k0, i64 depth, i64 j0, i64 n, float* out) { unpack<BITS>(q, k0, depth, begin + j0, n, out); },
        [&p](auto... tile) { put_rows(p, tile...); });
  }
}

// ------------------------------------------------------------------------------------------------------------ integers

// Rows of A, filled up to whole words; `flipped` have 128 added to each element, for VNNI, which takes them unsigned.
// Those that are so in memory are read there.
class Words {
 public:
  const i64 row;  // bytes

  template <class T>
  Words(i64 m, i64 k, const T* a, i64 a_row, bool flipped, int threads)
      : row(round_up(k, 4)), at_(reinterpret_cast<const uint8_t*>(a)), stride_(a_row) {
    if (k == row && !flipped) return;
    bytes_.reset(new uint8_t[static_cast<size_t>(m * row)]);
#pragma omp parallel for num_threads(threads) if (threads > 1 && m * k > kParallel)
    for (i64 i = 0; i < m; i++) {
      uint8_t* const to = bytes_.get() + i * row;
      std::memcpy(to, at_ + i * stride_, static_cast<size_t>(k));
      std::memset(to + k, 0, static_cast<size_t>(row - k));
      if (!flipped) continue;
      for (i64 j = 0; j < row; j += 4) {
        uint32_t four;
        std::memcpy(&four, to + j, 4);
        four ^= 0x80808080u;
        std::memcpy(to + j, &four, 4);
      }
    }
    at_ = bytes_.get();
    stride_ = row;
  }
  const uint8_t* at(i64 i) const { return at_ + i * stride_; }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  const uint8_t* at_;
  i64 stride_;
};

template <class T, int MR>
void integer_tile(const Words& a, const PackedIntegers& b, const Place& place, int32_t* out) {
  const Panels panels(b, place);
  for (int p = 0; p < kPanels && p * kPanelColumns < place.live; p++)
    for (int v = 0; v < kVectors; v++) {
      vi sum[MR] = {};
      for (i64 k = 0; k < a.row; k += 4) {
        vi words;
        std::memcpy(&words, panels.at[p] + k / 4 * kPanelColumns + v * W, sizeof(vi));
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
          const vi row = integers<8>(words, r);
          for (int i = 0; i < MR; i++) sum[i] += row * static_cast<int>(static_cast<T>(a.at(place.row + i)[k + r]));
        }
      }
      const i64 column = p * kPanelColumns + v * W;
      for (i64 j = 0; j < W && column + j < place.live; j++)
        for (int i = 0; i < MR; i++) out[i * b.n + column + j] = sum[i][j];
    }
}

#if defined(__x86_64__)
typedef int Sixteen __attribute__((vector_size(64)));

// (GCC copies the sums around each call of the intrinsic.)
FN Sixteen add_products(Sixteen sum, Sixteen bytes, Sixteen words) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(words));
  return sum;
}

// Signed elements of A have 128 added: 128 times the sums of B's columns are taken off. `SUMS`: those are to be made.
template <class T, int MR, bool SUMS>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) void vnni_tile(
    const Words& a, const PackedIntegers& b, const Place& place, int32_t* out) {
  const Panels panels(b, place);
  const uint8_t* rows[MR];
  for (int i = 0; i < MR; i++) rows[i] = a.at(place.row + i);
  Sixteen sum[MR][kPanels] = {}, all[kPanels] = {};
  const Sixteen ones = (Sixteen)_mm512_set1_epi8(1);
  for (i64 word = 0; word < a.row / 4; word++) {
    Sixteen words[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; p++) {
      words[p] = (Sixteen)_mm512_loadu_si512(panels.at[p] + word * kPanelColumns);
      if (SUMS) all[p] = add_products(all[p], ones, words[p]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
      int four;
      std::memcpy(&four, rows[i] + 4 * word, 4);
      const auto bytes = (Sixteen)_mm512_set1_epi32(four);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; p++) sum[i][p] = add_products(sum[i][p], bytes, words[p]);
    }
  }
  for (int p = 0; p < kPanels && p * kPanelColumns < place.live; p++) {
    const i64 column = p * kPanelColumns;
    const auto mask = static_cast<__mmask16>((1u << std::min<i64>(place.live - column, kPanelColumns)) - 1);
    if (SUMS) _mm512_storeu_si512(place.sums + column, (__m512i)(all[p] * 128));
    const Sixteen off = std::is_signed_v<T> ? (Sixteen)_mm512_loadu_si512(place.sums + column) : Sixteen{};
    for (int i = 0; i < MR; i++)
      _mm512_mask_storeu_epi32(out + i * b.n + column, mask, (__m512i)(sum[i][p] - off));
  }
}
bool has_vnni() { return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"); }
#else
template <class T, int MR, bool SUMS>
void vnni_tile(const Words& a, const PackedIntegers& b, const Place& place, int32_t* out) {
  integer_tile<T, MR>(a, b, place, out);
}
bool has_vnni() { return false; }
#endif

}  // namespace

void multiply_quantized(const QuantizedProduct& q, int threads) {
  if (q.m >= kManyRows)
    return (q.b.bits == 8 ? multiply_many_rows<8> : multiply_many_rows<4>)(q, threads);
  for_tiles(q.m, q.b, threads, [&](auto rows, const Place& place) {
    (q.b.bits == 8 ? float_tile<8, rows.value> : float_tile<4, rows.value>)(q, place);
  });
}

template <class T>
void multiply_integers(i64 m, const T* a, i64 a_row, const PackedIntegers& b, int32_t* c, int threads) {
  static const bool vnni = has_vnni();
  constexpr bool is_signed = std::is_signed_v<T>;
  const Words words(m, b.k, a, a_row, vnni && is_signed, threads);
  for_tiles(m, b, threads, [&](auto rows, const Place& place) {
    int32_t* out = c + place.row * b.n + place.panel * kPanelColumns;
    constexpr int MR = rows.value;
    (!vnni ? integer_tile<T, MR>
           : place.first && is_signed ? vnni_tile<T, MR, true> : vnni_tile<T, MR, false>)(words, b, place, out);
  });
}
template void multiply_integers<uint8_t>(i64, const uint8_t*, i64, const PackedIntegers&, int32_t*, int);
template void multiply_integers<int8_t>(i64, const int8_t*, i64, const PackedIntegers&, int32_t*, int);

}  // namespace framesmith
