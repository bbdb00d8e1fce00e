// Elementary functions for kernel.h (included there, inside namespace fs). Polynomials are minimax fits of this
// project; float32 errors are at most 2 ulp (tanh, erf and sigmoid 3), as tests/codegen measures. Functions off the hot
// path call SLEEF, which libtorch_cpu exports.

// ---- exponentials
#define FS_EXP_CLAMP(x, lo, hi) min_(splat(hi), max_(splat(lo), x))  // keeps NaN
FN vf pow2_times(vf p, vf n) {  // p * 2^n, rounded once where the result is subnormal
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
#else
  const vi k = FS_CVT(max_(splat(-250.0f), min_(splat(250.0f), n)), vi), h = k >> 1;
  return p * bits<vf>((h + 127) << 23) * bits<vf>((k - h + 127) << 23);
#endif
}
FN vf reduce_exp(vf x, vf& n) {  // x = n ln2 + r, |r| <= ln2/2
  const float magic = 12582912.0f;
  n = (x * 1.44269504f + magic) - magic;
  return (x - n * 0.693145752f) - n * 1.42860677e-6f;
}
FN vf exp_tail(vf r) {  // (e^r - 1 - r) / r^2
  return (((1.394767270e-3f * r + 8.367241971e-3f) * r + 4.166626525e-2f) * r + 1.666653810e-1f) * r + 0.5f;
}
FN vf exp(vf x) {
  vf n;
  const vf r = reduce_exp(FS_EXP_CLAMP(x, -104.0f, 89.0f), n);
  return pow2_times((exp_tail(r) * r) * r + r + 1.0f, n);
}
FN vf expm1_small(vf x) {  // |x| < 80
  vf n;
  const vf r = reduce_exp(x, n), e = (exp_tail(r) * r) * r + r, s = bits<vf>((FS_CVT(n, vi) + 127) << 23);
  return e * s + (s - 1.0f);
}
FN vf expm1(vf x) {
  vf n;
  const vf c = FS_EXP_CLAMP(x, -20.0f, 89.0f), r = reduce_exp(c, n), e = (exp_tail(r) * r) * r + r,
           s = bits<vf>((FS_CVT(n, vi) + 126) << 23);
  return copysign(2.0f * (e * s + (s - 0.5f)), x);  // of zeros, too
}
FN vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }
FN vf tanh(vf x) {  // t = e^2|x| - 1; tanh |x| = t / (t + 2)
  const vf t = expm1_small(2.0f * min_(splat(10.0f), abs(x)));
  return copysign(t / (t + 2.0f), x);
}
FN vf erf(vf x) {  // erf t = 1 - e^-u(t), u = -ln erfc t
  const vf t = min_(splat(3.95f), abs(x));
  vf p = -9.255608798e-6f * t + 1.176359079e-4f;
  p = ((p * t - 6.328191576e-4f) * t + 1.666996867e-3f) * t - 1.603664244e-4f;
  p = (((p * t - 1.915307962e-2f) * t + 1.027778346e-1f) * t + 6.366193816e-1f) * t + 1.128379172f;
  return copysign(expm1_small(-(p * t)), x);
}
FN vf exp2_of(vf x) {  // 2^x, x finite or NaN, above -5000
  const float magic = 12582912.0f;
  const vf n = (x + magic) - magic, r = x - n;
  const vf q = ((1.547778439e-4f * r + 1.340161724e-3f) * r + 9.617998694e-3f) * r + 5.550324407e-2f;
  const vf p = (q * r + 2.402265139e-1f) * r + 6.931472078e-1f;
  return pow2_times(p * r + 1.0f, n);
}
FN vf exp2(vf x) { return exp2_of(FS_EXP_CLAMP(x, -151.0f, 129.0f)); }
FN vf one_plus_erf(vf x) {  // erfc(-x), from -log2 erfc |x|
  const vf t = min_(splat(10.0f), abs(x));
  vf p = 1.329610885e-6f * t - 2.582654879e-5f;
  p = ((p * t + 2.159487625e-4f) * t - 9.984115571e-4f) * t + 2.484712943e-3f;
  p = ((p * t - 2.604272774e-4f) * t - 2.763842481e-2f) * t + 1.482848291e-1f;
  p = (p * t + 9.184458303e-1f) * t + 1.627907144f;
  const vf e = exp2_of(-(p * t));
  return x < 0.0f ? e : 2.0f - e;
}
FN vf one_plus_tanh(vf x) { return 2.0f / (1.0f + exp(-2.0f * x)); }

// ---- logarithms
// x > 0 normal or subnormal: x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt 2; returns (log(1+f) - f) / f^2
FN vf log_parts(vf x, vf& e, vf& f) {
  const vm tiny = {x < 1.17549435e-38f};
  const vi k = bits<vi>(where(tiny, x * 8388608.0f, x)) - 0x3f3504f3;
  e = FS_CVT((k >> 23) - (tiny.m & 23), vf);
  f = bits<vf>((k & 0x7fffff) + 0x3f3504f3) - 1.0f;
  vf q = -7.886747080e-2f * f + 1.291900450e-1f;
  q = ((q * f - 1.313560406e-1f) * f + 1.417638294e-1f) * f - 1.662344204e-1f;
  q = ((q * f + 2.000246754e-1f) * f - 2.500084318e-1f) * f + 3.333331481e-1f;
  return q * f - 0.5f;
}
FN vf log_edges(vf x, vf r) {  // 0, negative, inf, NaN
  const float inf = __builtin_inff();
  const vf edge = x == 0.0f ? splat(-inf) : (x > 0.0f ? x : splat(__builtin_nanf("")));
  return ((x > 0.0f) & (x < inf)) ? r : edge;
}
FN vf log(vf x) {
  vf e, f;
  const vf q = log_parts(x, e, f);
  return log_edges(x, e * 0.693145752f + (f + ((q * f) * f + e * 1.42860677e-6f)));
}
FN vf log2(vf x) {
  vf e, f;
  const vf q = log_parts(x, e, f), t = (q * f) * f;
  return log_edges(x, e + (f * 1.44238281f + (t * 1.44269504f + f * 3.12230e-4f)));
}
FN vf log10(vf x) {
  vf e, f;
  const vf q = log_parts(x, e, f), t = (q * f) * f;
  return log_edges(x, e * 0.301025391f + (f * 0.434294482f + (t * 0.434294482f + e * 4.60503902e-6f)));
}
FN vf log1p(vf x) {  // with u = 1 + x rounded: log u + (x - (u - 1)) / u
  const vf u = 1.0f + x, d = u - 1.0f;
  const vf c = (x - d) / u, r = log(u) + c;
  return ((x > -1.0f) & (x < __builtin_inff())) ? copysign(r, x) : log(u);
}

// ---- SLEEF
#if defined(FS_NO_SLEEF)
#elif defined(__AVX512F__)
#define FS_SLEEF(name, ulp) Sleef_##name##f16##ulp
#define FS_SLEEF_D(name, ulp) Sleef_##name##d8##ulp
#elif defined(__AVX2__)
#define FS_SLEEF(name, ulp) Sleef_##name##f8##ulp
#define FS_SLEEF_D(name, ulp) Sleef_##name##d4##ulp
#endif
#if defined(FS_SLEEF)
#define FS_LIB1(name, ulp) \
  extern "C" vf FS_SLEEF(name, ulp)(vf); \
  extern "C" hd FS_SLEEF_D(name, ulp)(hd); \
  FN vd name(vd x) { return {FS_SLEEF_D(name, ulp)(x.a), FS_SLEEF_D(name, ulp)(x.b)}; } \
  FN double name(double x) { return __builtin_##name(x); }
#define FS_LIB1F(name, ulp) \
  FS_LIB1(name, ulp) \
  FN vf name(vf x) { return FS_SLEEF(name, ulp)(x); }
#define FS_LIB2(name, ulp) \
  extern "C" vf FS_SLEEF(name, ulp)(vf, vf); \
  extern "C" hd FS_SLEEF_D(name, ulp)(hd, hd); \
  FN vf name(vf x, vf y) { return FS_SLEEF(name, ulp)(x, y); } \
  FN vd name(vd x, vd y) { return {FS_SLEEF_D(name, ulp)(x.a, y.a), FS_SLEEF_D(name, ulp)(x.b, y.b)}; } \
  FN float name(float x, float y) { return __builtin_##name##f(x, y); } \
  FN double name(double x, double y) { return __builtin_##name(x, y); }
#else
#define FS_LIB1(name, ulp) \
  FN double name(double x) { return __builtin_##name(x); } \
  FN vd name(vd x) { vd r; FS_HALVES1(r, name); return r; }
#define FS_LIB1F(name, ulp) \
  FS_LIB1(name, ulp) \
  FN vf name(vf x) { vf r; FS_EACH(r, __builtin_##name##f(x[l])); return r; }
#define FS_LIB2(name, ulp) \
  FN float name(float x, float y) { return __builtin_##name##f(x, y); } \
  FN double name(double x, double y) { return __builtin_##name(x, y); } \
  FN vf name(vf x, vf y) { vf r; FS_EACH(r, name(x[l], y[l])); return r; } \
  FN vd name(vd x, vd y) { vd r; FS_HALVES2(r, name); return r; }
#endif
FS_LIB1(exp, _u10) FS_LIB1(exp2, _u10) FS_LIB1(expm1, _u10) FS_LIB1(log, _u10) FS_LIB1(log2, _u10)
FS_LIB1(log10, _u10) FS_LIB1(log1p, _u10) FS_LIB1(tanh, _u10) FS_LIB1(erf, _u10)
FS_LIB1F(sin, _u10) FS_LIB1F(cos, _u10) FS_LIB1F(tan, _u10) FS_LIB1F(asin, _u10) FS_LIB1F(acos, _u10)
FS_LIB1F(atan, _u10) FS_LIB1F(sinh, _u10) FS_LIB1F(cosh, _u10) FS_LIB1F(atanh, _u10)
FS_LIB1F(erfc, _u15) FS_LIB1F(lgamma, _u10)
FS_LIB2(pow, _u10) FS_LIB2(atan2, _u10) FS_LIB2(hypot, _u05) FS_LIB2(nextafter, ) FS_LIB2(fmod, )
#if defined(FS_SLEEF)
// SLEEF's overflow far out, where the function is log 2|x|
extern "C" vf FS_SLEEF(asinh, _u10)(vf);
extern "C" vf FS_SLEEF(acosh, _u10)(vf);
extern "C" hd FS_SLEEF_D(asinh, _u10)(hd);
extern "C" hd FS_SLEEF_D(acosh, _u10)(hd);
FN hd log_twice(hd x) { return FS_SLEEF_D(log, _u10)(x) + 0.69314718055994531; }
FN hd asinh_half(hd x) {
  return x > 1e150 ? log_twice(x) : x < -1e150 ? -log_twice(-x) : FS_SLEEF_D(asinh, _u10)(x);
}
FN hd acosh_half(hd x) { return x > 1e150 ? log_twice(x) : FS_SLEEF_D(acosh, _u10)(x); }
FN vd asinh(vd x) { return {asinh_half(x.a), asinh_half(x.b)}; }
FN vd acosh(vd x) { return {acosh_half(x.a), acosh_half(x.b)}; }
FN double asinh(double x) { return __builtin_asinh(x); }
FN double acosh(double x) { return __builtin_acosh(x); }
FN vf far_out(vf x, vf near) { return abs(x) > 1e18f ? log(abs(x)) + 0.693147181f : near; }
FN vf asinh(vf x) { return copysign(far_out(x, abs(FS_SLEEF(asinh, _u10)(x))), x); }
FN vf acosh(vf x) { return where(lt(x, splat(1.0f)), splat(__builtin_nanf("")), far_out(x, FS_SLEEF(acosh, _u10)(x))); }
#else
FS_LIB1F(asinh, _u10) FS_LIB1F(acosh, _u10)
#endif
#define FS_SCALAR(name) FN float name(float x) { return name(splat(x))[0]; }
FS_SCALAR(exp) FS_SCALAR(exp2) FS_SCALAR(expm1) FS_SCALAR(sigmoid) FS_SCALAR(tanh) FS_SCALAR(erf) FS_SCALAR(log)
FS_SCALAR(log2) FS_SCALAR(log10) FS_SCALAR(log1p) FS_SCALAR(one_plus_erf) FS_SCALAR(one_plus_tanh) FS_SCALAR(sin)
FS_SCALAR(cos) FS_SCALAR(tan) FS_SCALAR(asin) FS_SCALAR(acos) FS_SCALAR(atan) FS_SCALAR(sinh) FS_SCALAR(cosh)
FS_SCALAR(asinh) FS_SCALAR(acosh) FS_SCALAR(atanh) FS_SCALAR(erfc) FS_SCALAR(lgamma)

// ---- functions of any lane type
#define FS_LANEWISE1(name) \
  FN vf name(vf x) { vf r; FS_EACH(r, name(x[l])); return r; } \
  FN vd name(vd x) { vd r; FS_HALVES1(r, name); return r; }
#define FS_LANEWISE2(name) \
  FN vi name(vi x, vi y) { vi r; FS_EACH(r, name(x[l], y[l])); return r; } \
  FN vl name(vl x, vl y) { vl r; FS_HALVES2(r, name); return r; }
FN vd sigmoid(vd x) { return splat(1.0) / (splat(1.0) + exp(-x)); }
FN double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
FN vf rsqrt(vf x) { return 1.0f / sqrt(x); }
FN vd rsqrt(vd x) { return splat(1.0) / sqrt(x); }
FN float rsqrt(float x) { return 1.0f / sqrt(x); }
FN double rsqrt(double x) { return 1.0 / sqrt(x); }
FN vf reciprocal(vf x) { return 1.0f / x; }
FN vd reciprocal(vd x) { return splat(1.0) / x; }
FN float reciprocal(float x) { return 1.0f / x; }
FN double reciprocal(double x) { return 1.0 / x; }
template <class V> FN V square(V x) { return x * x; }
template <class V> FN V fma(V x, V y, V z) { return x * y + z; }
template <class V> FN V relu(V x) { return max(V{}, x); }  // -0 at -0, as eager
template <class V> FN V frac(V x) { return x - trunc(x); }
FN vf sign(vf x) { return where(eq(x, vf{}) | isnan(x), vf{}, copysign(splat(1.0f), x)); }  // 0 at NaN, as eager
FN vd sign(vd x) { return where(eq(x, vd{}) | isnan(x), vd{}, where(lt(x, vd{}), splat(-1.0), splat(1.0))); }
FN vi sign(vi x) { return (x < 0) - (x > 0); }
FN vl sign(vl x) { return {(x.a < 0) - (x.a > 0), (x.b < 0) - (x.b > 0)}; }
FN vm sign(vm x) { return x; }
template <class T> FN T sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : T(0); }
FN float copysign(float x, float y) { return __builtin_copysignf(x, y); }
FN double copysign(double x, double y) { return __builtin_copysign(x, y); }
FN vd copysign(vd x, vd y) {
  const hl s = hl{} + (i64)(1ul << 63);
  return {bits<hd>((bits<hl>(x.a) & ~s) | (bits<hl>(y.a) & s)), bits<hd>((bits<hl>(x.b) & ~s) | (bits<hl>(y.b) & s))};
}
FN vm signbit(vd x) { return narrow(bits<hl>(x.a) < 0, bits<hl>(x.b) < 0); }
FN bool signbit(double x) { return bits<i64>(x) < 0; }
FN vm signbit(vi x) { return {x < 0}; }
FN vm signbit(vl x) { return lt(x, vl{}); }
template <class T> FN bool signbit(T x) { return x < 0; }
template <class T> FN auto isfinite(T x) { return eq(x - x, T{}); }
template <class V> FN V fmax(V x, V y) { return where(isnan(y), x, where(isnan(x), y, max(x, y))); }
template <class V> FN V fmin(V x, V y) { return where(isnan(y), x, where(isnan(x), y, min(x, y))); }
template <class V> FN V float_mod(V x, V y) {  // the sign of the divisor
  const V r = fmod(x, y);
  return where(ne(r, V{}) & (lt(r, V{}) ^ lt(y, V{})), r + y, r);
}
FN vf mod(vf x, vf y) { return float_mod(x, y); }
FN vd mod(vd x, vd y) { return float_mod(x, y); }
FN float mod(float x, float y) { return float_mod(x, y); }
FN double mod(double x, double y) { return float_mod(x, y); }
FN vf splat_like(vf, double x) { return splat((float)x); }
FN vd splat_like(vd, double x) { return splat(x); }
FN float splat_like(float, double x) { return x; }
FN double splat_like(double, double x) { return x; }
FN vl splat_like(vl, i64 x) { return splat(x); }
FN i64 splat_like(i64, i64 x) { return x; }
template <class V> FN V float_floordiv(V x, V y) {  // as Python: from the remainder, so that it agrees with mod
  const V whole = x / y, r = fmod(x, y), q = (x - r) / y, one = splat_like(y, 1);
  const V d = where(ne(r, V{}) & (lt(r, V{}) ^ lt(y, V{})), q - one, q);
  const V f = floor(d), near = where(gt(d - f, one * splat_like(y, 0.5)), f + one, f);
  const auto overflows = eq(x - x, V{}) & ne(whole - whole, V{});
  return where(eq(y, V{}) | overflows, whole, where(eq(d, V{}), copysign(V{}, whole), near));
}
FN vf floordiv(vf x, vf y) { return float_floordiv(x, y); }
FN vd floordiv(vd x, vd y) { return float_floordiv(x, y); }
FN float floordiv(float x, float y) { return float_floordiv(x, y); }
FN double floordiv(double x, double y) { return float_floordiv(x, y); }
FN vf truncdiv(vf x, vf y) { return trunc(x / y); }
FN vd truncdiv(vd x, vd y) { return trunc(x / y); }
FN float truncdiv(float x, float y) { return trunc(x / y); }
FN double truncdiv(double x, double y) { return trunc(x / y); }
#define FS_INT_DIV(T) /* never traps: x / 0 is 0, min / -1 wraps */ \
  FN T truncdiv(T x, T y) { return y == 0 ? 0 : y == -1 ? 0 - x : x / y; } \
  FN T fmod(T x, T y) { return y == 0 || y == -1 ? 0 : x % y; } \
  FN T mod(T x, T y) { const T r = fmod(x, y); return r != 0 && (r < 0) != (y < 0) ? r + y : r; } \
  FN T floordiv(T x, T y) { return truncdiv(x, y) - (fmod(x, y) != 0 && (x < 0) != (y < 0)); } \
  FN T pow(T x, T n) { T r = 1; for (; n > 0; n >>= 1, x *= x) if (n & 1) r *= x; return r; }
FS_INT_DIV(int) FS_INT_DIV(i64)
FS_LANEWISE2(truncdiv) FS_LANEWISE2(fmod) FS_LANEWISE2(mod) FS_LANEWISE2(floordiv) FS_LANEWISE2(pow)
template <class T> FN T erfinv_of(T x) {  // Winitzki's start, then three steps in double
  const double a = 0.147, y = x, w = __builtin_log1p(-y * y), t = 4.330746750799873 + 0.5 * w;
  if (!(y > -1 && y < 1)) return y == 1 ? __builtin_inf() : y == -1 ? -__builtin_inf() : __builtin_nan("");
  double z = __builtin_copysign(__builtin_sqrt(__builtin_sqrt(t * t - w / a) - t), y);
  for (int k = 0; k < 3; k++) {  // Halley's steps on erf z - y; erfc keeps the difference exact near +-1
    const double tail = y < 0 ? __builtin_erfc(-z) - (1 + y) : (1 - y) - __builtin_erfc(z);
    const double e = y > -0.5 && y < 0.5 ? __builtin_erf(z) - y : tail;
    const double s = e / (1.1283791670955126 * __builtin_exp(-z * z));
    z -= s / (1 + z * s);
  }
  return z;
}
template <class T> FN T digamma_of(T v) {  // recurrence up to 10, then the asymptotic series
  double x = v, r = 0;
  if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
  if (x < 0) {
    if (x == __builtin_floor(x)) return __builtin_nan("");
    r = -3.14159265358979323846 / __builtin_tan(3.14159265358979323846 * (x - __builtin_rint(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) r -= 1 / x;
  const double z = 1 / (x * x);
  const double tail = 1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12));
  const double s = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * tail)));
  return r + __builtin_log(x) - 0.5 / x - s;
}
FN float erfinv(float x) { return erfinv_of(x); }
FN double erfinv(double x) { return erfinv_of(x); }
FN float digamma(float x) { return digamma_of(x); }
FN double digamma(double x) { return digamma_of(x); }
FS_LANEWISE1(erfinv) FS_LANEWISE1(digamma)

// a word of Philox-4x32, as prims/philox.py
template <class V> FN V random_bits(V seed, V offset, V vector, V threads, V place) {
  const auto all = [&](i64 x) { return splat_like(seed, x); };
  const V group = truncdiv(place, vector), turn = truncdiv(group, threads), number = group - turn * threads,
          rest = place - group * vector;
  const V own = where(eq(vector, all(1)), turn, turn * where(lt(vector, all(4)), all(4), vector) + rest);
  const V word = all(0xffffffffl), half = all(32), at = (offset >> all(2)) + (own >> all(2)), which = own & all(3);
  V a = at & word, b = (at >> half) & word, c = number & word, d = all(0), low = seed & word,
    high = (seed >> half) & word;
  for (int round = 0; round < 10; round++) {
    const V one = a * all(0xD2511F53l), two = c * all(0xCD9E8D57l);
    a = ((two >> half) & word) ^ b ^ low, b = two & word, c = ((one >> half) & word) ^ d ^ high, d = one & word;
    low = (low + all(0x9E3779B9l)) & word, high = (high + all(0xBB67AE85l)) & word;
  }
  return where(eq(which, all(0)), a, where(eq(which, all(1)), b, where(eq(which, all(2)), c, d)));
}
