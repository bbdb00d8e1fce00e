// Reductions for kernel.h (included there, inside namespace fs): folds of lanes, extremes with positions, deviations.
#if defined(__AVX512F__)
#define FS_FOLD(x, op) op(1) op(2) op(4) op(8)
#else
#define FS_FOLD(x, op) op(1) op(2) op(4)
#endif
#define FS_T1(l) (l + 1) % W
#define FS_T2(l) (l + 2) % W
#define FS_T4(l) (l + 4) % W
#define FS_T8(l) (l + 8) % W
#define FS_TURN(x, s) __builtin_shufflevector(x, x, FS_LANES(FS_T##s))
#define FS_SUM(s) x = x + FS_TURN(x, s);
#define FS_PROD(s) x = x * FS_TURN(x, s);
#define FS_MAX(s) x = max(x, FS_TURN(x, s));
#define FS_MIN(s) x = min(x, FS_TURN(x, s));
#define FS_OR(s) x.m |= FS_TURN(x.m, s);
#define FS_AND(s) x.m &= FS_TURN(x.m, s);
#define FS_FOLDS(name, op, f) \
  FN float name(vf x) { FS_FOLD(x, op) return x[0]; } \
  FN int name(vi x) { FS_FOLD(x, op) return x[0]; } \
  FN double name(vd x) { double r = x.a[0]; for (int l = 1; l < W; l++) r = f(r, lane(x, l)); return r; } \
  FN i64 name(vl x) { i64 r = x.a[0]; for (int l = 1; l < W; l++) r = f(r, lane(x, l)); return r; }
template <class T> FN T add(T x, T y) { return x + y; }
template <class T> FN T mul(T x, T y) { return x * y; }
// Kahan's step: `carry` is what rounding has added so far; nothing once the sum is not finite
template <class V> FN void add_exactly(V& sum, V& carry, V x) {
  const V y = x - carry, t = sum + y, rest = (t - sum) - y, finite = rest - rest;
  carry = where(eq(finite, finite), rest, V{});
  sum = t;
}
template <class T> FN T any(T x, T y) { return x | y; }
template <class T> FN T all(T x, T y) { return x & y; }
FN bool any(bool x, bool y) { return x || y; }
FN bool all(bool x, bool y) { return x && y; }
FS_FOLDS(fold_sum, FS_SUM, add) FS_FOLDS(fold_prod, FS_PROD, mul)
FS_FOLDS(fold_max, FS_MAX, max) FS_FOLDS(fold_min, FS_MIN, min)
FN bool fold_any(vm x) { FS_FOLD(x, FS_OR) return x.m[0]; }
FN bool fold_all(vm x) { FS_FOLD(x, FS_AND) return x.m[0]; }
FN bool fold_max(vm x) { return fold_any(x); }
FN bool fold_min(vm x) { return fold_all(x); }

// The extreme of what was added and its smallest position. `Less` false: the largest. V, I: types of values, positions.
template <bool Less, class V, class I> struct Extreme {
  V best;
  I at;
  FN Extreme start(V x) { return {x, splat_at(I{}, 0x7fffffffffffffffL)}; }
  static inline I splat_at(i64, i64 k) { return k; }
  static inline I splat_at(vl, i64 k) { return splat(k); }
  inline __attribute__((always_inline)) void add(V x, I k) {
    const auto beats = Less ? lt(x, best) : gt(x, best);
    const auto same = eq(x, best) | (isnan(x) & isnan(best)),
               wins = beats | (isnan(x) & logical_not(isnan(best))) | (same & lt(k, at));
    best = where(wins, x, best);
    at = where(wins, k, at);
  }
  template <class M> inline __attribute__((always_inline)) void add(V x, I k, M n) {
    Extreme t = *this;
    t.add(x, k);
    keep_live(t, n);
  }
  inline __attribute__((always_inline)) void keep_live(Extreme t, Full) { *this = t; }
  inline __attribute__((always_inline)) void keep_live(Extreme t, int n) {
    best = where(lanes(n), t.best, best);
    at = where(lanes(n), t.at, at);
  }
};
template <class S, bool Less, class V> FN Extreme<Less, S, i64> fold(const Extreme<Less, V, vl>& e) {
  Extreme<Less, S, i64> r = {(S)lane(e.best, 0), lane(e.at, 0)};
  for (int l = 1; l < W; l++) r.add((S)lane(e.best, l), lane(e.at, l));
  return r;
}
template <bool Less, class V, class I> FN void merge(Extreme<Less, V, I>& x, const Extreme<Less, V, I>& y) {
  x.add(y.best, y.at);
}

// Welford's running mean and sum of squared deviations (V: a vector or one number of type T). `Steady`: every lane has
// seen `n` values; `Ragged`: each lane its own number, for the ends of rows.
template <class V, class T> struct Steady {
  V mean, m2;
  T n;
  inline __attribute__((always_inline)) void add(V x, Full) {
    n += 1;
    const V d = x - mean;
    mean = mean + d * splat_like(V{}, T(1) / n);
    m2 = m2 + d * (x - mean);
  }
};
template <class V, class T> struct Ragged {
  V mean, m2, n;
  inline __attribute__((always_inline)) void add(V x, int live) {
    const vm m = lanes(live);
    n = n + where(m, splat(T(1)), V{});
    const V d = where(m, x - mean, V{});
    mean = mean + d / max(n, splat(T(1)));
    m2 = m2 + where(m, d * (x - mean), V{});
  }
};
// Chan's rule; an empty side counts for nothing
template <class V, class T> FN void merge(Steady<V, T>& x, const Steady<V, T>& y) {
  const T n = x.n + y.n, share = n > 0 ? y.n / n : 0;
  const V d = y.mean - x.mean;
  x.mean = x.mean + d * splat_like(V{}, share);
  x.m2 = x.m2 + y.m2 + d * d * splat_like(V{}, x.n * share);
  x.n = n;
}
template <class V, class T> FN void merge(Ragged<V, T>& x, const Ragged<V, T>& y) {
  const V n = x.n + y.n, share = where(eq(n, V{}), V{}, y.n / n), d = y.mean - x.mean;
  x.mean = x.mean + d * share;
  x.m2 = x.m2 + y.m2 + d * d * (x.n * share);
  x.n = n;
}
template <class T, class V> FN Steady<T, T> fold(const Ragged<V, T>& x) {
  const T n = fold_sum(x.n), mean = n > 0 ? fold_sum(x.mean * x.n) / n : 0;
  const V d = x.mean - splat(mean);
  return {mean, fold_sum(x.m2 + d * d * x.n), n};
}
template <class T, class V> FN Steady<T, T> fold(const Steady<V, T>& x) {
  const T mean = fold_sum(x.mean) / W;
  const V d = x.mean - splat(mean);
  return {mean, fold_sum(x.m2 + d * d * splat(x.n)), x.n * W};
}
template <class T, class V> FN Steady<T, T> fold(const Steady<V, T>& x, const Ragged<V, T>& tail) {
  Steady<T, T> r = fold<T>(x);
  merge(r, fold<T>(tail));
  return r;
}
