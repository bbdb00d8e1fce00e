// `_C.contract`: the contraction template of generated code with run-time geometry. It measures candidates at compile
// time of a graph and serves as the template's eager meaning.
#include <Python.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "tile.h"

namespace framesmith {
namespace {

struct Geometry {
  i64 images, image_stride, lines, line_stride, m, lda, n, rows, columns;
  fs::Runs runs;
};

// Every tile whose accumulators, one row of B and one broadcast fit the registers.
constexpr int kRegisters = W == 16 ? 32 : 16;
constexpr int most_rows(int vectors) { return (kRegisters - (vectors < 3 ? 3 : 4)) / vectors; }
bool has_tile(i64 rows, i64 vectors) { return vectors > 0 && vectors <= 4 && rows > 0 && rows <= most_rows(vectors); }
auto tile_of(int rows, int vectors) {
  return with_constant<4>(vectors, [rows](auto nv) {
    constexpr int NV = decltype(nv)::value;
    return with_constant<most_rows(NV)>(rows, [](auto mr) { return &fs::contract_tile<mr, NV>; });
  });
}

void contract(const float* a, const float* b, float* out, const Geometry& g) {
  const i64 panels = (g.n + g.columns - 1) / g.columns, total_depth = g.runs.outer * g.runs.inner * g.runs.depth;
  const i64 blocks = (g.m + g.rows * 8 - 1) / (g.rows * 8), tasks = g.images * g.lines * blocks;
#pragma omp parallel for collapse(2) schedule(static) if (g.images * g.lines * g.m * g.n * total_depth > 100000)
  for (i64 p = 0; p < panels; p++)
    for (i64 t = 0; t < tasks; t++) {
      alignas(64) float buffer[32 * W];
      const i64 line = t / blocks, first = p * g.columns, wide = std::min(g.n - first, g.columns);
      const int vectors = (int)((wide + W - 1) / W);
      const float* base = a + line / g.lines * g.image_stride + line % g.lines * g.line_stride;
      const i64 stop = std::min((t % blocks + 1) * g.rows * 8, g.m);
      for (i64 m = t % blocks * g.rows * 8; m < stop; m += g.rows) {
        const int rows = (int)std::min(stop - m, g.rows);
        tile_of(rows, vectors)(base + m * g.lda, g.lda, g.runs, b + first * total_depth, buffer);
        for (int i = 0; i < rows; i++)
          __builtin_memcpy(out + (line * g.m + m + i) * g.n + first, buffer + i * vectors * W, wide * sizeof(float));
      }
    }
}

PyObject* py_contract(PyObject*, PyObject* args) {
  long long a, b, out;
  Geometry g;
  fs::Runs& r = g.runs;
  if (!PyArg_ParseTuple(args, "LLL(llllllllllllll)", &a, &b, &out, &g.images, &g.image_stride, &g.lines, &g.line_stride,
                        &g.m, &g.lda, &g.n, &g.rows, &g.columns, &r.outer, &r.outer_stride, &r.inner, &r.inner_stride,
                        &r.depth))
    return nullptr;
  if (g.columns % W || !has_tile(g.rows, g.columns / W)) {
    PyErr_Format(PyExc_ValueError, "no tile of %lld rows and %lld columns", (long long)g.rows, (long long)g.columns);
    return nullptr;
  }
  Py_BEGIN_ALLOW_THREADS;
  contract((const float*)a, (const float*)b, (float*)out, g);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

// Fresh memory of some megabytes comes in huge pages where there are any: small ones' faults cost more than packing.
// The advice holds for the whole huge pages at both ends, since what stands next to `p` is packed next.
void want_huge_pages(float* p, i64 bytes) {
#ifdef MADV_HUGEPAGE
  constexpr i64 huge = 2 << 20;
  const i64 first = (i64)p / huge * huge, last = round_up((i64)p + bytes, huge);
  if (bytes >= huge / 2) madvise((void*)first, last - first, MADV_HUGEPAGE);
#endif
}

struct Writer {
  float* to;
  void operator()(i64 at, vf x) { store(to + at, x, full); }
  void operator()(i64 at, const float* from, i64 count) { __builtin_memcpy(to + at, from, count * sizeof(float)); }
  static constexpr bool differs() { return false; }
};

// Compares bits, so that a NaN equals itself, and -0 is not 0.
struct Comparer {
  const float* with;
  fs::vi bits{};
  bool other = false;
  void operator()(i64 at, vf x) { bits |= fs::bits<fs::vi>(x) ^ fs::bits<fs::vi>(load(with + at, full)); }
  void operator()(i64 at, const float* from, i64 count) {
    other |= std::memcmp(with + at, from, count * sizeof(float)) != 0;
  }
  bool differs() const { return other || fs::some(fs::vm{bits != 0}); }
};

struct Panels {
  const float* w;
  i64 depth, n, k_stride, n_stride, columns;
};

// w[k * k_stride + n * n_stride] -> panel p of `columns` columns, the last one of whole vectors, filled up with 0.
// `put` takes what stands from a place on in the memory of all panels.
template <class Put> void pack_panel(const Panels& g, i64 p, Put& put) {
  constexpr i64 B = 16;
  const i64 first = p * g.columns, live = std::min(g.n - first, g.columns), depth = g.depth;
  const i64 wide = live == g.columns ? g.columns : round_up(live, W), to = first * depth;
  const float* from = g.w + first * g.n_stride;
  if (g.k_stride == 1 && g.columns % W == 0 && g.columns <= 4 * W) {
    with_constant<4>((int)(g.columns / W), [&](auto nv) {
      turn_panels<decltype(nv)::value>(from, g.n_stride, depth, live, [&](i64 at, vf x) { put(to + at, x); });
      return 0;
    });
    return;
  }
  const float none[W] = {};
  for (i64 k0 = 0; k0 < depth; k0 += B) {
    const i64 k1 = std::min(k0 + B, depth);
    if (g.n_stride == 1) {
      for (i64 k = k0; k < k1; k++) put(to + k * wide, from + k * g.k_stride, live);
    } else {
      for (i64 j = 0; j < live; j++)
        for (i64 k = k0; k < k1; k++) put(to + k * wide + j, from + k * g.k_stride + j * g.n_stride, 1);
    }
    for (i64 k = k0; wide > live && k < k1; k++) put(to + k * wide + live, none, wide - live);
  }
}

// All panels, by `put`; whether it differs.
template <class Put> bool pack_panels(const Panels& g, const Put& put) {
  const i64 panels = (g.n + g.columns - 1) / g.columns;
  std::atomic<bool> differs = false;
#pragma omp parallel for schedule(dynamic) if (g.depth * g.n > 100000)
  for (i64 p = 0; p < panels; p++) {
    if (differs) continue;
    Put own = put;
    pack_panel(g, p, own);
    if (own.differs()) differs = true;
  }
  return differs;
}

bool read_panels(PyObject* args, Panels& g, float*& out) {
  long long w, to;
  if (!PyArg_ParseTuple(args, "LLlllll", &w, &to, &g.depth, &g.n, &g.k_stride, &g.n_stride, &g.columns)) return false;
  g.w = (const float*)w;
  out = (float*)to;
  return true;
}

PyObject* py_pack(PyObject*, PyObject* args) {
  Panels g;
  float* out;
  if (!read_panels(args, g, out)) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  want_huge_pages(out, (i64)sizeof(float) * g.depth * round_up(g.n, W));
  pack_panels(g, Writer{out});
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* py_is_packed(PyObject*, PyObject* args) {
  Panels g;
  float* out;
  if (!read_panels(args, g, out)) return nullptr;
  bool differs;
  Py_BEGIN_ALLOW_THREADS;
  differs = pack_panels(g, Comparer{out});
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(!differs);
}

PyMethodDef methods[] = {
    {"pack", py_pack, METH_VARARGS,
     "pack(weight, out, depth, n, k_stride, n_stride, columns): float32 panels (see loops.contract)."},
    {"is_packed", py_is_packed, METH_VARARGS, "Whether `pack` of the same arguments would change no bit of `out`."},
    {"contract", py_contract, METH_VARARGS,
     "contract(a, b, out, geometry): addresses of float32 data, and (images, image_stride, lines, line_stride, m, lda, "
     "n, rows, columns,\nouter runs, their stride, inner runs, their stride, depth); writes out[images, lines, m, n]."},
    {nullptr, nullptr, 0, nullptr}};
}  // namespace
}  // namespace framesmith

int init_contract(PyObject* module) {
  using namespace framesmith;
  return PyModule_AddFunctions(module, methods) < 0 || PyModule_AddIntConstant(module, "LANES", W) < 0 ||
                 PyModule_AddIntConstant(module, "VECTOR_REGISTERS", kRegisters) < 0
             ? -1
             : 0;
}
