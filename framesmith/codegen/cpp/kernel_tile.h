// Square tiles for kernel.h (included there, inside namespace fs): W x W elements, transposed from or to a small array.
template <class V, int S> FN void exchange(V& x, V& y) {  // swap the blocks of S lanes off the diagonal
#define FS_UP(l) ((l) & S ? W + (l)-S : (l))
#define FS_DOWN(l) ((l) & S ? W + (l) : (l) + S)
  const V u = __builtin_shufflevector(x, y, FS_LANES(FS_UP)), d = __builtin_shufflevector(x, y, FS_LANES(FS_DOWN));
  x = u, y = d;
}
template <int S, class V> FN void exchange_rows(V* r) {
#pragma GCC unroll 16
  for (int i = 0; i < W; i++)
    if (!(i & S)) exchange<V, S>(r[i], r[i + S]);
}
template <class V> FN void transpose(V* r) {
  exchange_rows<1>(r), exchange_rows<2>(r), exchange_rows<4>(r);
  if (W == 16) exchange_rows<W / 2>(r);
}
// t[j * W + l] = p[l * stride + j] for l < rows, j < columns; S is the compute type of T.
template <class S, class T>
static inline __attribute__((noinline)) void load_tile(S* t, const T* p, i64 stride, int rows, int columns) {
  if constexpr (sizeof(S) == 4) {
    if (rows == W && columns == W) {
      decltype(load(p, full)) r[W];
#pragma GCC unroll 16
      for (int l = 0; l < W; l++) r[l] = load(p + l * stride, full);
      transpose(r);
#pragma GCC unroll 16
      for (int l = 0; l < W; l++) store(t + l * W, r[l], full);
      return;
    }
  }
  for (int l = 0; l < rows; l++)
    for (int j = 0; j < columns; j++) t[j * W + l] = load(p + l * stride + j);
}
// p[l * stride + j] = t[j * W + l]
template <class S, class T>
static inline __attribute__((noinline)) void store_tile(const S* t, T* p, i64 stride, int rows, int columns) {
  if constexpr (sizeof(S) == 4) {
    if (rows == W && columns == W) {
      decltype(load(t, full)) r[W];
#pragma GCC unroll 16
      for (int l = 0; l < W; l++) r[l] = load(t + l * W, full);
      transpose(r);
#pragma GCC unroll 16
      for (int l = 0; l < W; l++) store(p + l * stride, r[l], full);
      return;
    }
  }
  for (int l = 0; l < rows; l++)
    for (int j = 0; j < columns; j++) store(p + l * stride + j, t[j * W + l]);
}
