// Operators of a package's graph that are kernels of csrc/, over raw memory. What calls them is printed by calls.py.
#pragma once
#include <cstdint>

#include "csrc/attention.h"
#include "csrc/matmul.h"
#include "csrc/rnn.h"

extern "C" int omp_get_max_threads();

namespace framesmith {

constexpr int kMostDims = 8;

// A tensor argument. `at` is null where there is none.
struct Operand {
  void* at;
  int rank;
  int64_t size[kMostDims], stride[kMostDims];
  template <class T> T* as() const { return static_cast<T*>(at); }
};

// `truth`: the mask holds truth values.
void attention(const Operand& q, const Operand& k, const Operand& v, const Operand& mask, bool truth, bool causal,
               double scale, const Operand& out);
// a b, plus `bias`, which broadcasts.
void product(const Operand& a, const Operand& b, const Operand& bias, const Operand& out);
// `states`, `packed`: as csrc/library.cpp has them. `cn` of a GRU is none.
void recurrence(int64_t gates, const Operand& x, const Operand* states, int64_t state_count, const Operand* packed,
                int64_t packed_count, int64_t hidden, bool bidirectional, bool batch_first, const Operand& out,
                const Operand& hn, const Operand& cn);

}  // namespace framesmith
