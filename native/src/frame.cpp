#include "frame.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "error.h"

namespace framesmith {
namespace {

constexpr size_t kMostBytes = size_t{1} << 46;
constexpr int64_t kMostElements = int64_t{1} << 46;

[[noreturn]] void refused(const std::string& text) { throw Error(FRAMESMITH_BAD_ARGUMENT, text); }

// Strides of a tensor of the caller's.
std::vector<int64_t> strides(const framesmith_tensor& t) {
  const auto rank = static_cast<size_t>(t.rank);
  std::vector<int64_t> out(t.stride, t.stride + rank);
  for (int64_t s : out)
    if (s) return out;
  int64_t step = 1;
  for (size_t d = rank; d--;) out[d] = step, step *= t.size[d] > 1 ? t.size[d] : 1;
  return out;
}

bool same_layout(const std::vector<int64_t>& size, const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  for (size_t d = 0; d < size.size(); d++)
    if (size[d] == 0) return true;
  for (size_t d = 0; d < size.size(); d++)
    if (size[d] > 1 && a[d] != b[d]) return false;
  return true;
}

void copy(const std::vector<int64_t>& size, char* to, const std::vector<int64_t>& to_stride, const char* from,
          const std::vector<int64_t>& from_stride, size_t item, size_t d = 0) {
  if (d == size.size()) {
    std::memcpy(to, from, item);
    return;
  }
  const bool last = d + 1 == size.size();
  if (last && to_stride[d] == 1 && from_stride[d] == 1) {
    if (size[d]) std::memcpy(to, from, static_cast<size_t>(size[d]) * item);
    return;
  }
  for (int64_t i = 0; i < size[d]; i++)
    copy(size, to + i * to_stride[d] * static_cast<int64_t>(item), to_stride,
         from + i * from_stride[d] * static_cast<int64_t>(item), from_stride, item, d + 1);
}

// Throws if a size overflows; the plan's numbers are not trusted.
size_t extent(const Geometry& g, size_t item) {
  __int128 last = 0;
  for (size_t d = 0; d < g.size.size(); d++) {
    if (g.size[d] < 0 || g.stride[d] < 0) damaged("a negative size");
    if (g.size[d] == 0) return 0;
    last += static_cast<__int128>(g.size[d] - 1) * g.stride[d];
    if (last > static_cast<__int128>(kMostBytes)) throw Error(FRAMESMITH_NO_MEMORY, "a tensor that no memory holds");
  }
  return static_cast<size_t>(last + 1) * item;
}

}  // namespace

Frame::Frame(const Plan& plan, const Functions& code, const std::vector<std::string_view>& constants,
             const State& state)
    : plan_(plan), code_(code), constants_(constants), state_(state),
      host_{this, &Frame::call, &Frame::allocate, &Frame::release, nullptr, nullptr, nullptr, nullptr},
      dimensions_(plan.dimensions.size()), table_(plan.table), geometry_(plan.values.size()),
      pointers_(plan.values.size()), own_(plan.values.size()), given_(plan.values.size()) {}

void Frame::bind(const framesmith_tensor* inputs, int count) {
  if (count != static_cast<int>(plan_.inputs.size()))
    refused("the model takes " + std::to_string(plan_.inputs.size()) + " inputs, not " + std::to_string(count));
  for (int i = 0; i < count; i++) {
    const auto& input = plan_.inputs[static_cast<size_t>(i)];
    if (inputs[i].dtype != input.dtype || inputs[i].rank != static_cast<int>(input.sizes.size()))
      refused(input.name + " is of another type or rank than the model takes");
    for (int d = 0; d < inputs[i].rank; d++)
      if (inputs[i].size[d] < 0 || inputs[i].size[d] > kMostElements)
        refused("dimension " + std::to_string(d) + " of " + input.name + " is " + std::to_string(inputs[i].size[d]));
  }
  for (size_t k = 0; k < dimensions_.size(); k++) {
    const Dimension& d = plan_.dimensions[k];
    const Size& size = plan_.inputs[static_cast<size_t>(d.input)].sizes[static_cast<size_t>(d.at)];
    dimensions_[k] = (inputs[d.input].size[d.at] - size.offset) / size.scale;
  }
  take_dimensions();
  for (int i = 0; i < count; i++) check(i, inputs[i]);
}

void Frame::bind(const int64_t* dimensions, framesmith_tensor* inputs) {
  dimensions_.assign(dimensions, dimensions + dimensions_.size());
  take_dimensions();
  for (const auto& input : plan_.inputs) {
    framesmith_tensor& t = *inputs++;
    t.dtype = input.dtype;
    t.rank = static_cast<int32_t>(input.sizes.size());
    for (int d = 0; d < t.rank; d++) t.size[d] = input.sizes[static_cast<size_t>(d)].get(dimensions_.data());
  }
}

void Frame::take_dimensions() {
  for (size_t k = 0; k < dimensions_.size(); k++) {
    const Dimension& d = plan_.dimensions[k];
    if (dimensions_[k] < d.least || dimensions_[k] > std::min(d.most, kMostElements))
      refused(d.name + " is " + std::to_string(dimensions_[k]) + ", out of its range from " + std::to_string(d.least) +
              (d.most == INT64_MAX ? "" : " to " + std::to_string(d.most)));
  }
  for (size_t k = 0; k < plan_.symbols.size(); k++) {
    const int64_t n = dimensions_[plan_.symbols[k]];
    resolved_ = resolved_ && table_[k] == n;
    table_[k] = n;
  }
  if (!resolved_) resolve();
}

void Frame::check(int i, const framesmith_tensor& given) const {
  const auto& input = plan_.inputs[static_cast<size_t>(i)];
  for (size_t d = 0; d < input.sizes.size(); d++) {
    const Size& size = input.sizes[d];
    const int64_t n = size.get(dimensions_.data());
    if (given.size[d] != n)
      refused("dimension " + std::to_string(d) + " of " + input.name + " is " + std::to_string(given.size[d]) +
              (size.dimension < 0 ? ", not " : "; " + size.text + " is ") + std::to_string(n));
    if (input.value >= 0 && geometry_[static_cast<size_t>(input.value)].size[d] != n) damaged("a size of an input");
  }
}

void Frame::resolve() {
  resolved_ = false;
  if (code_.sizes) code_.sizes(table_.data());
  for (size_t v = 0; v < plan_.values.size(); v++) {
    const Value& value = plan_.values[v];
    Geometry& g = geometry_[v];
    g.size.resize(value.size.size());
    g.stride.resize(value.stride.size());
    for (size_t d = 0; d < g.size.size(); d++) {
      g.size[d] = value.size[d].get(table_.data());
      g.stride[d] = value.stride[d].get(table_.data());
    }
    g.offset = value.offset.get(table_.data());
    g.bytes = extent(g, item_size(value.dtype));
    const auto at = static_cast<size_t>(value.ref.literal);
    if ((value.kind == Kind::Constant && g.bytes > constants_[at].size()) ||
        (value.kind == Kind::State && g.bytes > state_.bytes(at)))
      damaged("a constant is smaller than its sizes");
  }
  const int64_t bytes = plan_.arena.get(table_.data());
  if (bytes < 0) damaged("the size of its arena");
  if (static_cast<size_t>(bytes) > arena_bytes_) {
    arena_.reset();
    arena_bytes_ = 0;
    arena_ = memory(static_cast<size_t>(bytes));
    arena_bytes_ = static_cast<size_t>(bytes);
  }
  for (size_t v = 0; v < plan_.values.size(); v++) {
    const Value& value = plan_.values[v];
    if (value.kind == Kind::Constant)
      pointers_[v] = const_cast<char*>(constants_[static_cast<size_t>(value.ref.literal)].data());
    if (value.kind == Kind::State) pointers_[v] = state_.at(static_cast<size_t>(value.ref.literal));
    if (value.kind != Kind::Arena) continue;
    const int64_t at = value.ref.get(table_.data());
    if (at < 0 || static_cast<size_t>(at) + geometry_[v].bytes > arena_bytes_) damaged("a place in its arena");
    pointers_[v] = arena_.get() + at;
  }
  resolved_ = true;
}

void Frame::shape(int output, framesmith_tensor& out) const {
  const auto v = static_cast<size_t>(plan_.outputs[static_cast<size_t>(output)]);
  out.dtype = plan_.values[v].dtype;
  out.rank = static_cast<int32_t>(geometry_[v].size.size());
  for (size_t d = 0; d < geometry_[v].size.size(); d++) out.size[d] = geometry_[v].size[d];
}

char* Frame::hold(size_t bytes) {
  held_.push_back(blocks_.take(bytes));
  return held_.back();
}

void Frame::drop() {
  for (char* block : held_) blocks_.give(block);
  held_.clear();
  for (char*& block : own_)
    if (block) blocks_.give(block), block = nullptr;
}

void Frame::place_inputs(const framesmith_tensor* inputs) {
  for (size_t v = 0; v < plan_.values.size(); v++) {
    const Value& value = plan_.values[v];
    if (value.kind != Kind::Input) continue;
    const framesmith_tensor& t = inputs[value.ref.literal];
    const Geometry& g = geometry_[v];
    if (!t.data && g.bytes) refused(plan_.inputs[static_cast<size_t>(value.ref.literal)].name + " has no data");
    const std::vector<int64_t> given = strides(t);
    if (same_layout(g.size, given, g.stride)) {
      pointers_[v] = t.data;
      continue;
    }
    if (value.written) refused("an input that the model writes is laid out otherwise than it takes it");
    char* copied = hold(g.bytes);
    copy(g.size, copied, g.stride, static_cast<const char*>(t.data), given, item_size(value.dtype));
    pointers_[v] = copied;
  }
}

// An output with memory of its own is computed in the caller's buffer, if the layouts agree.
void Frame::place_outputs(const framesmith_tensor* outputs, int count) {
  given_.assign(plan_.values.size(), false);
  for (int k = 0; k < count; k++) {
    const framesmith_tensor& t = outputs[k];
    const auto v = static_cast<size_t>(plan_.outputs[static_cast<size_t>(k)]);
    const Geometry& g = geometry_[v];
    const std::string& name = plan_.output_names[static_cast<size_t>(k)];
    if (t.dtype != plan_.values[v].dtype || t.rank != static_cast<int>(g.size.size()))
      refused(name + " is of another type or rank than the model gives");
    for (size_t d = 0; d < g.size.size(); d++)
      if (t.size[d] != g.size[d])
        refused("dimension " + std::to_string(d) + " of " + name + " is " + std::to_string(t.size[d]) + ", not " +
                std::to_string(g.size[d]));
    if (!t.data && g.bytes) refused(name + " has no data");
    if (plan_.values[v].kind != Kind::Output || given_[v] || !same_layout(g.size, strides(t), g.stride)) continue;
    given_[v] = true;
    pointers_[v] = t.data;
  }
}

void Frame::place_rest() {
  for (size_t v = 0; v < plan_.values.size(); v++) {
    const Value& value = plan_.values[v];
    if (value.kind != Kind::Output || value.late || given_[v]) continue;
    pointers_[v] = own_[v] = blocks_.take(geometry_[v].bytes);
  }
}

void Frame::finish(const framesmith_tensor* outputs, int count) {
  for (int k = 0; k < count; k++) {
    const auto v = static_cast<size_t>(plan_.outputs[static_cast<size_t>(k)]);
    const Value& value = plan_.values[v];
    const auto item = static_cast<int64_t>(item_size(value.dtype));
    const char* from = static_cast<const char*>(pointers_[v]);
    if (value.kind == Kind::View)
      from = static_cast<const char*>(pointers_[static_cast<size_t>(value.ref.literal)]) + geometry_[v].offset * item;
    if (from == outputs[k].data) continue;
    copy(geometry_[v].size, static_cast<char*>(outputs[k].data), strides(outputs[k]), from, geometry_[v].stride,
         static_cast<size_t>(item));
  }
}

void Frame::run(const framesmith_tensor* inputs, const framesmith_tensor* outputs, int count) {
  if (count != static_cast<int>(plan_.outputs.size()))
    refused("the model gives " + std::to_string(plan_.outputs.size()) + " outputs, not " + std::to_string(count));
  const std::shared_ptr<void> dropping(nullptr, [this](void*) { drop(); });
  place_inputs(inputs);
  place_outputs(outputs, count);
  place_rest();
  failed_ = 0;
  const int status = code_.run(arena_.get(), pointers_.data(), table_.data(), &host_);
  if (status == 2 || failed_ == 2) throw Error(FRAMESMITH_BAD_INDEX, "an index is out of range");
  if (status) throw Error(FRAMESMITH_NO_MEMORY, "there is not enough memory");
  finish(outputs, count);
}

int Frame::call(void* frame, int index) {
  auto& f = *static_cast<Frame*>(frame);
  try {
    return f.failed_ = f.code_.call(index, f.pointers_.data(), f.table_.data());
  } catch (...) {
    return f.failed_ = 1;
  }
}

int Frame::allocate(void* frame, int value) {
  auto& f = *static_cast<Frame*>(frame);
  const auto v = static_cast<size_t>(value);
  if (f.given_[v] || f.own_[v]) return 0;
  try {
    f.pointers_[v] = f.own_[v] = f.blocks_.take(f.geometry_[v].bytes);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

void Frame::release(void* frame, int value) {
  auto& f = *static_cast<Frame*>(frame);
  if (value < 0) return;
  if (char*& block = f.own_[static_cast<size_t>(value)]) f.blocks_.give(block), block = nullptr;
}

}  // namespace framesmith
