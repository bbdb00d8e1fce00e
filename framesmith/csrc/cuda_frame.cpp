// What the frame of a call does otherwise on a CUDA device: all memory comes from PyTorch's allocator of the device, in
// the order of the current stream, so that its statistics, its limits and its rules for streams hold.
#include "graph_frame.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace framesmith {

static constexpr int64_t kAlignment = 64;  // of places in the arena (schedule/memory.py)

// Views of the arena are made once for a geometry: their storage is given other memory in each call.
static void make_views(Frame& f) {
  c10::InferenceMode normal(false);  // these tensors outlive the call
  auto over = [&](int v, int64_t offset) {
    const Value& value = f.plan.values[v];
    f.own(v, tensor_on(f.scratch, value.dtype, f.geometry[v].size, f.geometry[v].stride, offset));
  };
  auto place = [&](int v, int64_t itemsize) { return f.plan.values[v].ref.get(f.table.data()) / itemsize; };
  for (int v : f.plan.arena_values)
    if (f.plan.values[v].as_tensor) over(v, place(v, static_cast<int64_t>(c10::elementSize(f.plan.values[v].dtype))));
  for (int v : f.plan.arena_views) {
    const Value& value = f.plan.values[v];
    over(v, place(static_cast<int>(value.ref.literal), static_cast<int64_t>(c10::elementSize(value.dtype))) +
                f.geometry[v].offset);
  }
}

char* Frame::take_scratch() {
  const auto bytes = static_cast<size_t>(plan.arena.get(table.data()));
  if (bytes == 0) return nullptr;
  c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  c10::DataPtr memory = allocator->allocate(bytes);
  char* start = static_cast<char*>(memory.get());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(start) % kAlignment == 0, "framesmith: the device's memory is not aligned");
  if (!scratch) {
    scratch = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                                 std::move(memory), allocator, false));
    base = nullptr;
  } else {
    scratch.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    scratch.set_nbytes(bytes);
  }
  if (!base) make_views(*this);  // no views yet, or of another geometry
  base = start;
  return start;
}

int scratch_memory(Frame* frame, char** arena) {
  return guarded(frame, [&] { *arena = frame->take_scratch(); });
}

int launch_kernel(Frame* frame, int index, unsigned x, unsigned y, unsigned z, void** arguments) {
  int status = launch_cuda_kernel(frame->kernels[index], frame->stream, x, y, z, arguments);
  if (C10_LIKELY(status == 0)) return 0;
  return guarded(frame, [&] { check_cuda(status, "cannot launch a kernel"); });
}

void Frame::realign() {
  for (int v : plan.aligned) {
    if (C10_LIKELY(is_aligned(pointers[v]))) continue;
    at::Tensor own = at::empty_strided(refs[v]->sizes(), refs[v]->strides(), refs[v]->options());
    own.copy_(*refs[v]);
    stand_in(v, std::move(own));
  }
}

static at::Tensor new_table(const Frame& f, int64_t bytes) {
  c10::InferenceMode normal(false);  // it outlives the call
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(f.plan.cuda_device()));
}

std::vector<int64_t> Frame::table_sizes() const {
  std::vector<int64_t> out;
  for (const Upload& u : uploads) out.push_back(static_cast<int64_t>(u.bytes.size()));
  return out;
}

void Frame::renew_uploads(const std::vector<int64_t>& sizes) {
  uploads.clear();
  for (int64_t bytes : sizes) uploads.push_back({{}, bytes ? new_table(*this, bytes) : at::Tensor(), nullptr, false});
}

void Frame::finish_uploads(void* to) {
  for (Upload& u : uploads) {
    if (!u.pending) continue;
    copy_to_cuda(u.memory.mutable_data_ptr(), u.bytes.data(), u.bytes.size(), to);
    u.pending = false;
  }
}

void* upload_bytes(Frame* frame, int slot, const void* data, int64_t bytes) {
  Frame& f = *frame;
  if (f.uploads.size() <= static_cast<size_t>(slot)) f.uploads.resize(static_cast<size_t>(slot) + 1);
  Upload& u = f.uploads[slot];
  const char* first = static_cast<const char*>(data);
  const bool known = u.memory.defined() && u.stream == f.stream &&
                     std::equal(u.bytes.begin(), u.bytes.end(), first, first + bytes);
  if (known && !f.recording) return u.memory.mutable_data_ptr();
  const int failed = guarded(frame, [&] {
    if (!f.recording) u.memory = new_table(f, bytes);  // what a kernel still reads is left as it is
    TORCH_CHECK(u.memory.defined() && u.memory.numel() == bytes, "a table has no memory yet");
    u.bytes.assign(first, first + bytes);
    u.stream = f.stream;
    u.pending = f.recording;
    if (!f.recording) copy_to_cuda(u.memory.mutable_data_ptr(), u.bytes.data(), u.bytes.size(), f.stream);
  });
  if (failed && !f.recording) u = {};
  return failed ? nullptr : u.memory.mutable_data_ptr();
}

}  // namespace framesmith
