// `_C.contract`: the contraction template of generated code with run-time geometry. It measures candidates at compile
// time of a graph and serves as the template's eager meaning.
#include <Python.h>
#include <sys/mman.h>
#include <unistd.h>

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
void want_huge_pages(float* p, i64 bytes) {
#ifdef MADV_HUGEPAGE
  const i64 page = sysconf(_SC_PAGESIZE), first = ((i64)p + page - 1) / page * page,
            last = ((i64)p + bytes) / page * page;
  if (last - first >= (1 << 20)) madvise((void*)first, last - first, MADV_HUGEPAGE);
#endif
}

// w[k * k_stride + n * n_stride] -> panels of `columns` columns, the last one of whole vectors, filled up with 0.
void pack(const float* w, float* out, i64 depth, i64 n, i64 k_stride, i64 n_stride, i64 columns) {
  const i64 panels = (n + columns - 1) / columns;
  constexpr i64 B = 16;
  const bool turned = k_stride == 1 && columns % W == 0 && columns <= 4 * W;
  want_huge_pages(out, (i64)sizeof(float) * depth * round_up(n, W));
#pragma omp parallel for schedule(dynamic) if (depth * n > 100000)
  for (i64 p = 0; p < panels; p++) {
    const i64 first = p * columns, live = std::min(n - first, columns);
    const i64 wide = live == columns ? columns : round_up(live, W);
    float* to = out + first * depth;
    const float* from = w + first * n_stride;
    if (turned) {
      with_constant<4>(columns / W, [&](auto nv) {
        pack_turned<decltype(nv)::value>(from, n_stride, depth, live, to);
        return 0;
      });
      continue;
    }
    for (i64 k0 = 0; k0 < depth; k0 += B) {
      const i64 k1 = std::min(k0 + B, depth);
      if (n_stride == 1) {
        for (i64 k = k0; k < k1; k++) __builtin_memcpy(to + k * wide, from + k * k_stride, live * sizeof(float));
      } else {
        for (i64 j = 0; j < live; j++)
          for (i64 k = k0; k < k1; k++) to[k * wide + j] = from[k * k_stride + j * n_stride];
      }
      for (i64 k = k0; k < k1; k++)
        for (i64 j = live; j < wide; j++) to[k * wide + j] = 0;
    }
  }
}

PyObject* py_pack(PyObject*, PyObject* args) {
  long long w, out;
  long depth, n, k_stride, n_stride, columns;
  if (!PyArg_ParseTuple(args, "LLlllll", &w, &out, &depth, &n, &k_stride, &n_stride, &columns)) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  pack((const float*)w, (float*)out, depth, n, k_stride, n_stride, columns);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"pack", py_pack, METH_VARARGS,
     "pack(weight, out, depth, n, k_stride, n_stride, columns): float32 panels (see loops.contract)."},
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
