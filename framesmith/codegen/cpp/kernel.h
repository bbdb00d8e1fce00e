// What generated CPU kernels stand on: vectors of W lanes, loads and stores with conversion, math accurate to 1-2 ulp.
// No other header is included, and a translation unit has the declarations that it needs (header.py), so that it parses
// in milliseconds. Every function has a scalar and a vector form under one name. Lane types: vf float, vi int32 (and
// narrower), vl int64, vd double (the last two are pairs of halves), vm a mask (0 or -1 a lane).
#pragma once
#define FN static inline __attribute__((always_inline))
extern "C" int omp_get_thread_num(), omp_get_num_threads();
namespace fs {
#if defined(__AVX512F__)
enum { W = 16 };
#define FS_LANES(X) X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7), X(8), X(9), X(10), X(11), X(12), X(13), X(14), X(15)
#else
enum { W = 8 };
#define FS_LANES(X) X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7)
#endif
#define FS_HALF(X) FS_HALF_(X)
#if defined(__AVX512F__)
#define FS_HALF_(X) X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7)
#define FS_UPPER(X) X(8), X(9), X(10), X(11), X(12), X(13), X(14), X(15)
#else
#define FS_HALF_(X) X(0), X(1), X(2), X(3)
#define FS_UPPER(X) X(4), X(5), X(6), X(7)
#endif
#define FS_VEC(name, T, n) \
  typedef T name __attribute__((vector_size(n * sizeof(T)))); \
  typedef T name##_u __attribute__((vector_size(n * sizeof(T)), aligned(1), may_alias));
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned u32;
typedef long i64;
#if defined(__aarch64__)
typedef __fp16 half;
#else
typedef _Float16 half;
#endif
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
FS_VEC(vf, float, W) FS_VEC(vi, int, W) FS_VEC(vu, u32, W) FS_VEC(vh, u16, W) FS_VEC(vs, i16, W) FS_VEC(vb, u8, W)
FS_VEC(vc, i8, W) FS_VEC(hd, double, W / 2) FS_VEC(hl, i64, W / 2) FS_VEC(hi, int, W / 2) FS_VEC(hf, float, W / 2)
struct vm { vi m; };
struct vd { hd a, b; };
struct vl { hl a, b; };
struct Full {};  // in place of a count of live lanes: all of them
constexpr Full full{};

#define FS_ID(l) l
#define FS_CAT(T, x, y) __builtin_shufflevector(x, y, FS_LANES(FS_ID))
#define FS_LO(x) __builtin_shufflevector(x, x, FS_HALF(FS_ID))
#define FS_HI(x) __builtin_shufflevector(x, x, FS_UPPER(FS_ID))
#define FS_EACH(r, e) for (int l = 0; l < W; l++) r[l] = e
#define FS_HALVES1(r, f) for (int l = 0; l < W / 2; l++) r.a[l] = f(x.a[l]), r.b[l] = f(x.b[l])
#define FS_HALVES2(r, f) for (int l = 0; l < W / 2; l++) r.a[l] = f(x.a[l], y.a[l]), r.b[l] = f(x.b[l], y.b[l])
#define FS_CVT(x, T) __builtin_convertvector(x, T)

// ---- splat, iota, masks
FN vf splat(float x) { return x - vf{}; }  // 0 + x would lose the sign of -0
FN vi splat(int x) { return vi{} + x; }
FN vl splat(i64 x) { return {hl{} + x, hl{} + x}; }
FN vd splat(double x) { return {x - hd{}, x - hd{}}; }
FN vm splat(bool x) { return {vi{} - (int)x}; }
template <class V> FN V splat(V x) { return x; }
FN vi iota32() { return vi{FS_LANES(FS_ID)}; }
FN vl iota(i64 base, i64 step = 1) {
  const hl a = hl{FS_HALF(FS_ID)};
  return {base + step * a, base + step * (a + W / 2)};
}
FN vm lanes(int n) { return {iota32() < n}; }
FN vm narrow(hl a, hl b) { return {FS_CAT(vi, FS_CVT(a, hi), FS_CVT(b, hi))}; }
FN hl low(vm m) { return FS_CVT(FS_LO(m.m), hl); }
FN hl high(vm m) { return FS_CVT(FS_HI(m.m), hl); }

// ---- operators that the compiler does not give
#define FS_PAIR_OP(V, op) \
  FN V operator op(V x, V y) { return {x.a op y.a, x.b op y.b}; }
#define FS_PAIR_CMP(V, name, op) \
  FN vm name(V x, V y) { return narrow(x.a op y.a, x.b op y.b); }
FS_PAIR_OP(vd, +) FS_PAIR_OP(vd, -) FS_PAIR_OP(vd, *) FS_PAIR_OP(vd, /)
FS_PAIR_OP(vl, +) FS_PAIR_OP(vl, -) FS_PAIR_OP(vl, *)
FS_PAIR_OP(vl, &) FS_PAIR_OP(vl, |) FS_PAIR_OP(vl, ^) FS_PAIR_OP(vl, <<) FS_PAIR_OP(vl, >>)
FN vd operator-(vd x) { return {-x.a, -x.b}; }
FN vl operator-(vl x) { return {-x.a, -x.b}; }
FN vl operator~(vl x) { return {~x.a, ~x.b}; }
FN vm operator&(vm x, vm y) { return {x.m & y.m}; }
FN vm operator|(vm x, vm y) { return {x.m | y.m}; }
FN vm operator^(vm x, vm y) { return {x.m ^ y.m}; }
FN vm operator~(vm x) { return {~x.m}; }
#define FS_CMP(name, op) \
  FN vm name(vf x, vf y) { return {x op y}; } \
  FN vm name(vi x, vi y) { return {x op y}; } \
  FS_PAIR_CMP(vl, name, op) FS_PAIR_CMP(vd, name, op) \
  template <class T> FN bool name(T x, T y) { return x op y; }
FS_CMP(lt, <) FS_CMP(le, <=) FS_CMP(gt, >) FS_CMP(ge, >=) FS_CMP(eq, ==) FS_CMP(ne, !=)
FN vm eq(vm x, vm y) { return ~(x ^ y); }
FN vm ne(vm x, vm y) { return x ^ y; }
FN vm lt(vm x, vm y) { return ~x & y; }
FN vm gt(vm x, vm y) { return x & ~y; }
FN vm le(vm x, vm y) { return ~x | y; }
FN vm ge(vm x, vm y) { return x | ~y; }
FN vf where(vm m, vf x, vf y) { return m.m ? x : y; }
FN vi where(vm m, vi x, vi y) { return m.m ? x : y; }
FN vd where(vm m, vd x, vd y) { return {low(m) ? x.a : y.a, high(m) ? x.b : y.b}; }
FN vl where(vm m, vl x, vl y) { return {low(m) ? x.a : y.a, high(m) ? x.b : y.b}; }
FN vm where(vm m, vm x, vm y) { return {m.m ? x.m : y.m}; }
template <class T> FN T where(bool m, T x, T y) { return m ? x : y; }
FN bool logical_not(bool x) { return !x; }
FN vm logical_not(vm x) { return ~x; }
FN bool some(vm m) {  // any lane
#if defined(__AVX512DQ__) && !defined(__clang__)
  return __builtin_ia32_cvtd2mask512(m.m) != 0;
#endif
  const vl w = {low(m), high(m)};
  const hl h = w.a | w.b;
  i64 r = 0;
  for (int l = 0; l < W / 2; l++) r |= h[l];
  return r != 0;
}
template <class V, class S> FN V keep(V x, S, Full) { return x; }
template <class V, class S> FN V keep(V x, S rest, int n) { return where(lanes(n), x, splat(rest)); }

// ---- bits
template <class T, class S> FN T bits(S x) {
  T r;
  static_assert(sizeof(T) == sizeof(S), "bits");
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}

// ---- conversions between lane types; float to integer truncates
FN vf to_f32(vf x) { return x; }
FN vf to_f32(vi x) { return FS_CVT(x, vf); }
FN vf to_f32(vl x) { return FS_CAT(vf, FS_CVT(x.a, hf), FS_CVT(x.b, hf)); }
FN vf to_f32(vd x) { return FS_CAT(vf, FS_CVT(x.a, hf), FS_CVT(x.b, hf)); }
FN vf to_f32(vm x) { return x.m ? splat(1.0f) : splat(0.0f); }
FN vd to_f64(vf x) { return {FS_CVT(FS_LO(x), hd), FS_CVT(FS_HI(x), hd)}; }
FN vd to_f64(vi x) { return {FS_CVT(FS_LO(x), hd), FS_CVT(FS_HI(x), hd)}; }
FN vd to_f64(vl x) { return {FS_CVT(x.a, hd), FS_CVT(x.b, hd)}; }
FN vd to_f64(vd x) { return x; }
FN vd to_f64(vm x) { return {FS_CVT(-low(x), hd), FS_CVT(-high(x), hd)}; }
FN vl to_i64(vf x) { return {FS_CVT(FS_LO(x), hl), FS_CVT(FS_HI(x), hl)}; }
FN vl to_i64(vi x) { return {FS_CVT(FS_LO(x), hl), FS_CVT(FS_HI(x), hl)}; }
FN vl to_i64(vl x) { return x; }
FN vl to_i64(vd x) { return {FS_CVT(x.a, hl), FS_CVT(x.b, hl)}; }
FN vl to_i64(vm x) { return {-low(x), -high(x)}; }
FN vi to_i32(vf x) { return FS_CVT(x, vi); }
FN vi to_i32(vi x) { return x; }
FN vi to_i32(vl x) { return FS_CAT(vi, FS_CVT(x.a, hi), FS_CVT(x.b, hi)); }
FN vi to_i32(vd x) { return FS_CAT(vi, FS_CVT(x.a, hi), FS_CVT(x.b, hi)); }
FN vi to_i32(vm x) { return -x.m; }
FN vm to_b8(vm x) { return x; }
template <class V> FN vm to_b8(V x) { return ne(x, V{}); }
#define FS_TO(name, T) \
  FN T name(float x) { return (T)x; } \
  FN T name(double x) { return (T)x; } \
  FN T name(i64 x) { return (T)x; } \
  FN T name(int x) { return (T)x; } \
  FN T name(bool x) { return (T)x; }
FS_TO(to_f32, float) FS_TO(to_f64, double) FS_TO(to_i64, i64) FS_TO(to_i32, int)
template <class T> FN auto to_u8(T x) { return to_i32(x) & 0xff; }
template <class T> FN auto to_i8(T x) { return (to_i32(x) << 24) >> 24; }
template <class T> FN auto to_i16(T x) { return (to_i32(x) << 16) >> 16; }
template <class T> FN auto to_u16(T x) { return to_i32(x) & 0xffff; }
FN bool to_b8(float x) { return x != 0; }
FN bool to_b8(double x) { return x != 0; }
FN bool to_b8(i64 x) { return x != 0; }
FN bool to_b8(int x) { return x != 0; }
FN bool to_b8(bool x) { return x; }

// ---- between int32 lanes and narrower integers in memory (g++ 12 takes __builtin_convertvector apart into lanes here)
#if defined(__AVX512BW__) && !defined(__clang__)
typedef char fs_chars __attribute__((vector_size(16)));
FN vi widen_lanes(vb x) { return __builtin_ia32_pmovzxbd512_mask((fs_chars)x, vi{}, -1); }
FN vi widen_lanes(vc x) { return __builtin_ia32_pmovsxbd512_mask((fs_chars)x, vi{}, -1); }
FN vi widen_lanes(vh x) { return __builtin_ia32_pmovzxwd512_mask((vs)x, vi{}, -1); }
FN vi widen_lanes(vs x) { return __builtin_ia32_pmovsxwd512_mask(x, vi{}, -1); }
FN vc low_bytes(vi x) { return (vc)__builtin_ia32_pmovdb512_mask(x, fs_chars{}, -1); }
FN vs low_words(vi x) { return __builtin_ia32_pmovdw512_mask(x, vs{}, -1); }
#else
template <class V> FN vi widen_lanes(V x) { return FS_CVT(x, vi); }
FN vc low_bytes(vi x) { return FS_CVT(x, vc); }
FN vs low_words(vi x) { return FS_CVT(x, vs); }
#endif

// ---- half floats: widened on load, rounded to nearest even on store
FN float widen(bf16 x) { return bits<float>((u32)x.bits << 16); }
FN u16 round_bf16(float x) {
  const u32 u = bits<u32>(x);
  return x != x ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
FN vf widen_bf16(vh x) { return bits<vf>(widen_lanes(x) << 16); }
FN vh round_bf16(vf x) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__) && !defined(__clang__)
  const int subnormal = 1 << 5;  // the instruction takes such numbers for 0
  if (__builtin_expect(!__builtin_ia32_fpclassps512_mask(x, subnormal, -1), 1))
    return (vh)__builtin_ia32_cvtneps2bf16_v16sf(x);
#endif
  const vu u = bits<vu>(x), r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return (vh)low_words((vi)((x != x) ? (vu{} + 0x7fc0) : r));
}
FN vf widen_f16(vh x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return (vf)__builtin_ia32_vcvtph2ps512_mask((vs)x, vf{}, -1, 4);
#elif defined(__F16C__) && !defined(__AVX512F__)
  return (vf)__builtin_ia32_vcvtph2ps256((vs)x);
#else
  vf r;
  FS_EACH(r, (float)bits<half>((u16)x[l]));
  return r;
#endif
}
FN vh round_f16(vf x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return (vh)__builtin_ia32_vcvtps2ph512_mask(x, 0, vs{}, -1);
#elif defined(__F16C__) && !defined(__AVX512F__)
  return (vh)__builtin_ia32_vcvtps2ph256(x, 0);
#else
  vh r;
  FS_EACH(r, bits<u16>((half)x[l]));
  return r;
#endif
}
FN float widen(f16 x) { return (float)bits<half>(x.bits); }
FN u16 round_f16(float x) { return bits<u16>((half)x); }
FN float to_bf16(float x) { return widen(bf16{round_bf16(x)}); }  // a float holding the nearest bf16
FN vf to_bf16(vf x) { return widen_bf16(round_bf16(x)); }
FN float to_f16(float x) { return widen(f16{round_f16(x)}); }
FN vf to_f16(vf x) { return widen_f16(round_f16(x)); }

// ---- memory: contiguous lanes, all or the first n; strided; gathered; one element
FN vf load(const float* p, Full) { return *(const vf_u*)p; }
FN vi load(const int* p, Full) { return *(const vi_u*)p; }
FN vi load(const i16* p, Full) { return widen_lanes((vs)*(const vs_u*)p); }
FN vi load(const u16* p, Full) { return widen_lanes((vh)*(const vh_u*)p); }
FN vi load(const i8* p, Full) { return widen_lanes((vc)*(const vc_u*)p); }
FN vi load(const u8* p, Full) { return widen_lanes((vb)*(const vb_u*)p); }
FN vm load(const bool* p, Full) { return {load((const u8*)p, Full()) != 0}; }
FN vl load(const i64* p, Full) { return {*(const hl_u*)p, *(const hl_u*)(p + W / 2)}; }
FN vd load(const double* p, Full) { return {*(const hd_u*)p, *(const hd_u*)(p + W / 2)}; }
FN vf load(const bf16* p, Full) { return widen_bf16(*(const vh_u*)p); }
FN vf load(const f16* p, Full) { return widen_f16(*(const vh_u*)p); }
FN void store(float* p, vf x, Full) { *(vf_u*)p = x; }
FN void store(int* p, vi x, Full) { *(vi_u*)p = x; }
FN void store(i16* p, vi x, Full) { *(vs_u*)p = low_words(x); }
FN void store(u16* p, vi x, Full) { *(vh_u*)p = (vh)low_words(x); }
FN void store(i8* p, vi x, Full) { *(vc_u*)p = low_bytes(x); }
FN void store(u8* p, vi x, Full) { *(vb_u*)p = (vb)low_bytes(x); }
FN void store(bool* p, vm x, Full) { *(vb_u*)p = (vb)low_bytes(-x.m); }
FN void store(i64* p, vl x, Full) { *(hl_u*)p = x.a, *(hl_u*)(p + W / 2) = x.b; }
FN void store(double* p, vd x, Full) { *(hd_u*)p = x.a, *(hd_u*)(p + W / 2) = x.b; }
FN void store(bf16* p, vf x, Full) { *(vh_u*)p = round_bf16(x); }
FN void store(f16* p, vf x, Full) { *(vh_u*)p = round_f16(x); }
template <class T> FN auto load(const T* p, int n) {
  T t[W] = {};
  __builtin_memcpy(t, p, n * sizeof(T));
  return load(t, Full());
}
template <class T, class V> FN void store(T* p, V x, int n) {
  T t[W];
  store(t, x, Full());
  __builtin_memcpy(p, t, n * sizeof(T));
}
#if defined(__AVX512F__) && !defined(__clang__)
FN vf load(const float* p, int n) { return __builtin_ia32_loadups512_mask(p, vf{}, (1u << n) - 1); }
FN void store(float* p, vf x, int n) { __builtin_ia32_storeups512_mask(p, x, (1u << n) - 1); }
#endif
FN float load(const bf16* p) { return widen(*p); }
FN float load(const f16* p) { return widen(*p); }
FN int load(const i8* p) { return *p; }
FN int load(const u8* p) { return *p; }
FN int load(const i16* p) { return *p; }
FN int load(const u16* p) { return *p; }
template <class T> FN T load(const T* p) { return *p; }
FN void store(bf16* p, float x) { p->bits = round_bf16(x); }
FN void store(f16* p, float x) { p->bits = round_f16(x); }
template <class T> FN void store(T* p, T x) { *p = x; }
FN void store(i8* p, int x) { *p = x; }
FN void store(u8* p, int x) { *p = x; }
FN void store(i16* p, int x) { *p = x; }
FN void store(u16* p, int x) { *p = x; }
template <class T> FN auto load_strided(const T* p, i64 s, int n) {
  T t[W] = {};
  for (int l = 0; l < n; l++) t[l] = p[l * s];
  return load(t, Full());
}
template <class T> FN auto load_strided(const T* p, i64 s, Full) {
#define FS_AT(l) p[l * s]
  const T t[W] = {FS_LANES(FS_AT)};
  return load(t, Full());
}
FN vf load_strided(const float* p, i64 s, Full) { return vf{FS_LANES(FS_AT)}; }
FN int live(Full) { return W; }
FN int live(int n) { return n; }
FN i64 lane(vl v, int l) { return l < W / 2 ? v.a[l] : v.b[l - W / 2]; }
FN double lane(vd v, int l) { return l < W / 2 ? v.a[l] : v.b[l - W / 2]; }
FN float lane(vf v, int l) { return v[l]; }
FN int lane(vi v, int l) { return v[l]; }
FN bool lane(vm v, int l) { return v.m[l]; }
template <class T, class M> FN auto gather(const T* p, vl at, M n) {  // dead lanes read nothing
  T t[W] = {};
  i64 k[W];
  store(k, at, Full());
  for (int l = 0; l < live(n); l++) t[l] = p[k[l]];
  return load(t, Full());
}
template <class T, class M> FN auto gather(const T* p, vi at, M n) {  // near positions, known to fit 32 bits
  T t[W] = {};
  for (int l = 0; l < live(n); l++) t[l] = p[at[l]];
  return load(t, full);
}
#if defined(__AVX512F__) && !defined(__clang__)
FN vf gather(const float* p, vi at, Full) { return __builtin_ia32_gathersiv16sf(vf{}, p, at, -1, 4); }
FN vf gather(const float* p, vi at, int n) { return __builtin_ia32_gathersiv16sf(vf{}, p, at, (1u << n) - 1, 4); }
#endif
template <class T, class M> FN auto gather(const T* p, vl at, vm m, M n) {  // masked lanes read nothing and hold 0
  T t[W] = {};
  i64 k[W];
  store(k, at, Full());
  for (int l = 0; l < live(n); l++)
    if (m.m[l]) t[l] = p[k[l]];
  return load(t, Full());
}
template <class T, class V, class M> FN void store_strided(T* p, i64 s, V x, M n) {
  T t[W];
  store(t, x, Full());
  for (int l = 0; l < live(n); l++) p[l * s] = t[l];
}
#define FS_SCATTER(name, write) \
  template <class T, class V, class M> FN void name(T* p, vl at, V x, M n) { \
    i64 k[W]; \
    store(k, at, full); \
    for (int l = 0; l < live(n); l++) write(p + k[l], lane(x, l)); \
  } \
  template <class T, class V, class M> FN void name(T* p, vl at, V x, vm m, M n) { \
    i64 k[W]; \
    store(k, at, full); \
    for (int l = 0; l < live(n); l++) \
      if (m.m[l]) write(p + k[l], lane(x, l)); \
  }
template <class T, class S> FN void add_to(T* p, S x) { store(p, S(load(p) + x)); }
template <class T> FN void atomic_to(T* p, T x) {
#pragma omp atomic
  *p += x;
}
template <class T, class S> static inline __attribute__((noinline)) void atomic_to(T* p, S x) {  // narrow types
#pragma omp critical(framesmith_narrow)
  add_to(p, x);
}
template <class T, class V, class M> FN void add_run(T* p, V x, M n) { store(p, load(p, n) + x, n); }
FN vi divide_near(vi x, int d) { return FS_CVT((FS_CVT(x, vf) + 0.5f) * (1.0f / d), vi); }  // 0 <= x < 2^21
FN vi modulo_near(vi x, int d) { return x - divide_near(x, d) * d; }
FS_SCATTER(scatter, store) FS_SCATTER(add_scatter, add_to) FS_SCATTER(atomic_scatter, atomic_to)
// memory of masked lanes is not touched; they hold 0
template <class T, class M> FN auto load_if(const T* p, vm m, M n) {
  T t[W] = {};
  for (int l = 0; l < live(n); l++)
    if (m.m[l]) t[l] = p[l];
  return load(t, full);
}
template <class T, class V, class M> FN void store_if(T* p, V x, vm m, M n) {
  T t[W];
  store(t, x, full);
  for (int l = 0; l < live(n); l++)
    if (m.m[l]) p[l] = t[l];
}
#if defined(__AVX512F__) && !defined(__clang__)
FN u16 mask_bits(vm m, Full) { return __builtin_ia32_cvtd2mask512(m.m); }
FN u16 mask_bits(vm m, int n) { return __builtin_ia32_cvtd2mask512(m.m) & ((1u << n) - 1); }
template <class M> FN vf load_if(const float* p, vm m, M n) {
  return __builtin_ia32_loadups512_mask(p, vf{}, mask_bits(m, n));
}
template <class M> FN void store_if(float* p, vf x, vm m, M n) {
  __builtin_ia32_storeups512_mask(p, x, mask_bits(m, n));
}
#endif
// an index into [0, size); out of range sets the flag and gives 0
template <bool Wrap> FN i64 position(i64 i, i64 size, i64* error) {
  if (Wrap) i = i < 0 ? i + size : i;
  if (!error || (unsigned long)i < (unsigned long)size) return i;
  *error = 1;
  return 0;
}
template <bool Wrap, class M> FN vl position(vl i, i64 size, i64* error, M n) {
  if (Wrap) i = where(lt(i, vl{}), i + splat(size), i);
  if (!error) return i;
  const vm good = ge(i, vl{}) & lt(i, splat(size)), bad = keep(~good, false, n);
  if (__builtin_expect(some(bad), 0)) *error = 1;
  return where(good, i, vl{});
}

// ---- rounding, square root, minimum and maximum (NaN wins)
#if defined(__clang__)
#define FS_ROUND(name, builtin, scalar, imm) \
  FN vf name(vf x) { return builtin(x); } \
  FN hd name(hd x) { return builtin(x); }
FN vf sqrt(vf x) { return __builtin_elementwise_sqrt(x); }
FN hd sqrt(hd x) { return __builtin_elementwise_sqrt(x); }
#elif defined(__AVX512F__)
#define FS_ROUND(name, builtin, scalar, imm) \
  FN vf name(vf x) { return __builtin_ia32_rndscaleps_mask(x, imm, x, -1, 4); } \
  FN hd name(hd x) { return __builtin_ia32_rndscalepd_mask(x, imm, x, -1, 4); }
FN vf sqrt(vf x) { return __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
FN hd sqrt(hd x) { return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4); }
#elif defined(__AVX2__)
#define FS_ROUND(name, builtin, scalar, imm) \
  FN vf name(vf x) { return __builtin_ia32_roundps256(x, imm); } \
  FN hd name(hd x) { return __builtin_ia32_roundpd256(x, imm); }
FN vf sqrt(vf x) { return __builtin_ia32_sqrtps256(x); }
FN hd sqrt(hd x) { return __builtin_ia32_sqrtpd256(x); }
#else
#define FS_ROUND(name, builtin, scalar, imm) \
  FN vf name(vf x) { vf r; FS_EACH(r, scalar##f(x[l])); return r; } \
  FN hd name(hd x) { hd r; for (int l = 0; l < W / 2; l++) r[l] = scalar(x[l]); return r; }
FN vf sqrt(vf x) { vf r; FS_EACH(r, __builtin_sqrtf(x[l])); return r; }
FN hd sqrt(hd x) { hd r; for (int l = 0; l < W / 2; l++) r[l] = __builtin_sqrt(x[l]); return r; }
#endif
#define FS_ROUNDS(name, builtin, scalar, imm) \
  FS_ROUND(name, builtin, scalar, imm) \
  FN vd name(vd x) { return {name(x.a), name(x.b)}; } \
  FN float name(float x) { return scalar##f(x); } \
  FN double name(double x) { return scalar(x); } \
  FN vi name(vi x) { return x; } \
  FN vl name(vl x) { return x; } \
  FN int name(int x) { return x; } \
  FN i64 name(i64 x) { return x; }
FS_ROUNDS(round, __builtin_elementwise_roundeven, __builtin_rint, 8)
FS_ROUNDS(floor, __builtin_elementwise_floor, __builtin_floor, 9)
FS_ROUNDS(ceil, __builtin_elementwise_ceil, __builtin_ceil, 10)
FS_ROUNDS(trunc, __builtin_elementwise_trunc, __builtin_trunc, 11)
FN vd sqrt(vd x) { return {sqrt(x.a), sqrt(x.b)}; }
FN float sqrt(float x) { return __builtin_sqrtf(x); }
FN double sqrt(double x) { return __builtin_sqrt(x); }
FN vm isnan(vf x) { return {x != x}; }
FN vm isnan(vd x) { return ne(x, x); }
FN vm isnan(vi) { return vm{vi{}}; }
FN vm isnan(vl) { return vm{vi{}}; }
FN vm isnan(vm) { return vm{vi{}}; }
template <class T> FN bool isnan(T x) { return x != x; }
#if defined(__AVX512F__) && !defined(__clang__)
FN vf max_(vf x, vf y) { return __builtin_ia32_maxps512_mask(x, y, x, -1, 4); }  // y where either is NaN
FN vf min_(vf x, vf y) { return __builtin_ia32_minps512_mask(x, y, x, -1, 4); }
#else
FN vf max_(vf x, vf y) { return x > y ? x : y; }
FN vf min_(vf x, vf y) { return x < y ? x : y; }
#endif
FN vf max(vf x, vf y) { return x != x ? x : max_(x, y); }
FN vf min(vf x, vf y) { return x != x ? x : min_(x, y); }
FN vd max(vd x, vd y) { return where(gt(x, y) | isnan(x), x, y); }
FN vd min(vd x, vd y) { return where(lt(x, y) | isnan(x), x, y); }
FN vi max(vi x, vi y) { return x > y ? x : y; }
FN vi min(vi x, vi y) { return x < y ? x : y; }
FN vl max(vl x, vl y) { return {x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b}; }
FN vl min(vl x, vl y) { return {x.a < y.a ? x.a : y.a, x.b < y.b ? x.b : y.b}; }
FN vm max(vm x, vm y) { return x | y; }
FN vm min(vm x, vm y) { return x & y; }
template <class T> FN T max(T x, T y) { return x > y || x != x ? x : y; }
template <class T> FN T min(T x, T y) { return x < y || x != x ? x : y; }
FN vf abs(vf x) { return bits<vf>(bits<vi>(x) & 0x7fffffff); }
FN vd abs(vd x) {
  return {bits<hd>(bits<hl>(x.a) & 0x7fffffffffffffffL), bits<hd>(bits<hl>(x.b) & 0x7fffffffffffffffL)};
}
FN vi abs(vi x) { return x < 0 ? -x : x; }
FN vl abs(vl x) { return max(x, -x); }
FN float abs(float x) { return __builtin_fabsf(x); }
FN double abs(double x) { return __builtin_fabs(x); }
template <class T> FN T abs(T x) { return x < 0 ? -x : x; }
FN vf copysign(vf x, vf y) { return bits<vf>((bits<vi>(x) & 0x7fffffff) | (bits<vi>(y) & (int)0x80000000)); }
FN vm signbit(vf x) { return {bits<vi>(x) < 0}; }
FN bool signbit(float x) { return bits<int>(x) < 0; }
FN vf finite_or(vf x, vf y) { return (bits<vi>(x) & 0x7f800000) == 0x7f800000 ? y : x; }
template <class V> FN vm isinf_v(V x, V top) { return eq(abs(x), top); }
FN vm isinf(vf x) { return isinf_v(x, splat(__builtin_inff())); }
FN vm isinf(vd x) { return isinf_v(x, splat(__builtin_inf())); }
FN bool isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
FN bool isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }

#include "kernel_math.h"
#include "kernel_reduce.h"
#include "kernel_tile.h"
}  // namespace fs
