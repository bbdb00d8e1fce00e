// `framesmith::quantized_linear` and `integer_matmul`: products with packed integers as graphs call them.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "operators.h"
#include "quantized.h"

namespace framesmith {
namespace {
using at::Tensor;
using Rows = std::optional<Tensor>;

// `packed`: of matrices (k, n), of `bits` bits.
PackedIntegers integers(const Tensor& packed, int64_t k, int64_t n, int64_t bits) {
  const int64_t panels = (n + kPanelColumns - 1) / kPanelColumns, words = (k * bits + 31) / 32;
  TORCH_CHECK((bits == 8 || bits == 4) && packed.is_contiguous() && packed.numel() == panels * words * kPanelColumns,
              "framesmith: packed integers of another geometry");
  return {packed.const_data_ptr<int32_t>(), k, n, static_cast<int>(bits)};
}

Tensor result(const Tensor& x, int64_t n, at::ScalarType dtype) {
  auto sizes = x.sizes().vec();
  sizes.back() = n;
  return at::empty(sizes, x.options().dtype(dtype));
}

Tensor linear_result(const Tensor& x, const Tensor&, const Rows&, const Rows&, int64_t n, int64_t, int64_t) {
  return result(x, n, at::kFloat);
}

void linear(const Tensor& x_, const Tensor& packed, const Rows& scale, const Rows& zero, int64_t n, int64_t bits,
            int64_t group, Tensor& out) {
  const Tensor x = x_.contiguous();
  const int64_t k = x.size(-1), padded = (n + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  TORCH_CHECK(out.is_contiguous() && group > 0 && (group * bits % 32 == 0 || group >= k),
              "framesmith: a quantized product's geometry");
  for (const Rows& rows : {scale, zero})
    TORCH_CHECK(!rows || (rows->is_contiguous() && rows->numel() == (k + group - 1) / group * padded),
                "framesmith: a row of scales for each group");
  const auto at = [](const Rows& rows) { return rows ? rows->const_data_ptr<float>() : nullptr; };
  const int64_t m = k ? x.numel() / k : 0;
  multiply_quantized({m, x.const_data_ptr<float>(), k, integers(packed, k, n, bits), at(scale), at(zero), group,
                      out.data_ptr<float>()}, at::get_num_threads());
}

Tensor matmul_result(const Tensor& a, const Tensor&, int64_t n) { return result(a, n, at::kInt); }

void integer_matmul(const Tensor& a_, const Tensor& packed, int64_t n, Tensor& out) {
  const Tensor a = a_.contiguous();
  TORCH_CHECK(a.dim() == 2 && out.is_contiguous(), "framesmith: a product of integers is of matrices");
  const auto b = integers(packed, a.size(1), n, 8);
  const auto run = [&](const auto* at) {
    multiply_integers(a.size(0), at, a.size(1), b, out.data_ptr<int32_t>(), at::get_num_threads());
  };
  a.scalar_type() == at::kByte ? run(a.const_data_ptr<uint8_t>()) : run(a.const_data_ptr<int8_t>());
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(framesmith, m) {
  define<linear_result, linear>(m, "quantized_linear",
                                "Tensor x, Tensor packed, Tensor? scale, Tensor? zero, int n, int bits, int group");
  define<matmul_result, integer_matmul>(m, "integer_matmul", "Tensor a, Tensor packed, int n");
}
}  // namespace framesmith
