#include "graph_frame.h"

#include <ATen/ops/conj_physical.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/neg.h>
#include <c10/core/InferenceMode.h>

namespace framesmith {

static size_t extent(const Geometry& g, size_t itemsize) {
  int64_t last = 0;
  for (size_t d = 0; d < g.size.size(); d++) {
    if (g.size[d] == 0) return 0;
    last += (g.size[d] - 1) * g.stride[d];
  }
  return static_cast<size_t>(last + 1) * itemsize;
}

bool fits(const at::Tensor& t, const Geometry& g, at::ScalarType dtype) {
  if (t.scalar_type() != dtype || t.sizes() != c10::IntArrayRef(g.size)) return false;
  for (size_t d = 0; d < g.size.size(); d++)
    if (g.size[d] > 1 && t.stride(static_cast<int64_t>(d)) != g.stride[d]) return false;
  return true;
}

Frame::Frame(const Plan& plan_)
    : plan(plan_),
      host{this, &call_extern, &allocate_value, &release_value, &launch_kernel, &upload_bytes, &scratch_memory,
           nullptr},
      pointers(plan_.values.size()),
      refs(plan_.values.size()),
      tensors(plan_.values.size()),
      geometry(plan_.values.size()),
      table(plan_.table) {
  if (!plan.dynamic()) resolve();
}

void Frame::resolve() {
  for (size_t v = 0; v < geometry.size(); v++) {
    const Value& value = plan.values[v];
    Geometry& g = geometry[v];
    g.size.resize(value.size.size());
    g.stride.resize(value.stride.size());
    for (size_t d = 0; d < g.size.size(); d++) g.size[d] = value.size[d].get(table.data());
    for (size_t d = 0; d < g.stride.size(); d++) g.stride[d] = value.stride[d].get(table.data());
    g.offset = value.offset.get(table.data());
    g.bytes = extent(g, c10::elementSize(value.dtype));
  }
  base = nullptr;
}

static at::Tensor over(char* memory, const Geometry& g, at::ScalarType dtype) {
  return at::from_blob(memory, g.size, g.stride, at::TensorOptions().dtype(dtype));
}

void Frame::set_arena(char* arena) {
  if (arena == base) return;
  c10::InferenceMode normal(false);  // these tensors outlive the call
  for (int v : plan.arena_values) {
    char* memory = arena + plan.values[v].ref.get(table.data());
    pointers[v] = memory;
    if (!plan.values[v].as_tensor) continue;
    own(v, over(memory, geometry[v], plan.values[v].dtype));
  }
  for (int v : plan.arena_views) {
    const Value& value = plan.values[v];
    char* memory = static_cast<char*>(pointers[value.ref.literal]) +
                   geometry[v].offset * static_cast<int64_t>(c10::elementSize(value.dtype));
    pointers[v] = memory;
    own(v, over(memory, geometry[v], value.dtype));
  }
  base = arena;
}

void Frame::set_constants(const std::vector<at::Tensor>& constants, uint64_t now) {
  if (generation == now) return;
  for (int v : plan.constant_values) {
    own(v, constants[plan.values[v].ref.literal]);
    point(v);
  }
  generation = now;
}

at::Tensor tensor_on(c10::Storage storage, at::ScalarType dtype, at::IntArrayRef size, at::IntArrayRef stride,
                     int64_t offset) {
  const c10::DispatchKeySet keys(storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
  at::Tensor t =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return t;
}

at::Tensor new_tensor(const Geometry& g, at::ScalarType dtype, bool cuda) {
  c10::Allocator* allocator = cuda ? c10::GetAllocator(c10::DeviceType::CUDA) : output_allocator();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), g.bytes, allocator->allocate(g.bytes), allocator, /*resizable=*/true);
  return tensor_on(c10::Storage(std::move(storage)), dtype, g.size, g.stride, 0);
}

void Frame::allocate(int v) {
  if (recording && tensors[v].defined()) return;
  own(v, new_tensor(geometry[v], plan.values[v].dtype, plan.device >= 0));
  pointers[v] = tensors[v].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->mutable_data();
}

void Frame::set_result(int v, at::Tensor t) {
  drop_result(v);
  own(v, std::move(t));
  if (plan.device < 0) count_result(static_cast<ptrdiff_t>(geometry[v].bytes));
}

void Frame::drop_result(int v) {
  if (!tensors[v].defined()) return;
  tensors[v].reset();
  if (plan.device < 0) count_result(-static_cast<ptrdiff_t>(geometry[v].bytes));
}

void Frame::drop_scratch() {
  if (scratch) scratch.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, scratch.device()));
}

void Frame::clear_call() {
  for (int v : plan.output_values) tensors[v].reset();
  for (int v : plan.result_values) drop_result(v);
  for (int v : plan.call_views) tensors[v].reset();
  if (owns_inputs)
    for (int v : plan.input_values) tensors[v].reset();
  owns_inputs = false;
  drop_scratch();
  stand_ins.clear();
  stack.clear();
}

at::Tensor window(const at::Tensor& base, const Geometry& g, at::ScalarType dtype) {
  auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  int64_t start = base.storage_offset() * static_cast<int64_t>(base.element_size()) / itemsize;
  const c10::DispatchKeySet keys(c10::computeDispatchKey(dtype, c10::kStrided, base.device()));
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), keys,
                                                          c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(g.size, g.stride, start + g.offset);
  return t;
}

at::Tensor settled(const at::Tensor& t) {
  c10::impl::ExcludeDispatchKeyGuard below(outside_keys());
  Geometry all{{0}, {1}};
  all.size[0] = static_cast<int64_t>(extent({t.sizes().vec(), t.strides().vec()}, 1));
  at::Tensor flat = window(t, all, t.scalar_type());
  if (t.is_conj()) flat = at::conj_physical(flat);
  if (t.is_neg()) flat = at::neg(flat);
  return flat.as_strided(t.sizes(), t.strides(), 0);
}

void Frame::stand_in(int v, at::Tensor copy) {
  const at::Tensor* given = refs[v];
  pointers[v] = copy.mutable_data_ptr();
  tensors[v] = std::move(copy);
  if (owns_inputs) return;  // nobody else has it
  refs[v] = &tensors[v];
  stand_ins.emplace_back(v, given);
}

void Frame::settle(int v) { stand_in(v, settled(*refs[v])); }

void Frame::give_back() {
  for (auto [v, given] : stand_ins) {
    if (plan.values[v].written) const_cast<at::Tensor*>(given)->copy_(tensors[v]);
    refs[v] = given;
    tensors[v].reset();
  }
  stand_ins.clear();
}

int allocate_value(Frame* frame, int value) {
  return guarded(frame, [&] { frame->allocate(value); });
}

void release_value(Frame* frame, int value) {
  if (value < 0) frame->drop_scratch();
  else if (frame->plan.values[value].kind == Kind::Result) frame->drop_result(value);
  else frame->tensors[value].reset();
}

}  // namespace framesmith
